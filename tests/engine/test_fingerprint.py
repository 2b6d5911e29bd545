"""Data that changed since a run began is refused with what changed."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import run
from exports import write_coco
from incseg.config import DataConfig
from incseg.curriculum import build_curriculum
from incseg.engine.fingerprint import check_data, fingerprint, record_data
from incseg.errors import InputError
from incseg.protocol import Protocol
from incseg.run_folder import RunFolder
from samples import write_folder


def swap_classes(root: Path) -> None:
    names = (root / "classes.txt").read_text().split()
    (root / "classes.txt").write_text("\n".join([names[0], names[2], names[1], *names[3:]]))


def rename_class(root: Path) -> None:
    (root / "classes.txt").write_text((root / "classes.txt").read_text().replace("disc", "plate"))


def add_image(root: Path) -> None:
    for folder in ("images", "masks"):
        (root / folder / "zzz.png").write_bytes((root / folder / "001.png").read_bytes())


def delete_image(root: Path) -> None:
    for folder in ("images", "masks"):
        (root / folder / "002.png").unlink()


def change_mask(root: Path) -> None:
    (root / "masks" / "003.png").write_bytes((root / "masks" / "004.png").read_bytes())


def move(root: Path) -> None:
    root.rename(root.parent / "elsewhere")


def list_others(root: Path) -> None:
    names = sorted(path.stem for path in (root / "images").iterdir())
    (root / "val.txt").write_text("\n".join([*names[::5], names[1]]))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (swap_classes, r"the classes are others \('disc' is now 'square'\)"),
        (rename_class, r"the classes are others \('disc' is now 'plate'\)"),
        (add_image, "images/zzz.png, masks/zzz.png are new"),
        (delete_image, "images/002.png, masks/002.png are gone"),
        (change_mask, "masks/003.png is changed"),
        (move, "it was .*/data and is .*/elsewhere"),
        (list_others, "the lists of images are others"),
    ],
)
def test_a_change_is_named(change: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    root, folder = write_folder(tmp_path / "data", train=16, val=5), RunFolder(tmp_path / "run")
    for lists in ("train.txt", "val.txt"):  # without them every image counts
        (root / lists).unlink(missing_ok=True)

    def seen(place: Path) -> dict[str, object]:
        data = DataConfig(root=place)
        return fingerprint(build_curriculum(Protocol.parse("folder/2-2/overlapped"), data), data.root)

    check_data(folder, seen(root), accept=False)  # nothing recorded yet, as in runs of before
    record_data(folder, seen(root))
    check_data(folder, seen(root), accept=False)
    change(root)
    after = seen(root if root.exists() else tmp_path / "elsewhere")
    with pytest.raises(InputError, match=f"has changed since it began: {said}.*--data.changed accept"):
        check_data(folder, after, accept=False)
    check_data(folder, after, accept=True)
    record_data(folder, after)
    check_data(folder, after, accept=False)


def test_of_an_export_the_annotations_have_changed_and_not_what_was_painted_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root, folder = write_coco(tmp_path / "coco"), RunFolder(tmp_path / "run")

    def seen() -> dict[str, Any]:
        return fingerprint(build_curriculum(Protocol.parse("folder/offline"), DataConfig(root=root)), root)

    record_data(folder, seen())
    check_data(folder, seen(), accept=False)
    file = root / "annotations" / "instances_train.json"
    labels = json.loads(file.read_text())
    labels["annotations"].pop()
    file.write_text(json.dumps(labels))
    with pytest.raises(
        InputError, match=r"its annotations, or the files beside them, are not as they were\. Put it back"
    ):
        check_data(folder, seen(), accept=False)


def test_a_finished_run_learns_nothing_from_changed_data_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_folder(tmp_path / "data", train=8, val=3)
    command = ["folder/offline", "--data-root", str(root), "--method", "ft", "--out", str(tmp_path / "run"),
               "--model.encoder", "test_resnet", "--model.weights", "none", "--optim.epochs", "1", "--optim.batch-size",
               "4", "--data.crop-size", "64", "--data.workers", "0", "--engine.accelerator", "cpu"]  # fmt: skip
    assert run("train", *command) == 0
    assert run("train", *command, "--data.changed", "accept") == 0, "nothing has changed"
    change_mask(root)
    capsys.readouterr()
    assert run("train", *command, "--data.changed", "accept") == 2
    assert "is finished and has learnt from the data as it was: choose another --out" in capsys.readouterr().err


def test_contents_recorded_by_a_full_check_decide(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", train=6, val=3)
    folder, mask = RunFolder(tmp_path / "run"), root / "masks" / "003.png"
    check = ("data", "check", "folder", "--data-root", root, "--out", tmp_path / "sheet.png", "--full")

    def here() -> dict[str, Any]:
        return fingerprint(build_curriculum(Protocol.parse("folder/2-2/overlapped"), DataConfig(root=root)), root)

    assert run(*check) == 0
    record_data(folder, here())
    os.utime(mask, (1, 1))
    with pytest.raises(InputError, match=r"masks/003.png is changed"):  # its content is not known any more
        check_data(folder, here(), accept=False)
    assert run(*check) == 0
    check_data(folder, here(), accept=False)  # it is the same
    facts, data = mask.stat(), bytearray(mask.read_bytes())
    data[data.index(b"IEND") - 5] ^= 1  # the same size and time, another content
    mask.write_bytes(data)
    os.utime(mask, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    check_data(folder, here(), accept=False)  # nobody has looked
    assert run(*check) == 2
    with pytest.raises(InputError, match=r"masks/003.png is changed"):
        check_data(folder, here(), accept=False)
