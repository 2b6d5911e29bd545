"""Merging adds what two extensions have learnt; forgetting takes away what one has. Both are exact."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import incseg
from command_line import run
from incseg.deploy.forgetting import forget
from incseg.deploy.merging import merge
from incseg.deploy.model import Model
from incseg.deploy.statistics import required_statistics, with_statistics
from incseg.errors import InputError
from incseg.models.closed_form import Statistics
from samples import write_classes

pytestmark = pytest.mark.xdist_group("places")  # extended once, for all that merge and forget
QUICK = {"data": {"workers": 0}, "engine": {"accelerator": "cpu", "pictures": 0, "score_batch_size": 4}}
BASE = ("background", "disc", "square", "triangle", "cross")


def numbered(folder: Path, names: Sequence[str], first: int) -> Path:
    """Eight images to learn from and one to validate on, the ``first``-th and following of the drawn ones."""
    write_classes(folder, names, images=first + 9, size=128)
    for kind in ("images", "masks"):
        for index in range(first):
            (folder / kind / f"{index:03d}.png").unlink()
    (folder / "val.txt").write_text(f"{first:03d}")
    return folder


@pytest.fixture(scope="module", autouse=True)
def exact_products() -> Iterator[None]:
    """Products in float64: in float32 they depend on where blocks of cells are cut, and here merging must be exact."""
    add = Statistics.add
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Statistics, "add", lambda self, cells, *labels: add(self, cells.double(), *labels))
        yield


@pytest.fixture(scope="module")
def places(solved_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base extended at two places, and the first of these again."""
    root = tmp_path_factory.mktemp("places")
    ring, moon = numbered(root / "rings", ["ring"], 0), numbered(root / "moons", ["moon"], 20)
    incseg.extend(solved_base, ring, root / "a", settings=QUICK)
    incseg.extend(solved_base, moon, root / "b", settings=QUICK)
    incseg.extend(root / "a", moon, root / "chain", settings=QUICK)
    return root


def head(model: Model) -> torch.Tensor:
    statistics, fit = required_statistics(model)
    return statistics.solve(fit.ridge)


def difference(one: torch.Tensor, two: torch.Tensor) -> float:
    return float((one - two).norm() / two.norm())


def upper(statistics: Statistics) -> torch.Tensor:
    return statistics.gram.triu()


def pictures(folder: Path) -> list[Path]:
    return sorted((folder / "images").iterdir())


