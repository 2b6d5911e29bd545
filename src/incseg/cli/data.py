"""Getting and checking data: ``incseg data prepare``, ``check``, ``split``."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import tyro

from incseg.cli.arguments import takes_settings
from incseg.cli.early import refuse_missing_data, refuse_unknown_dataset
from incseg.config import Layer, load_recipe, merge
from incseg.console import Console, progress_of
from incseg.errors import IncompleteError, InputError
from incseg.files import replacing, usable_file

OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]

MOST_PROBLEMS = 20  # named one by one


@takes_settings("data.")
def split(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PROTOCOL")],
    data_root: OptionalPath = None,
    splits: OptionalPath = None,
    out: OptionalPath = None,
    settings: Layer | None = None,
) -> None:
    """Show which images each step of a protocol learns from.

    Settings of the data are written as for 'incseg train', for example --data.class-order b.

    Examples: incseg data split voc/15-1/disjoint --data-root DATA/VOC2012 --out 15-1.json;
    incseg data split ade20k/100-50-b/disjoint --data-root DATA --splits MiB/data/ade/100-50b

    Args:
        recipe: a protocol or a recipe, as for 'incseg train'.
        data_root: folder of the dataset.
        splits: folder of published lists (train-0.npy or train-0.txt, …) to use instead of the protocol's rule.
        out: a .json file to write the images of every step to, by name and by index.
        settings: any of the settings below, by section and name.
    """
    if out is not None:
        usable_file(out)
    data = {name: value for name, value in (("root", data_root), ("splits", splits)) if value is not None}
    config = load_recipe(recipe, merge(settings or {}, {"data": data}))

    refuse_missing_data(config)

    from incseg.curriculum import build_curriculum
    from incseg.protocol import Protocol

    aside = Console(stderr=True)
    curriculum = build_curriculum(Protocol.parse(config.protocol), config.data, aside.say, aside.mention)
    described = curriculum.describe()
    console = Console()
    for step in described["steps"]:
        console.say(f"step {step['step']}: {len(step['images'])} images, classes {', '.join(step['classes'])}")
    if out is not None:
        with replacing(out) as temporary:
            temporary.write_text(json.dumps(described, indent=1, ensure_ascii=False), encoding="utf-8")


def check(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    data_root: OptionalPath = None,
    out: OptionalPath = None,
) -> None:
    """Read every image and mask of a dataset: what is there, what is wrong, how frequent each class is.

    Names missing and unreadable files, masks that hold colours or differ from their image in size, and ids that belong
    to no class; exit code 2 if there are any. Writes a sheet of sample images with their masks on top.

    Args:
        name: the dataset: voc, ade20k, cityscapes, or folder for your own.
        data_root: its folder.
        out: the sheet of sample images (default: runs/NAME-check.png).
    """
    refuse_unknown_dataset(name)

    from incseg.datasets import dataset_entry

    entry, console = dataset_entry(name), Console()
    sheet = out or Path("runs") / f"{name}-check.png"
    usable_file(sheet)
    source = entry.open(data_root)

    from incseg.datasets.check import KINDS, examine  # only now: PyTorch takes seconds, a refusal above should not
    from incseg.report import dataset_check as dataset

    found = {}
    for title, part in (("training", source.train), ("validation", source.val)):
        with progress_of(f"reading {title} images", Console(stderr=True)) as advance:
            found[title] = examine(part, source.classes, advance)
    console.show(dataset.frequencies(source.classes, found))
    console.show(dataset.overview(name, found, entry.published_images))
    with replacing(sheet) as temporary:
        dataset.picture_sheet(source, found["training"], entry.colours).savefig(temporary, format="png")
    console.say(f"pictures: {sheet}")
    problems = [sentence for findings in found.values() for kind in KINDS for sentence in findings.problems[kind]]
    for sentence in problems[:MOST_PROBLEMS]:
        console.say(sentence)
    if len(problems) > MOST_PROBLEMS:
        console.say(f"… and {len(problems) - MOST_PROBLEMS} more")
    if problems:
        raise InputError(f"{name} in {data_root} has {len(problems)} problem(s), named above.")


def prepare(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    root: Annotated[Path, tyro.conf.arg(metavar="DIR")],
) -> None:
    """Download a dataset and arrange it as 'incseg train' expects. An interrupted download is resumed when run again.

    Downloads voc (with the augmented masks, made from the Semantic Boundaries Dataset) and ade20k, checks them against
    the published checksums, and unpacks them. Cityscapes needs an account: the command says which files to get and
    where to put them, and unpacks them when they are there.

    Args:
        name: the dataset: voc, ade20k or cityscapes.
        root: the folder to put it in; archives that are already there are used.
    """
    from incseg.datasets import dataset_entry
    from incseg.datasets.prepare import prepare as prepare_dataset

    def show_progress(title: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return progress_of(title, Console(stderr=True))

    source = prepare_dataset(name, root, show_progress)
    shortfall = dataset_entry(name).shortfall(source)
    if shortfall:
        raise IncompleteError(shortfall)
    Console().say(
        f"{name} is ready in {root}: {len(source.train)} images to learn from, {len(source.val)} to be scored on.\n"
        f"Look at it with: incseg data check {name} --data-root {root}"
    )
