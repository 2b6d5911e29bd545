"""`incseg compare` from the command line to the numbers, and several runs at once."""

import itertools
import json
import os
import re
import signal
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from command_line import InThisProcess, run
from incseg.cli.studies import entrant
from incseg.console import Console
from incseg.engine.cores import FIRST_STEP_THREADS
from incseg.engine.journal import Journal
from incseg.errors import Stopped
from incseg.study import execution
from incseg.study.children import Children
from incseg.study.comparison_plan import Entrant, plan_comparison
from incseg.study.execution import Execution
from incseg.study.latest_lines import LatestLines
from incseg.study.planned_run import PlannedRun
from incseg.study.schedule import Schedule

QUICK = ["--model.encoder", "test_resnet", "--model.decoder", "deeplabv3plus", "--model.weights", "none",
         "--model.decoder-options", '{"decoder_channels": 16}', "--data.crop-size", "64", "--data.workers", "0",
         "--optim.epochs", "1", "--optim.batch-size", "8", "--engine.accelerator", "cpu", "--engine.pictures", "0",
         "--engine.loggers", "none", "--engine.log-every", "1"]  # fmt: skip


def final_score(folder: Path) -> float:
    """Mean IoU of all classes but background in percent, from the confusion matrix alone."""
    confusion = json.loads((folder / "result.json").read_text())["steps"][-1]["confusion"]
    columns = list(zip(*confusion, strict=True))
    unions = [sum(confusion[c]) + sum(columns[c]) - confusion[c][c] for c in range(5)]
    return statistics.fmean(100 * confusion[c][c] / unions[c] for c in range(1, 5) if unions[c])


def stopping_once() -> Callable[..., None]:
    original, stopped = Journal.log, list[bool]()

    def log(self: Journal, name: str, done: int, *rest: object) -> None:
        original(self, name, done, *rest)  # type: ignore[arg-type]
        if (name, done) == ("step 1", 1) and not stopped:
            stopped.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    return log


def test_a_comparison_is_stopped_resumed_survives_a_failing_run_and_ends_in_numbers(
    tiny_folder: Path,
    tmp_path: Path,
    processes: InThisProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["compare", "folder/2-2/overlapped", "--methods", "ft", "mib", "--against", "mib", "--seeds", "2",
             "--data-root", str(tiny_folder), "--out", str(tmp_path), *QUICK]  # fmt: skip
    runs = tmp_path / "folder-2-2-overlapped"
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "log", stopping_once())
        assert run(*words) == Stopped.EXIT_CODE
    assert processes.folders() == ["ft-seed42"]
    assert (runs / "ft-seed42" / "checkpoint.pt").exists()

    blocker = runs / "mib-seed43"
    blocker.write_text("a file where the folder of a run should be")
    capsys.readouterr()
    assert run(*words) == 1
    assert processes.folders()[1:] == ["ft-seed42", "ft-seed43", "mib-seed42", "mib-seed43"]
    said = capsys.readouterr()
    assert f"1 of 4 runs failed: {blocker}; run this again" in said.err
    assert re.search(r"difference from mib[^:]*:[^:]*│ ft +│ 1 │", said.out)  # what is there is compared

    blocker.unlink()
    processes.commands.clear()
    assert run(*words, "--json") == 0
    assert processes.folders() == ["mib-seed43"]
    document = json.loads(capsys.readouterr().out)
    assert document["result"]["failed"] == []
    assert set(document["result"]["runs"]) == {str(runs / f"{m}-seed{s}") for m in ("ft", "mib") for s in (42, 43)}
    models = [[(runs / f"{m}-seed{s}/step-0/model.safetensors").read_bytes() for m in ("ft", "mib")] for s in (42, 43)]
    assert models[0][0] == models[0][1] != models[1][0] == models[1][1]
    values = [final_score(runs / f"ft-seed{s}") - final_score(runs / f"mib-seed{s}") for s in (42, 43)]
    (row,) = next(t["rows"] for t in document["tables"] if "difference from mib" in t["title"])
    shown = row["all w/o bg"].replace("−", "-").split()
    assert (float(shown[0]), float(shown[2])) == pytest.approx(
        (statistics.fmean(values), statistics.stdev(values)), abs=0.051
    )
    page = Path(document["result"]["reports"]["folder/2-2/overlapped"])
    assert page == runs / "report.html"
    assert "difference from mib" in page.read_text()


