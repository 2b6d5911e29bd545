"""Whole preparations from a web of our own, with archives shaped like the real ones."""

import hashlib
import shutil
import sys
import tarfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from incseg import cli
from incseg.datasets import ReportProgress, dataset_entry, open_source
from incseg.datasets import prepare as datasets
from incseg.datasets.archives import Archive
from incseg.datasets.source import DATASETS
from incseg.errors import InputError
from incseg.images import index_image
from samples import write_ade20k, write_cityscapes
from web import Web

# Of VOC's own lists, c is in val and in the other dataset's train as well: it must not be learnt from.
OWN_TRAIN, OWN_VAL, THEIR_TRAIN, THEIR_VAL = ["b"], ["c", "e"], ["a", "c"], ["b", "d"]


def unwatched(_: str) -> AbstractContextManager[ReportProgress]:
    return nullcontext(lambda *_: None)


def offer(web: Web, path: Path) -> Archive:
    web.files[path.name] = path.read_bytes()
    return Archive(f"{web.address}/{path.name}", hashlib.md5(path.read_bytes()).hexdigest(), "small")


def write_lists(folder: Path, **lists: list[str]) -> None:
    folder.mkdir(parents=True)
    for name, lines in lists.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def make_voc(root: Path) -> Path:
    """VOC as it comes: photographs of all, masks (all pixels of class 7, with an ignored column) of its own lists."""
    voc = root / "VOCdevkit" / "VOC2012"
    write_lists(voc / "ImageSets" / "Segmentation", train=OWN_TRAIN, val=OWN_VAL)
    for folder in ("JPEGImages", "SegmentationClass"):
        (voc / folder).mkdir()
    for name in "abcde":
        Image.new("RGB", (6, 4)).save(voc / "JPEGImages" / f"{name}.jpg")
    for name in OWN_TRAIN + OWN_VAL:
        ids = np.full((4, 6), 7, np.uint8)
        ids[:, 0] = 255
        index_image(ids).save(voc / "SegmentationClass" / f"{name}.png")
    return root


def make_boundaries(root: Path) -> Path:
    """The Semantic Boundaries Dataset as it comes: MATLAB structures; here all pixels of class 9."""
    scipy_io = pytest.importorskip("scipy.io")
    inside = root / "benchmark_RELEASE" / "dataset"
    write_lists(inside, train=THEIR_TRAIN, val=THEIR_VAL)
    (inside / "cls").mkdir()
    for name in (*THEIR_TRAIN, *THEIR_VAL):
        mask = {"Segmentation": np.full((4, 6), 9, np.uint8), "CategoriesPresent": np.array([[9]], np.uint8)}
        scipy_io.savemat(inside / "cls" / f"{name}.mat", {"GTcls": mask}, do_compression=True)
    return root


def packed(folder: Path, name: str) -> Path:
    path = folder.parent / name
    if name.endswith("zip"):
        return Path(shutil.make_archive(str(path.with_suffix("")), "zip", folder))
    with tarfile.open(path, "w:gz" if name.endswith("tgz") else "w") as file:
        for inside in folder.iterdir():
            file.add(inside, inside.name)
    return path


def test_voc_with_its_augmented_masks(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "VOC", offer(web, packed(make_voc(tmp_path / "voc"), "VOCtrainval.tar")))
    monkeypatch.setattr(datasets, "BOUNDARIES", offer(web, packed(make_boundaries(tmp_path / "sbd"), "benchmark.tgz")))
    source = datasets.prepare("voc", tmp_path / "root", unwatched)
    assert list(source.train.ids) == ["a", "b", "d"]  # sorted; what VOC scores on is left out
    assert list(source.val.ids) == ["c", "e"]
    assert [source.train.mask(i).unique().tolist() for i in range(3)] == [[9], [7, 255], [9]]  # VOC's own where it has
    assert source.val.mask(0).unique().tolist() == [7, 255]


def test_without_scipy_it_says_so_before_any_download(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(InputError, match="pip install scipy"):
        datasets.prepare("voc", tmp_path / "root", unwatched)
    assert not web.requests


def test_ade20k_from_the_command_line(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ade20k(tmp_path / "made" / "ADEChallengeData2016", {"a": [0, 1], "b": [2]}, {"c": [3]})
    monkeypatch.setattr(datasets, "ADE20K", offer(web, packed(tmp_path / "made", "ADEChallengeData2016.zip")))
    monkeypatch.setitem(DATASETS._items, "ade20k", replace(dataset_entry("ade20k"), published_images=(2, 1)))
    web.breaks_after = 700
    assert cli.main(["data", "prepare", "ade20k", "--root", str(tmp_path / "root")]) == 0
    shown = capsys.readouterr()
    assert f"ade20k is ready in {tmp_path / 'root'}: 2 images to learn from, 1 to be scored on." in shown.out
    assert "unpacking ADEChallengeData2016.zip: 100 %" in shown.err
    assert len(web.requests) > 2
    assert len(open_source("ade20k", tmp_path / "root").train) == 2


def test_what_is_ready_is_left_alone(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"{i:05d}": [0] for i in range(3)}
    root = write_ade20k(tmp_path, names, names)
    monkeypatch.setattr(datasets, "ADE20K", Archive(f"{web.address}/no.zip", "", ""))
    complete = replace(dataset_entry("ade20k"), published_images=(3, 3))
    monkeypatch.setattr(datasets, "dataset_entry", lambda _: complete)
    assert len(datasets.prepare("ade20k", root, unwatched).train) == 3
    assert not web.requests
    (root / "images/training/00000.jpg").unlink()
    with pytest.raises(InputError, match="answers 404"):
        datasets.prepare("ade20k", root, unwatched)


def test_cityscapes_says_what_to_get_and_unpacks_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(InputError, match=r"get leftImg8bit_trainvaltest\.zip and gtFine_trainvaltest\.zip from https"):
        datasets.prepare("cityscapes", root, unwatched)
    made = write_cityscapes(tmp_path / "made", {"ulm_0_0": [7], "ulm_0_1": [26]}, {"ulm_0_2": [7]})
    for part in ("leftImg8bit", "gtFine"):
        (tmp_path / part).mkdir()
        (made / part).rename(tmp_path / part / part)
        packed(tmp_path / part, f"{part}_trainvaltest.zip").rename(root / f"{part}_trainvaltest.zip")
    source = datasets.prepare("cityscapes", root, unwatched)
    assert (len(source.train), len(source.val)) == (2, 1)
    assert cli.main(["data", "prepare", "cityscapes", "--root", str(root)]) == 1
    said = capsys.readouterr()
    assert "2 of the published 2975 training images" in said.err
    assert "is ready" not in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["folder", "--root", "x"], "'folder' needs no preparation"),
        (["shapes", "--root", "x"], "'shapes' needs no preparation: embedded"),
        (["vox", "--root", "x"], "Did you mean 'voc'?"),
        (["cityscapes", "--root", "x"], "put them into x, and run the same command again"),
    ],
)
def test_bad_input_gets_one_sentence(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["data", "prepare", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def test_a_root_that_cannot_be_written(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "ADE20K", Archive(f"{web.address}/x.zip", "", ""))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"below cannot be used as a folder: .*file is a file"):
        datasets.prepare("ade20k", tmp_path / "file" / "below", unwatched)
