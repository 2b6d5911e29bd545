"""What a run makes of a folder with damaged files."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from incseg.engine.checkpoint import Checkpoint
from incseg.engine.recovery import recover
from incseg.errors import DamagedError
from incseg.run_folder import RunFolder, metrics_line


def flip(path: Path, place: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(100)))


def missing(path: Path) -> None:
    path.unlink()


DAMAGE = (flip, cut, empty, foreign)


def recovered(folder: RunFolder) -> list[str]:
    said: list[str] = []
    recover(folder, said.append)
    return said


@pytest.mark.parametrize("damage", [*DAMAGE, missing])
@pytest.mark.parametrize("name", ["scores", "model", "memory"])
def test_a_step_with_a_damaged_file_is_not_finished(name: str, damage: Callable[[Path], None], tiny_run: Path) -> None:
    folder = RunFolder(tiny_run)
    assert recovered(folder) == []
    if name == "scores" and damage is missing:
        return  # that is how an unfinished step looks
    path: Path = getattr(folder, name)(1)
    damage(path)
    (said,) = recovered(folder)
    assert str(path) in said
    assert "step 1 is learnt again" in said
    assert folder.finished_steps == [0]
    assert recovered(folder) == []


def checkpoint(iteration: int) -> Checkpoint:
    return Checkpoint(1, iteration, {"w": torch.full((64,), float(iteration))}, {"state": {}}, {})


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_checkpoint_before_a_damaged_one_is_taken(damage: Callable[[Path], None], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for iteration in (3, 6, 9):
        checkpoint(iteration).save(folder)
    assert (last := Checkpoint.load(folder, 1)) is not None
    assert last.iteration == 9
    assert Checkpoint.load(folder, 0) is None, "it is of another step"
    damage(folder.checkpoint)
    with pytest.raises(DamagedError, match=r"checkpoint\.pt is damaged"):
        Checkpoint.load(folder, 1)
    (said,) = recovered(folder)
    assert str(folder.checkpoint) in said
    assert (before := Checkpoint.load(folder, 1)) is not None
    assert before.iteration == 6
    damage(folder.checkpoint_before)
    assert len(recovered(folder)) == 1
    assert Checkpoint.load(folder, 1) is None
    assert not folder.has_weights, "pretrained weights must be loaded again"


def test_any_flipped_bit_of_a_checkpoint_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    checkpoint(3).save(folder)
    size = folder.checkpoint.stat().st_size
    data, noticed = folder.checkpoint.read_bytes(), 0
    for index in range(0, size, 7):
        folder.checkpoint.write_bytes(data[:index] + bytes([data[index] ^ 1 << index % 8]) + data[index + 1 :])
        try:
            found = Checkpoint.read(folder.checkpoint)
        except DamagedError:
            noticed += 1
        else:  # padding, or the time of a part of the archive
            assert (found.step, found.iteration, found.optimizer) == (1, 3, {"state": {}})
            assert torch.equal(found.model["w"], torch.full((64,), 3.0))
    assert noticed > 20


def test_a_checkpoint_of_before_is_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    torch.save(vars(checkpoint(3)), folder.checkpoint)
    assert recovered(folder) == []
    assert (found := Checkpoint.load(folder, 1)) is not None
    assert found.iteration == 3


@pytest.mark.parametrize("content", [{"step": 1}, [1], {"step": 1, "format": 2}])
def test_a_foreign_archive_is_no_checkpoint(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(DamagedError, match=r"checkpoint\.pt"):
        Checkpoint.read(tmp_path / "checkpoint.pt")
    with io.BytesIO() as other, zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a.txt", "b")
        archive.close()
        (tmp_path / "checkpoint.pt").write_bytes(other.getvalue())
    with pytest.raises(DamagedError, match="is no checkpoint"):
        Checkpoint.read(tmp_path / "checkpoint.pt")


def test_leftovers_are_cleared_and_the_log_is_mended(tiny_run: Path) -> None:
    folder = RunFolder(tiny_run)
    leftovers = [folder.path / ".checkpoint.pt.123", folder.step(0) / ".model.safetensors.0a0b0c0d-9.partial"]
    for path in leftovers:
        path.touch()
    lines = [metrics_line({"step": "step 0", "iteration": i}) for i in range(3)]
    folder.metrics.write_text("\n".join([lines[0], lines[1].replace("1", "7", 1), lines[2], '{"cut']))
    folder.result.write_text(json.dumps({"format": 1}))
    said = recovered(folder)
    assert not any(path.exists() for path in leftovers)
    assert folder.metrics.read_text() == f"{lines[0]}\n{lines[2]}\n"
    assert [name in line for name, line in zip(("result.json", "metrics.jsonl"), said, strict=True)] == [True, True]
    assert (folder.path / "result.json.damaged").exists()
