from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from incseg.bench import gathering
from incseg.bench.gathering import benchmark_extend
from incseg.bench.measure import Step
from incseg.models import Segmenter


def test_the_cost_of_an_extension_is_told_in_forward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "HEIGHT", 64)
    monkeypatch.setattr(gathering, "WIDTH", 64)
    images_seen = 0
    body = Segmenter.body

    def counted(segmenter: Segmenter, images: Tensor, **wanted: bool) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        nonlocal images_seen
        images_seen += len(images)
        return body(segmenter, images, **wanted)

    def images_per_step(steps: Sequence[Step], **_: int) -> list[float]:
        """In place of a clock, which another process can disturb: what each step sends through the network."""
        counts = []
        for step in steps:
            before = images_seen
            step()
            counts.append(float(images_seen - before))
        return counts

    monkeypatch.setattr(Segmenter, "body", counted)
    monkeypatch.setattr(gathering, "median_milliseconds_in_turns", images_per_step)
    threads = torch.get_num_threads()
    table = benchmark_extend("test_resnet", widths=[32], device="cpu")
    assert torch.get_num_threads() == threads
    width = int(table.rows[0][0].split()[0])
    assert width >= 1024
    assert [row[0] for row in table.rows] == [f"{width} (default)", f"{width} (default), mirrored too", "32"]
    assert [row[1:3] for row in table.rows] == [["1.0", "1.00"], ["2.0", "2.00"], ["1.0", "1.00"]]
    assert float(table.rows[0][4]) == pytest.approx(8 * (width * (width + 1) / 2 + width * 21) / 1e6, abs=0.1)