def test_two_places_merged_equal_both_at_once(places: Path, solved_base: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    for kind in ("images", "masks"):
        (both / kind).mkdir(parents=True)
        for prefix, folder, identity in (("a", "rings", 1), ("b", "moons", 2)):
            for file in (places / folder / kind).iterdir():
                picture = np.array(Image.open(file))
                if kind == "masks":
                    picture[picture == 1] = identity
                Image.fromarray(picture).save(both / kind / f"{prefix}{file.name}")
    (both / "classes.txt").write_text("background\nring\nmoon")
    (both / "val.txt").write_text("a000\nb020")
    at_once = incseg.extend(solved_base, both, tmp_path / "at-once", settings=QUICK)

    assert run("merge", places / "a", places / "b", "--out", tmp_path / "merged") == 0
    merged = incseg.load(tmp_path / "merged")
    assert merged.classes == at_once.classes == (*BASE, "ring", "moon")
    ours, theirs = (required_statistics(model)[0] for model in (merged, at_once))
    assert difference(ours.cells, theirs.cells) < 1e-12
    assert max(difference(ours.gram, theirs.gram), difference(ours.cross, theirs.cross)) < 1e-6
    assert difference(head(merged), head(at_once)) < 1e-6
    for image in pictures(both):
        assert (merged.predict(image).ids == at_once.predict(image).ids).all()
    assert {5, 6} <= set(np.unique([merged.predict(image).ids for image in pictures(both)]))


def test_a_merged_model_is_a_model_like_any_other(places: Path, solved_base: Path, tmp_path: Path) -> None:
    out = tmp_path / "merged"
    assert run("merge", places / "a", places / "b", "--out", out, "--base", solved_base) == 0
    assert {path.name for path in out.iterdir()} == {"model.safetensors", "memory.safetensors", "MODEL_CARD.md"}
    assert "Merged from" in (out / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert [record["method"] for record in incseg.load(out).history] == ["ft", "analytic", "analytic", "merge"]
    more = incseg.extend(out, numbered(tmp_path / "flowers", ["flower"], 40), tmp_path / "more", settings=QUICK)
    assert more.classes == (*BASE, "ring", "moon", "flower")
    assert more.segmenter.classifier.head_sizes == [5, 1, 1, 1]


def test_a_class_that_both_places_added_is_one(places: Path, solved_base: Path, tmp_path: Path) -> None:
    rings = numbered(tmp_path / "rings", ["ring"], 40)
    (rings / "classes.txt").write_text((rings / "classes.txt").read_text().replace("ring", "RING"))
    again = incseg.extend(solved_base, rings, tmp_path / "again", settings=QUICK)
    assert again.classes == (*BASE, "RING")
    first, base = incseg.load(places / "a"), incseg.load(solved_base)
    merged = merge(first, again, base)
    assert merged.classes == (*BASE, "ring")
    columns = [required_statistics(model)[0].cross[:, 5] for model in (merged, first, again)]
    assert difference(columns[0], columns[1] + columns[2]) < 1e-12
    assert [record["new_classes"] for record in merged.history[1:]] == [["ring"], []]
    merged.save(tmp_path / "merged.safetensors")
    file, runs = incseg.load(tmp_path / "merged.safetensors"), [places / "a", tmp_path / "again"]
    forgotten = forget(file, ["ring"], [*runs, tmp_path / "rings" / ".." / "again"])  # one of them named twice
    assert difference(head(forgotten.model), head(base)) < 1e-6
    assert all(str(place) in forgotten.remark for place in runs)
    with pytest.raises(InputError, match=r"'ring' was learnt elsewhere too, .*: name every run"):
        forget(file, ["ring"], runs[:1])
    with pytest.raises(InputError, match="'ring' was learnt from other images than those of the named runs"):
        forget(first, ["ring"], runs)
    with pytest.raises(InputError, match=r"no step of .*b learnt 'ring'"):
        forget(file, ["ring"], [*runs, places / "b"])
    with pytest.raises(InputError, match="none of the named runs learnt 'moon'"):
        forget(merge(merged, incseg.load(places / "b"), base), ["ring", "moon"], runs)


def test_places_that_learn_a_class_from_equal_masks_can_be_merged(solved_base: Path) -> None:
    """Photographs differ although as many pixels are labelled."""
    base, mask = incseg.load(solved_base), np.zeros((64, 64), np.uint8)
    mask[16:48, 16:48] = 1
    one, two = (base.learn([np.full((64, 64, 3), grey, np.uint8)], [mask], ["ring"]) for grey in (50, 200))
    assert merge(one, two, base).classes == (*BASE, "ring")
    more = two.learn([np.zeros((64, 64, 3), np.uint8)], [mask], ["moon"])
    with pytest.raises(InputError, match="have learnt ring from the same images"):
        merge(two, more, base)


def test_what_cannot_be_merged_is_named(places: Path, solved_base: Path, tiny_model: Model, tmp_path: Path) -> None:
    a, b, base = (incseg.load(path) for path in (places / "a", places / "b", solved_base))
    with pytest.raises(InputError, match="did not begin with the same model"):
        merge(incseg.load(places / "chain"), b)
    with pytest.raises(InputError, match="does not add classes to those of"):
        merge(a, base, base)
    with pytest.raises(InputError, match="is not the step of a run: name the model it was extended from"):
        merge(incseg.load(a.save(tmp_path / "a.safetensors")), b)
    with pytest.raises(InputError, match="are different networks"):
        merge(a, b, tiny_model)
    assert run("merge", places / "a", places / "b", "--out", places / "chain") == 2  # holds a model already
    with pytest.raises(InputError, match="have learnt from the same images, which would count twice"):
        merge(a, incseg.load(places / "a"))
    with pytest.raises(InputError, match=r"have learnt ring from the same images, .* with --base"):
        merge(incseg.load(places / "chain"), a, base)
    statistics, fit = required_statistics(b)
    sizes = b.segmenter.classifier.head_sizes
    otherwise = replace(fit, balance=1.0, soft=True)
    with pytest.raises(InputError, match=r"different settings of the closed form \(balance, soft\)"):
        merge(a, with_statistics(b, statistics, otherwise, classes=b.classes, head_sizes=sizes, history=[]), base)


def test_forgotten_again_all_is_as_before(places: Path, tmp_path: Path) -> None:
    assert run("forget", places / "chain", "MOON", "--out", tmp_path / "less") == 0
    less, before = incseg.load(tmp_path / "less"), incseg.load(places / "a")
    assert less.classes == before.classes
    assert less.segmenter.classifier.head_sizes == before.segmenter.classifier.head_sizes
    assert difference(upper(required_statistics(less)[0]), upper(required_statistics(before)[0])) < 1e-6
    assert difference(head(less), head(before)) < 1e-6
    assert torch.allclose(less.segmenter.classifier.weight, before.segmenter.classifier.weight, atol=1e-6)  # type: ignore[arg-type]
    card = (tmp_path / "less" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "All that the images of moon added in" in card
    assert "stay" not in card.split("## What it recognises")[0]  # nothing was learnt since, so nothing is left
    assert "moon" not in str(less.history[:-1])


def test_a_class_can_be_forgotten_after_another_was_learnt(
    places: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "less"
    assert run("forget", places / "chain", "ring", "--learnt-in", places / "a", "--out", out) == 0
    assert "Steps learnt after it" in capsys.readouterr().out
    less = incseg.load(out)
    assert less.classes == (*BASE, "moon")
    assert less.segmenter.classifier.head_sizes == [5, 1]
    predicted = {less.classes[c] for image in pictures(places / "moons") for c in np.unique(less.predict(image).ids)}
    assert "moon" in predicted
    assert run("forget", out, "moon", "--learnt-in", places / "chain", "--out", tmp_path / "base") == 0
    base = incseg.load(tmp_path / "base")
    assert base.classes == BASE
    assert difference(head(base), head(incseg.load(places / "a", step=0))) < 1e-6


def test_another_run_that_learnt_the_class_cannot_be_subtracted(
    places: Path, solved_base: Path, tmp_path: Path
) -> None:
    """As many pixels are labelled, but they were seen once more, mirrored."""
    rings = numbered(tmp_path / "rings", ["ring"], 0)
    twice = incseg.extend(solved_base, rings, tmp_path / "twice", settings={**QUICK, "analytic": {"mirrored": True}})
    for model, run_of_other in ((twice, places / "a"), (incseg.load(places / "a"), tmp_path / "twice")):
        with pytest.raises(InputError, match=r"did not learn 'ring' in .*: name the run that did, with --learnt-in"):
            forget(model, ["ring"], [run_of_other])


def test_what_is_left_follows_the_rules_by_which_it_was_learnt(places: Path, tmp_path: Path) -> None:
    moons = numbered(tmp_path / "moons", ["moon"], 20)
    otherwise = {**QUICK, "analytic": {"ridge": 100.0, "balance": 0.8}}
    model, before = incseg.extend(places / "a", moons, tmp_path / "run", settings=otherwise), incseg.load(places / "a")
    assert required_statistics(model)[1] != required_statistics(before)[1]
    left = forget(model, ["moon"]).model
    assert required_statistics(left)[1] == required_statistics(before)[1]
    assert torch.allclose(left.segmenter.classifier.weight, before.segmenter.classifier.weight, atol=1e-6)  # type: ignore[arg-type]


def test_models_that_see_images_at_different_sizes_are_not_merged(places: Path, tmp_path: Path) -> None:
    base, reduced = incseg.load(places / "a", step=0), {**QUICK, "data": {"workers": 0, "longest_side": 64}}
    b = incseg.extend(base, places / "moons", tmp_path / "b", settings=reduced)
    with pytest.raises(InputError, match=r"different sizes \(their own size and a longest side of 64\)"):
        merge(incseg.load(places / "a"), b, base)


def test_steps_of_a_chain_of_runs_are_forgotten_at_once(places: Path, solved_base: Path) -> None:
    chain, base = incseg.load(places / "chain"), incseg.load(solved_base)
    without = forget(chain, ["ring", "moon", "ring"], [places / "a", places / "chain"])
    assert without.model.classes == BASE
    assert "images of ring, moon added" in without.remark
    assert difference(head(without.model), head(base)) < 1e-6


def test_models_that_share_a_part_of_what_they_learnt_are_not_merged(places: Path, solved_base: Path) -> None:
    a, b, base = (incseg.load(place) for place in (places / "a", places / "b", solved_base))
    both = merge(a, b)
    more = [{**record, "commit": "another"} for record in a.history]
    with pytest.raises(InputError, match="have learnt ring from the same images"):
        merge(both, replace(a, history=more), base)
    with pytest.raises(InputError, match="have learnt moon from the same images"):
        merge(incseg.load(places / "chain"), b, base)


def test_classes_of_one_step_are_forgotten_together(solved_base: Path, places: Path, tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "two", ["ring", "flower"], images=10)
    model = incseg.extend(solved_base, folder, tmp_path / "run", settings=QUICK)
    with pytest.raises(InputError, match=r"ring was learnt together with flower, .* \(ring flower\), or none"):
        forget(model, ["ring"])
    assert forget(model, ["ring", "flower"]).model.classes == BASE
    moved = shutil.copytree(tmp_path / "run", tmp_path / "elsewhere")
    for name, learnt_in, message in [
        ("disc", [], "'disc' was known before .* began: name the run that learnt it"),
        ("disc", [solved_base], "'disc' was learnt in step 0 of .* cannot be subtracted"),
        ("disk", [], "no class 'disk': .* Did you mean 'disc'"),
        ("background", [], "no class 'background'"),
        ("ring", [places / "b"], "no step of .*b learnt 'ring'"),
        ("ring", [folder], "is not the folder of a run with finished steps"),
    ]:
        with pytest.raises(InputError, match=message):
            forget(incseg.load(moved), [name], learnt_in)
    with pytest.raises(InputError, match="is not the step of a run: name the run"):
        forget(incseg.load(model.save(tmp_path / "alone.safetensors")), ["ring"])


def test_a_class_learnt_in_python_is_forgotten_with_the_model_of_before(
    solved_base: Path, places: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = incseg.load(solved_base)
    taught = [
        (name, pictures(places / folder), sorted((places / folder / "masks").iterdir()))
        for name, folder in (("ring", "rings"), ("moon", "moons"))
    ]
    ring = base.learn(taught[0][1], taught[0][2], ["ring"])
    file = ring.save(tmp_path / "ring.safetensors")
    assert difference(head(forget(ring, ["ring"], before=[base]).model), head(base)) < 1e-6
    assert "added in memory is subtracted" in forget(ring, ["ring"], before=[base]).remark
    both = incseg.load(file).learn(taught[1][1], taught[1][2], ["moon"]).save(tmp_path / "both.safetensors")

    named: list[str | Path] = ["--before", solved_base, "--learnt-in", file]
    assert run("forget", both, "RING", *named, "--out", tmp_path / "moon") == 0
    assert f"added in {file} is subtracted" in capsys.readouterr().out.replace("\n", " ")
    left = incseg.load(tmp_path / "moon")
    assert left.classes == (*BASE, "moon")
    sums = [required_statistics(incseg.load(path))[0] for path in (both, file, solved_base)]
    assert difference(upper(required_statistics(left)[0]), upper(sums[0]) - upper(sums[1]) + upper(sums[2])) < 1e-6
    assert run("forget", both, "moon", "--before", file, "--out", tmp_path / "ring") == 0
    assert difference(head(incseg.load(tmp_path / "ring")), head(ring)) < 1e-6

    extended = incseg.extend(file, places / "moons", tmp_path / "run", settings=QUICK)
    without_ring = forget(extended, ["ring"], [file], [base]).model
    assert without_ring.classes == (*BASE, "moon")
    elsewhere = base.learn(taught[0][1][:3], taught[0][2][:3], ["Ring"]).save(tmp_path / "elsewhere.safetensors")
    merged = merge(incseg.load(file), incseg.load(elsewhere), base)
    with pytest.raises(InputError, match=r"'ring' was learnt elsewhere too, .* --before MODEL MODEL"):
        forget(merged, ["ring"], [file], [base])
    assert difference(head(forget(merged, ["ring"], [file, elsewhere], [base]).model), head(base)) < 1e-6
    for model, names, learnt_in, before, message in [
        (both, ["moon"], [], [solved_base], "did not become what it is in one step from"),
        (both, ["moon"], [file], [solved_base], "ring.safetensors learnt ring last, not moon"),
        (both, ["ring"], [file], [file], "did not become what it is in one step"),
        (both, ["ring"], [file, both], [solved_base], "did not become what it is in one step"),
        (both, ["ring"], [file, both], [solved_base, file], "learnt moon last, not ring"),
        (places / "chain", ["ring"], [file], [solved_base], "did not learn 'ring' in .*: name the run that did"),
        (tmp_path / "run", ["ring"], [], [], "was known before .* or, if it was learnt in Python, .* --before"),
    ]:
        with pytest.raises(InputError, match=message):
            forget(incseg.load(model), names, learnt_in, [incseg.load(path) for path in before])
    neither = forget(incseg.load(both), ["ring", "moon"], [file, both], [base, incseg.load(file)])
    assert neither.model.classes == BASE
    assert run("forget", both, "ring", "--before", tmp_path / "nothing", "--out", tmp_path / "no") == 2
