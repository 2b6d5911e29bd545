"""Which of several runs begins first."""

from pathlib import Path

import pytest

from incseg.config import Layer
from incseg.curriculum import Curriculum, build_curriculum
from incseg.protocol import Protocol
from incseg.study.comparison_plan import Entrant, plan_comparison
from incseg.study.planned_run import PlannedRun
from incseg.study.workload import longest_first, remaining_work


def planned(data: Path, out: Path, *methods: str, settings: Layer | None = None) -> tuple[list[PlannedRun], Curriculum]:
    entrants = [Entrant(method, written=method) for method in methods]
    plan = plan_comparison(
        ["folder/2-1/overlapped"], entrants, seeds=[42], out=out, data_root=[str(data)], settings=settings
    )
    runs = list(plan.schedule.runs)
    return runs, build_curriculum(Protocol.parse(runs[0].config.protocol), runs[0].config.data)


def test_the_longest_begins_and_what_only_solves_comes_last(tiny_folder: Path, tmp_path: Path) -> None:
    runs, curriculum = planned(tiny_folder, tmp_path, "analytic", "ft", "mib", "joint")
    assert [run.method for run in longest_first(runs, [curriculum] * 4)] == ["joint", "mib", "ft", "analytic"]


def test_the_work_is_counted_in_passes_of_pixels(tiny_folder: Path, tmp_path: Path) -> None:
    settings = {"optim": {"epochs": 5, "incremental_epochs": 3}, "data": {"crop_size": 64}}
    (ft, mib, joint, analytic), curriculum = planned(
        tiny_folder, tmp_path, "ft", "mib", "joint", "analytic", settings=settings
    )
    first, second, third = (set(indices) for indices in curriculum.indices)
    later = len(second) + len(third)
    assert later
    assert remaining_work(ft, curriculum) == 64**2 * (5 * len(first) + 3 * later)
    with_teacher = 64**2 * (5 * len(first) + 3 * (4 / 3) * later)
    assert remaining_work(mib, curriculum) == pytest.approx(with_teacher)
    together = len(first | second) + len(first | second | third)
    assert remaining_work(joint, curriculum) == 64**2 * (5 * len(first) + 3 * together)
    (ft.folder / "step-0").mkdir(parents=True)
    (ft.folder / "step-0" / "scores.json").touch()
    assert remaining_work(ft, curriculum) == 64**2 * 3 * later, "what is done does not count"
    assert remaining_work(analytic, curriculum) < remaining_work(ft, curriculum) + 64**2 * 5 * len(first)
