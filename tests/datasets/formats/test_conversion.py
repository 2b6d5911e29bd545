"""Every format through the commands: read directly, converted, and what is kept of it."""

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from command_line import run
from exports import WRITERS, write_coco, write_cvat, write_json, write_labelme, write_pictures, write_yolo
from incseg.config import DataConfig
from incseg.datasets import open_source
from incseg.datasets.formats import detection
from incseg.datasets.formats.conversion import distinct_names
from incseg.datasets.formats.detection import FORMATS, format_names
from incseg.datasets.source import Validation
from incseg.errors import InputError
from samples import write_folder

UNDIVIDED = {"labelme", "cvat", "cvat masks"}  # of the exports written here, those without parts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "incseg" / "converted"


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_converted_is_what_is_read_directly(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = WRITERS[name](tmp_path / "export")
    out = tmp_path / "converted"
    assert run("data", "convert", root, "--out", out) == 0
    said = capsys.readouterr().out
    assert said.startswith("reading data as ")
    assert f"incseg data check folder --data-root {out}" in said
    direct, converted = open_source("folder", root), open_source("folder", out)
    assert {path.name for path in out.iterdir()} == {"images", "masks", "classes.txt", "train.txt", "val.txt"}
    assert converted.notes == ()
    assert direct.classes == converted.classes
    for one, other in ((direct.train, converted.train), (direct.val, converted.val)):
        assert len(one) > 0
        assert list(one.ids) == list(other.ids)
        for index in range(len(one)):
            assert (one.image(index) == other.image(index)).all()
            assert (one.mask(index) == other.mask(index)).all()
            assert one.mask(index).unique().numel() > 1


@pytest.mark.parametrize("name", WRITERS)
def test_a_split_of_the_export_is_told_from_images_that_we_chose(name: str, tmp_path: Path) -> None:
    root = WRITERS[name](tmp_path / "export")
    for source in (open_source("folder", root), open_source("folder", root)):  # painted, then from the cache
        assert source.validation.given == (name not in UNDIVIDED)
        assert sum(map(len, source.to_score())) == (3 if name in UNDIVIDED else 1)


def test_test_images_may_be_given_for_validation_but_a_single_split_gives_none(tmp_path: Path) -> None:
    both, single = (write_coco(tmp_path / name) for name in ("both", "single"))
    (both / "annotations" / "instances_val.json").rename(both / "annotations" / "instances_test.json")
    source = open_source("folder", both)
    assert source.validation == Validation(given=True, words="that it keeps for testing")
    assert [list(split.ids) for split in source.to_score()] == [["c"]]
    (single / "annotations" / "instances_val.json").unlink()
    source = open_source("folder", single)
    assert not source.validation.given
    assert sorted(name for split in source.to_score() for name in split.ids) == ["a", "b"]


def test_check_says_the_format_and_shows_the_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_coco(tmp_path / "export")
    sheet = tmp_path / "sheet.png"
    assert run("data", "check", "folder", "--data-root", root, "--out", sheet, "--unlabelled", "ignore") == 0
    said = capsys.readouterr().out
    files = "annotations/instances_train.json, annotations/instances_val.json"
    assert said.startswith(f"reading data as COCO JSON: {files}, 3 images, 2 classes\n")
    assert sheet.is_file()


def test_masks_are_painted_once_and_again_when_anything_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_labelme(tmp_path / "export")
    first = open_source("folder", root)
    monkeypatch.setattr(detection, "FORMATS", ())  # whoever reads the export again finds nothing
    again = open_source("folder", root)
    assert again.notes == first.notes
    assert again.train.fingerprint() == first.train.fingerprint()
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(detection, "FORMATS", FORMATS)
    assert open_source("folder", root, DataConfig(unlabelled="ignore")).train.mask(0)[0, 0] == 255
    (root / "a.json").write_text((root / "a.json").read_text().replace('"cat"', '"dog"'))
    os.utime(root / "a.json", (1, 1))
    assert open_source("folder", root).classes == ("background", "box", "cat", "dog")
    assert len(list(cache.iterdir())) == 3


def test_nothing_is_kept_of_a_reading_that_failed_and_all_problems_are_counted(tmp_path: Path, cache: Path) -> None:
    root = write_coco(tmp_path / "export")
    for name in ("a", "b"):
        Image.new("RGB", (9, 9)).save(root / "images" / "train" / f"{name}.jpg")
    with pytest.raises(InputError, match=r"but the image is 9×9.* There are 1 more problems"):
        open_source("folder", root)
    assert list(cache.iterdir()) == []
    assert run("data", "convert", root, "--out", tmp_path / "out") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "export"]


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path, cache: Path) -> None:
    cache.parent.parent.touch()  # a file where a folder should be
    with pytest.raises(InputError, match="cannot be used as a folder"):
        open_source("folder", write_cvat(tmp_path / "export"))


