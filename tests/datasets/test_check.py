import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from incseg import cli
from incseg.colours import DISTINCT
from incseg.datasets import dataset_entry
from incseg.datasets.check import examine, varied_images
from incseg.fonts import font_for
from incseg.images import read_mask
from incseg.report.dataset_check import picture_sheet
from samples import stripes, write_cityscapes, write_folder

ROAD, CAR, VOID = 7, 26, 4


@pytest.fixture
def city(tmp_path: Path) -> Path:
    train = {f"ulm_0_{i}": [ROAD, ROAD, CAR, VOID] for i in range(6)}
    return write_cityscapes(tmp_path / "city", train, {"ulm_0_9": [ROAD]})


def mask(city: Path, index: int) -> Path:
    return city / f"gtFine/train/ulm/ulm_0_{index}_gtFine_labelIds.png"


def image(city: Path, index: int) -> Path:
    return city / f"leftImg8bit/train/ulm/ulm_0_{index}_leftImg8bit.png"


def harm(city: Path) -> None:
    """One of everything."""
    mask(city, 0).unlink()
    image(city, 1).write_bytes(image(city, 1).read_bytes()[:-30])
    Image.new("RGB", (8, 4), "red").save(mask(city, 2))
    Image.new("L", (9, 4)).save(mask(city, 3))
    Image.new("L", (8, 4), color=77).save(mask(city, 4))


def test_pixels_and_images_are_counted_by_class(city: Path) -> None:
    source = dataset_entry("cityscapes").open(city)
    seen: list[int] = []
    findings = examine(source.train, source.classes, lambda done, _: seen.append(done))
    assert findings.images == 6
    assert findings.pixels[[0, 1, 14, 255]].tolist() == [0, 6 * 16, 6 * 8, 6 * 8]  # stripes of 2×4 pixels
    assert findings.shown_by[[0, 1, 14, 255]].tolist() == [0, 6, 6, 6]
    assert not any(findings.problems.values())
    assert seen == [1, 2, 3, 4, 5, 6]


def test_everything_that_is_wrong_is_named_not_just_the_first(city: Path) -> None:
    harm(city)
    source = dataset_entry("cityscapes").open(city)
    findings = examine(source.train, source.classes)
    kinds = {kind: sentences for kind, sentences in findings.problems.items() if sentences}
    assert [len(sentences) for sentences in kinds.values()] == [1, 1, 2, 1]
    assert kinds["missing files"] == [f"{mask(city, 0)} is missing."]
    assert str(image(city, 1)) in kinds["unreadable images"][0]
    assert "RGB colours" in kinds["unusable masks"][0]
    assert "is 9×4 but its image is 8×4" in kinds["unusable masks"][1]
    assert "holds the id 77" in kinds["unknown ids"][0]
    assert list(findings.usable) == [5]
    assert [findings.refused[index] for index in range(5)] == [
        "missing files", "unreadable images", "unusable masks", "unusable masks", "unknown ids",
    ]  # fmt: skip


def test_pictures_show_as_many_classes_as_possible() -> None:
    usable = {0: frozenset({1}), 1: frozenset({1, 2}), 2: frozenset({3}), 3: frozenset({1, 2, 4})}
    assert varied_images(usable, 3) == [3, 2, 1]
    assert varied_images(usable, 1) == [3, 2], "as many as it takes to show every class"
    assert varied_images({}, 3) == []


def test_a_good_dataset_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    root = write_folder(tmp_path / "data", train=5, val=2, size=32)
    assert cli.main(["data", "check", "folder", "--data-root", str(root)]) == 0
    shown = capsys.readouterr().out
    assert "triangle" in shown
    with Image.open(tmp_path / "runs" / "folder-check.png") as sheet:
        assert len(np.unique(np.array(sheet.convert("RGB")).reshape(-1, 3), axis=0)) > 50