@dataclass
class MadeUpChild:
    """A run that trains step 0 until its second look, or copies it at the first, and ends at its fourth.

    One that solves its head first takes the scores of what it copied away, and at its third look has its own.
    """

    folder: Path
    fails: bool
    source: Path | None = None
    code: int | None = None
    looks: int = 0

    def __post_init__(self) -> None:
        self._solves = self.folder.name.startswith("analytic")
        self._begins_with_one = self.source is not None or self._scores.exists()

    @property
    def _scores(self) -> Path:
        return self.folder / "step-0" / "scores.json"

    @property
    def exitcode(self) -> int | None:
        self.looks += 1
        if self.looks == 1 and self.source is not None:
            self.fails |= not (self.source / "step-0" / "scores.json").exists()
        if not self.fails:
            self._work()
        if self.looks == 4:
            self.code = 1 if self.fails else 0
        return self.code

    def _work(self) -> None:
        replaces = self._solves and self._begins_with_one
        if self.looks == (1 if self._begins_with_one else 2) or (self.looks == 3 and replaces):
            self._scores.parent.mkdir(parents=True, exist_ok=True)
            self._scores.touch()
        if self.looks == 2 and replaces:
            self._scores.unlink()


@dataclass
class MadeUpChildren(Children):
    """Notes which runs are in training whenever one begins."""

    failing: Sequence[str] = ()
    started: list[tuple[str, str, list[str]]] = field(default_factory=list)
    more_threads: list[bool] = field(default_factory=list)
    children: list[MadeUpChild] = field(default_factory=list)
    asked_to_stop: bool = False
    _running: list[BaseProcess] = field(default_factory=list)

    def start(  # type: ignore[override]
        self, command: Sequence[str], log: Path | None, environment: Mapping[str, str]
    ) -> MadeUpChild:
        if log is not None:
            log.write_text("said before\nthe disk is full\n\n")
        options = dict(itertools.pairwise(command))
        folder = Path(options["--out"])
        beside = [child.folder.name for child in self.children if child.code is None]
        self.more_threads.append(FIRST_STEP_THREADS in environment)
        self.started.append((folder.name, Path(options.get("--first-step", "")).name, beside))
        source = Path(options["--first-step"]) if "--first-step" in options else None
        self.children.append(MadeUpChild(folder, folder.name in self.failing, source))
        return self.children[-1]


def executed(
    folder: Path, jobs: int, methods: Sequence[str], *, in_order: bool = False, **made_up: Any
) -> tuple[MadeUpChildren, list[PlannedRun]]:
    entrants = [entrant(method) for method in methods]
    schedule = plan_comparison(["demo"], entrants, seeds=[42, 43], out=folder).schedule
    children = MadeUpChildren(**made_up)
    pending = list(schedule.runs) if in_order else [run for run, _ in schedule.pending]
    console = Console()
    return children, Execution(Schedule(schedule.runs), console, jobs, children, pending, LatestLines(console)).run()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "PATIENCE", 0)


def test_several_at_once_begin_as_soon_as_their_step_0_is_there(tmp_path: Path) -> None:
    children, failed = executed(tmp_path, 3, ["ft", "mib", "ewc"])
    assert not failed
    assert max(len(beside) for *_, beside in children.started) == 2
    first = [name for name, *_ in children.started[:3]]
    assert first == ["ft-seed42", "ft-seed43", "ewc-seed42"]  # mib waits for ft
    shared = {name: source for name, source, _ in children.started}
    assert shared["mib-seed42"] == "ft-seed42"
    assert shared["mib-seed43"] == "ft-seed43"
    assert shared["ewc-seed43"] == ""


