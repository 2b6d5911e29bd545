from pathlib import Path
from typing import Any

import pytest
import torch

from incseg.bench import iteration as step
from incseg.bench.iteration import benchmark_step
from incseg.config import HeadKind
from incseg.engine.quick_network import student_network
from incseg.errors import InputError
from incseg.models import Architecture, Segmenter


def test_every_method_is_measured_beside_ft(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "quick.yaml"
    recipe.write_text(
        "protocol: folder/2-2/overlapped\ndata: {crop_size: 64, workers: 0}\noptim: {batch_size: 4}\n"
        "model: {encoder: test_resnet, weights: none}\n"
    )
    monkeypatch.setattr(step, "median_milliseconds_in_turns", lambda runs, **_: [run() or 5.0 for run in runs])
    monkeypatch.setattr(step, "peak_extra_bytes", lambda run, _: run() or 2**30)
    compiled = []

    def noted(*given: Any, **settings: Any) -> Any:
        compiled.append(settings["compiled"])
        return student_network(*given, **settings)

    monkeypatch.setattr("incseg.engine.training_iteration.student_network", noted)
    methods: dict[str, dict[str, Any]] = {name: {"method": name} for name in ("mib", "ewc")}
    methods["mib, weak"] = {"method": "mib", "mib": {"kd_weight": 1.0}}
    table = benchmark_step(methods, str(recipe), tiny_folder, device="cpu")
    assert compiled
    assert all(compiled), "as in a long run"
    assert [row[0] for row in table.rows] == ["ft", "mib", "ewc", "mib, weak"]
    assert table.rows[1][1:] == ["5.0", "1.00", "1.00"]


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
@pytest.mark.parametrize("foreground", [0.0, 0.3, 1.0])
def test_an_untrained_teacher_finds_its_classes_in_the_share_asked_for(head: HeadKind, foreground: float) -> None:
    torch.manual_seed(1)
    teacher = Segmenter(Architecture(encoder="test_resnet", decoder="deeplabv3plus", head=head), [3, 2]).eval()
    images = torch.randint(0, 256, (4, 3, 128, 128), dtype=torch.uint8)
    step.find_in(teacher, images, foreground)
    found = (teacher(images).logits.argmax(dim=1) > 0).float().mean().item()
    assert found == pytest.approx(foreground, abs=0.01)


def test_a_share_beyond_all_pixels_is_refused() -> None:
    with pytest.raises(InputError, match=r"--foreground 1\.5 is no share"):
        benchmark_step({"mib": {"method": "mib"}}, foreground=1.5)


def test_a_single_step_is_refused() -> None:
    with pytest.raises(InputError, match="shapes/offline has a single step"):
        benchmark_step({"mib": {"method": "mib"}}, "shapes/offline")