def test_training_reads_an_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_yolo(tmp_path / "export")
    assert run("data", "split", "folder/1-1/overlapped", "--data-root", root, "--data.unlabelled", "ignore") == 0
    captured = capsys.readouterr()
    assert "reading data as Ultralytics YOLO: data.yaml, 3 images, 2 classes" in captured.err
    assert captured.out == "step 0: 2 images, classes box\nstep 1: 2 images, classes cat\n"


def test_the_share_kept_for_validation_is_a_setting(tmp_path: Path) -> None:
    root = write_cvat(tmp_path / "export")
    xml = (root / "annotations.xml").read_text()
    for index in range(17):
        write_pictures(root / "images", [f"{index}.jpg"])
        xml = xml.replace("</annotations>", f'<image id="9" name="{index}.jpg" width="48" height="40"/></annotations>')
    (root / "annotations.xml").write_text(xml)
    assert len(open_source("folder", root).val) == 4
    assert len(open_source("folder", root, DataConfig(validation_share=0.5)).val) == 10


@pytest.mark.parametrize(
    ("write", "options", "message"),
    [
        (
            write_coco,
            ["--from", "cocoo"],
            "'cocoo' is not a format: choose from auto, yolo, coco, .* Did you mean 'coco'?",
        ),
        (write_coco, ["--from", "cvat"], "does not look like cvat"),
        (write_coco, ["--validation-share", "2"], "must lie between 0 and 1"),
        (write_coco, ["--unlabelled", "maybe"], "maybe"),
        (lambda root: write_folder(root, 2, 1, 32), [], "is in incseg's own layout already"),
        (lambda root: root.mkdir() or root, [], "is in no format that is known"),
        (lambda root: root, [], "is not a folder: unpack the export"),
    ],
)
def test_what_cannot_be_converted_is_said(
    write: Callable[[Path], Path], options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write(tmp_path / "export")
    assert run("data", "convert", root, "--out", tmp_path / "out", *options) == 2
    error = capsys.readouterr().err.strip()
    assert re.search(message, error), error
    assert not (tmp_path / "out").exists()


def test_folders_that_hold_something_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_coco(tmp_path / "export")
    assert run("data", "convert", root, "--out", root / "inside") == 2
    assert run("data", "convert", root, "--out", root / "images") == 2
    assert "is inside" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert run("data", "convert", root, "--out", tmp_path / "full") == 2
    assert "is not empty" in capsys.readouterr().err


def test_settings_of_formats_are_refused_for_datasets_that_have_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--data\.unlabelled is for folders of your own, not for voc"):
        open_source("voc", tmp_path, DataConfig(unlabelled="ignore"))


@pytest.mark.parametrize(("module", "write"), [("pycocotools", write_coco), ("pyarrow", WRITERS["parquet"])])
def test_a_missing_library_is_named(
    module: str, write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "export")
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    with pytest.raises(InputError, match=rf"needs {module}: pip install 'incseg\["):
        open_source("folder", root)


def test_names_are_distinct_and_short_where_possible() -> None:
    assert distinct_names(["a/x.jpg", "a/y.jpg"]) == ["x", "y"]
    assert distinct_names(["a/x.jpg", "b\\x.jpg"]) == ["a_x", "b_x"]
    assert distinct_names(["a/x.jpg", "a/x.png"]) == ["a_x_jpg", "a_x_png"]
    with pytest.raises(InputError, match="two images are called 'a_x_jpg'"):
        distinct_names(["a/x.jpg", "a/x.jpg"])


def test_the_setting_names_every_format() -> None:
    described = DataConfig.model_fields["format"].description or ""
    assert all(name in described for name in format_names())


def test_json_of_another_kind_is_no_format(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", 2, 1, 32)
    write_json(root / "notes.json", {"images": 3})
    assert open_source("folder", root).notes == ()