@pytest.mark.usefixtures("few_shapes")
@pytest.mark.parametrize(
    ("jobs", "in_order", "expected"),
    [
        (1, False, ["ft", "mib", "joint"]),
        (2, False, ["joint", "mib", "ft"]),
        (2, True, ["ft", "mib", "joint"]),
    ],
)
def test_of_several_at_once_the_longest_begin_first_unless_their_order_is_meant(
    jobs: int, in_order: bool, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = MadeUpChildren()
    monkeypatch.setattr(execution, "Children", lambda: children)
    entrants = [Entrant(method, written=method) for method in ("ft", "mib", "joint")]
    plan = plan_comparison(["demo"], entrants, seeds=[42], out=tmp_path)
    assert not execution.execute(plan.schedule, Console(), jobs, in_order=in_order)
    assert [name.removesuffix("-seed42") for name, *_ in children.started] == expected
    assert [source == "" for _, source, _ in children.started] == [True, False, False], "step 0 is trained once"
    assert children.more_threads == [jobs > 1, False, False], "both others wait for the first"


def test_one_that_shares_begins_while_the_other_trains_on(tmp_path: Path) -> None:
    children, _ = executed(tmp_path, 4, ["ft", "mib"])
    assert not any(children.more_threads), "another seed begins at once"
    assert children.started[2] == ("mib-seed42", "ft-seed42", ["ft-seed42", "ft-seed43"])


SOLVED = ["analytic", "analytic --analytic.width 256", "analytic --analytic.context 3"]


@pytest.mark.parametrize("jobs", [1, 2, 8])
@pytest.mark.parametrize("trained", [[], ["mib"]], ids=["alone", "beside a trained head"])
@pytest.mark.parametrize("in_order", [False, True])
def test_heads_that_are_solved_in_several_ways_share_one_network_and_prefer_one_with_a_trained_head(
    jobs: int, trained: list[str], in_order: bool, tmp_path: Path
) -> None:
    children, failed = executed(tmp_path, jobs, [*SOLVED, *trained], in_order=in_order)
    assert not failed
    (provider, none), *others = [(name, source) for name, source, _ in children.started if "seed42" in name]
    assert (provider.split("-")[0], none) == (trained[0] if trained else "analytic", "")
    assert {source for _, source in others} == {provider}
    assert len(others) == len(SOLVED) + len(trained) - 1


def test_where_step_0_is_there_all_that_share_it_begin_at_once(tmp_path: Path) -> None:
    executed(tmp_path, 1, ["mib"])
    children, failed = executed(tmp_path, 8, [*SOLVED, "mib"])
    assert not failed
    assert [len(beside) for *_, beside in children.started] == list(range(8))
    sources = [source for name, source, _ in children.started if name.startswith("analytic")]
    assert sources == ["mib-seed42", "mib-seed43"] * 3


def test_nothing_begins_with_a_step_0_whose_head_is_being_replaced(tmp_path: Path) -> None:
    (tmp_path / "demo" / "analytic-seed42" / "step-0").mkdir(parents=True)  # copied, and stopped before it was solved
    (tmp_path / "demo" / "analytic-seed42" / "step-0" / "scores.json").touch()
    children, failed = executed(tmp_path, 8, SOLVED)
    assert not failed
    started = {name: (source, beside) for name, source, beside in children.started}
    assert started["analytic-seed42"][0] == ""
    source, beside = started["analytic,analytic.width=256-seed42"]
    assert source == "analytic-seed42"
    assert source not in beside


def test_where_the_first_one_fails_the_next_trains_its_own_step_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    children, failed = executed(tmp_path, 4, ["ft", "mib", "ucd"], failing=["ft-seed42"])
    assert [run.folder.name for run in failed] == ["ft-seed42"]
    shared = {name: source for name, source, _ in children.started}
    assert (shared["mib-seed42"], shared["ucd-seed42"]) == ("", "mib-seed42")
    said = capsys.readouterr().out.splitlines()
    assert f"failed: {tmp_path}/demo/ft-seed42 (the disk is full)" in said
    assert f"done: {tmp_path}/demo/ft-seed43" in said


def test_a_run_that_ends_because_it_was_asked_to_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = MadeUpChildren.start

    def asked_soon(self: MadeUpChildren, *given: Any) -> MadeUpChild:
        self.asked_to_stop = True
        return original(self, *given)

    monkeypatch.setattr(MadeUpChildren, "start", asked_soon)
    with pytest.raises(Stopped):
        executed(tmp_path, 2, ["ft", "mib"], failing=["ft-seed42"])
    assert "failed" not in capsys.readouterr().out


def test_asked_to_stop_nothing_more_begins(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="run the same command again"):
        executed(tmp_path, 2, ["ft", "mib"], asked_to_stop=True)
    assert not list(tmp_path.iterdir())
