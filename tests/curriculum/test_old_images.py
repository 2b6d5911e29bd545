from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from exports import write_coco
from incseg.config import DataConfig
from incseg.curriculum import Extension, Library
from incseg.curriculum.old_images import OldImages, keep_balanced
from incseg.datasets import open_source
from incseg.datasets.scan import class_presence
from incseg.errors import InputError
from incseg.protocol import IGNORE
from samples import write_classes

KNOWN = ("background", "disc", "square", "triangle")


def test_every_class_gets_its_share_the_rarest_first() -> None:
    shown = [frozenset({1})] * 20 + [frozenset({1, 2})] * 6 + [frozenset({3})] * 2 + [frozenset()] * 5
    kept = keep_balanced(shown, 9)
    assert len(kept) == 9
    assert kept == keep_balanced(shown, 9), "the same images every time"
    counts = {name: sum(name in shown[index] for index in kept) for name in (1, 2, 3)}
    assert counts[3] == 2, "all there are of a rare class"
    assert (counts[1], counts[2]) == (7, 6), "images of both classes serve both; only then come those of one"
    assert all(shown[index] for index in keep_balanced(shown, 100)), "an image of no class is not worth a place"
    assert len(keep_balanced(shown, 100)) == 28
    assert keep_balanced(shown, 1)[0] in (26, 27), "one place goes to the rarest class"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Names one class of the model, one that it does not know, and leaves one out."""
    return write_classes(tmp_path / "old", ["square", "moon"], images=8)


def test_old_images_have_the_labels_that_are_known_and_no_others(old: Path) -> None:
    images = OldImages.read(old, DataConfig(), KNOWN, ["ring"])
    assert images.labelled == {2}
    assert all(shown == {2} for shown in images.shown)
    assert images.kept_for == [2] * len(images.split)
    assert images.table(IGNORE)[:4].tolist() == [IGNORE, 2, IGNORE, IGNORE], "moon is unknown, background uncertain"
    fewer = OldImages.read(old, DataConfig(replayed_images=1), KNOWN, ["ring"])
    assert len(fewer.split) == 1
    assert set(fewer.split.ids) < set(images.split.ids)


def test_in_a_step_whose_background_hides_nothing_old_images_must_label_everything(tmp_path: Path) -> None:
    new = write_classes(tmp_path / "new", ["ring", *KNOWN[1:]], images=8)
    for names, background in ((["disc", "ring"], IGNORE), (["ring", *KNOWN[1:]], 0)):
        folder = write_classes(tmp_path / "-".join(names), names, images=6)
        data = DataConfig(known=KNOWN, replay=folder, complete=True)
        kept = Library(Extension(open_source("folder", new), data), 64).given()
        assert kept is not None
        assert {int(kept.pair(place)[1][kept.split.mask(place) == 0][0]) for place in range(len(kept))} == {background}


def test_background_of_an_old_image_is_unlabelled_unless_the_new_classes_are_labelled_too(tmp_path: Path) -> None:
    """A ring in an old image was background when it was labelled: to learn it as background would be to unlearn it."""
    new = write_classes(tmp_path / "new", ["ring"], images=8)
    for names, background in ((["disc", "square"], IGNORE), (["disc", "ring"], 0)):
        folder = write_classes(tmp_path / "-".join(names), names, images=6)
        extension = Extension(open_source("folder", new), DataConfig(known=KNOWN, replay=folder))
        assert extension.steps[1].labelled_old == tuple(KNOWN.index(name) for name in names if name in KNOWN)
        kept = Library(extension, 64).given()
        assert kept is not None
        for position in range(len(kept)):
            _, labels = kept.pair(position)
            ids = kept.split.mask(position)
            assert torch.equal(labels == background, (ids == 0) | (ids == background))
            assert set(labels.unique().tolist()) <= {background, IGNORE, *extension.steps[1].labelled_old, 4}
        completed = Library(extension, 64).given(completed=True)
        assert completed is not None
        assert (completed.pair(0)[1] == 0).any(), "a method that completes labels sees what is to be completed"
        own = extension.training_table(extension.steps[1])
        assert own[:2].tolist() == [0, 4], "the new folder labels the ring only"


def square_export(root: Path) -> Path:
    """A COCO export of squares: a and b to learn from, c for validation."""
    write_coco(root)
    for path in (root / "annotations").iterdir():
        path.write_text(path.read_text().replace('"cat"', '"square"'))
    return root


def listed(root: Path) -> Path:
    """A folder with a list of what to learn from, and none of what to score."""
    write_classes(root, ["square"], images=6)
    (root / "train.txt").write_text("000\n001\n002\n003")
    return root


@pytest.mark.parametrize(("write", "learnt"), [(square_export, {"a", "b"}), (listed, {"000", "001", "002", "003"})])
def test_images_given_for_validation_are_not_replayed(
    write: Callable[[Path], Path], learnt: set[str], tmp_path: Path
) -> None:
    assert set(OldImages.read(write(tmp_path / "other"), DataConfig(), KNOWN).split.ids) <= learnt


@pytest.mark.parametrize(("write", "scored"), [(square_export, ["c"]), (listed, ["004", "005"])])
def test_of_a_validation_folder_only_images_given_for_that_are_scored(
    write: Callable[[Path], Path], scored: list[str], tmp_path: Path
) -> None:
    folder, new = write(tmp_path / "other"), write_classes(tmp_path / "new", ["ring"], images=8)
    extension = Extension(open_source("folder", new), DataConfig(known=KNOWN, validation=folder))
    *theirs, _ = extension.scored_images(extension.steps[1])  # those of the new folder come last
    assert [list(images.split.ids) for images in theirs] == [scored]


def test_where_no_images_were_given_for_validation_all_are_scored_or_replayed(old: Path, tmp_path: Path) -> None:
    new = write_classes(tmp_path / "new", ["ring"], images=8)
    source = open_source("folder", old)
    replayed = OldImages.read(old, DataConfig(), KNOWN).split.ids
    shown = class_presence(source.val, source.classes)
    assert {name for name, ids in zip(source.val.ids, shown, strict=True) if 1 in ids} <= set(replayed)
    extension = Extension(open_source("folder", new), DataConfig(known=KNOWN, validation=old))
    *theirs, _ = extension.scored_images(extension.steps[1])
    assert sorted(name for images in theirs for name in images.split.ids) == [f"{index:03d}" for index in range(8)]


@pytest.mark.parametrize(
    ("names", "message"),
    [(["moon"], "names no class that the model knows (disc, square, triangle)"), ([], "is not a folder")],
)
def test_a_folder_without_old_classes_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    folder = write_classes(tmp_path / "none", names, images=2) if names else tmp_path / "missing"
    with pytest.raises(InputError) as error:
        OldImages.read(folder, DataConfig(), KNOWN)
    assert message in str(error.value)