def test_names_outside_the_plots_font_do_not_warn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, out = write_folder(tmp_path / "data", train=2, val=2, size=32), tmp_path / "sheet.png"
    names = (root / "classes.txt").read_text().splitlines()
    (root / "classes.txt").write_text("\n".join([names[0], "犬", *names[2:]]), encoding="utf-8")
    monkeypatch.setattr("incseg.fonts._installed", lambda: ())  # as on a machine without fonts for it
    monkeypatch.setattr("incseg.fonts.font_for", font_for.__wrapped__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cli.main(["data", "check", "folder", "--data-root", str(root), "--out", str(out)]) == 0
    assert out.exists()


def test_a_bad_one_ends_with_exit_code_2_and_says_what_to_look_at(
    city: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harm(city)
    out = tmp_path / "sheet.png"
    assert cli.main(["data", "check", "cityscapes", "--data-root", str(city), "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert "Not the complete dataset" in captured.out
    assert f"{mask(city, 0)} is missing." in captured.out.splitlines()
    assert captured.err.strip().splitlines()[-1] == f"incseg: cityscapes in {city} has 5 problem(s), named above."
    assert out.exists()


def test_a_truncated_mask_is_named_as_the_mask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_folder(tmp_path / "data", train=4, val=1, size=32)
    broken = root / "masks" / "001.png"
    broken.write_bytes(broken.read_bytes()[:-60])
    sentence = f"the mask {broken} cannot be read (image file is truncated); is it complete?"
    found = examine(dataset_entry("folder").read(root).train, ("background", "disc", "square", "triangle", "cross"))
    assert found.problems["unusable masks"] == [sentence]
    assert cli.main(["data", "split", "folder/2-2", "--data-root", str(root)]) == 2
    assert sentence in capsys.readouterr().err


def test_the_sheet_shows_every_class_and_files_that_were_refused(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "data", train=14, val=1, size=32)
    for index in range(13):
        stripes([0, 1] * 8, height=32).save(root / "masks" / f"{index:03d}.png")
    stripes([0, 2] * 8, height=32).save(root / "masks" / "013.png")
    stripes([0, 3] * 8, height=32).save(root / "masks" / "014.png")
    source = dataset_entry("folder").read(root)
    found = {"training": examine(source.train, source.classes), "validation": examine(source.val, source.classes)}
    titles, names = titles_and_legend(picture_sheet(source, found, DISTINCT))
    assert {"013", "014"} < set(titles), "the only ones that show square and triangle"
    assert names == ["disc", "square", "triangle"]
    for path in (root / "masks").iterdir():
        Image.new("RGB", (32, 32), "red").save(path)
    found = {"training": examine(source.train, source.classes), "validation": examine(source.val, source.classes)}
    titles, names = titles_and_legend(picture_sheet(source, found, DISTINCT))
    assert titles == [f"{index:03d}: unusable masks" for index in range(12)]
    assert names == []


def titles_and_legend(sheet: Figure) -> tuple[list[str], list[str]]:
    titles = [cell.get_title() for cell in sheet.axes]
    return [title for title in titles if title], [
        text.get_text() for each in sheet.legends for text in each.get_texts()
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "citiscapes"], "Did you mean 'cityscapes'?"),
        (["check", "ade20k"], "needs its folder: give --data-root DIR"),
        (["check", "ade20k", "--data-root", "/nowhere"], "/nowhere is not a folder"),
        (["check", "voc", "--optim.epochs", "3"], "are taken only by 'incseg data split'"),
        (["split", "voc/15-5"], "needs its folder"),
        (["split", "voc/15-4", "--data-root", "."], "does not look like VOC"),
        (["split", "nonsense"], "is not a protocol"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def change_ids_silently(path: Path) -> None:
    """Change a pixel as a flipped bit sometimes does: it decodes without an error, and only the checksum is wrong."""
    data, ids = path.read_bytes(), read_mask(path)
    start = data.index(b"IDAT")
    end = start + 4 + int.from_bytes(data[start - 4 : start])
    rows = bytearray(zlib.decompress(data[start + 4 : end]))
    rows[-1] ^= 1
    packed = zlib.compress(rows)
    path.write_bytes(data[: start - 4] + len(packed).to_bytes(4) + b"IDAT" + packed + data[end:])
    assert (read_mask(path) != ids).any()


def test_a_full_check_finds_what_decoding_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_folder(tmp_path / "data", train=4, val=2)
    path = root / "masks" / "001.png"
    change_ids_silently(path)
    check = ["data", "check", "folder", "--data-root", str(root), "--out", str(tmp_path / "sheet.png")]
    assert cli.main(check) == 0
    capsys.readouterr()
    assert cli.main([*check, "--full"]) == 2
    said = capsys.readouterr()
    assert f"the mask {path} cannot be read" in "".join(said.out.split("\n"))
    assert "1 problem(s), named above" in said.err
