"""``incseg data``: one typed function per command; nothing else."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import tyro

from incseg.console import Console, progress_of
from incseg.errors import IncompleteError, InputError
from incseg.files import replacing, usable_file

OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]

MOST_PROBLEMS = 20  # named one by one


def split(
    protocol: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PROTOCOL")],
    data_root: OptionalPath = None,
    splits: OptionalPath = None,
    out: OptionalPath = None,
    settings: tyro.conf.Suppress[dict[str, Any] | None] = None,
) -> None:
    """Show which images each step of a protocol learns from.

    Settings of the data are written as for 'incseg train', for example --data.class-order b.

    Examples: incseg data split voc/15-1/disjoint --data-root DATA/VOC2012 --out 15-1.json;
    incseg data split ade20k/100-50-b/disjoint --data-root DATA --splits MiB/data/ade/100-50b

    Args:
        protocol: a protocol or a recipe, as for 'incseg train'.
        data_root: folder of the dataset.
        splits: folder of published lists (train-0.npy or train-0.txt, …) to use instead of the protocol's rule.
        out: a .json file to write the images of every step to, by name and by index.
        settings: the dotted settings, which main() reads.
    """
    from incseg.config import load_recipe, merge
    from incseg.curriculum import build_curriculum
    from incseg.protocol import Protocol

    if out is not None:
        usable_file(out)
    data = {name: value for name, value in (("root", data_root), ("splits", splits)) if value is not None}
    config = load_recipe(protocol, merge(settings or {}, {"data": data}))
    curriculum = build_curriculum(Protocol.parse(config.protocol), config.data, Console(stderr=True).say)
    described = curriculum.describe()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for step in described["steps"]:
        console.print(f"step {step['step']}: {len(step['images'])} images, classes {', '.join(step['classes'])}")
    if out is not None:
        with replacing(out) as temporary:
            temporary.write_text(json.dumps(described, indent=1, ensure_ascii=False), encoding="utf-8")


def check(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    data_root: OptionalPath = None,
    out: OptionalPath = None,
) -> None:
    """Read every image and mask of a dataset: what is there, what is wrong, how often each class is shown.

    Lists missing and unreadable files, masks of colours or of another size than their image, and ids no class has, by
    name; exit code 2 if there are any. Writes a sheet of pictures with their masks over them.

    Args:
        name: the dataset: voc, ade20k, cityscapes, or folder for your own.
        data_root: its folder.
        out: the sheet of pictures (default: runs/NAME-check.png).
    """
    from incseg.datasets import dataset_entry
    from incseg.datasets.check import KINDS, examine
    from incseg.report import dataset_check as dataset

    entry, console = dataset_entry(name), Console(highlight=False)
    sheet = out or Path("runs") / f"{name}-check.png"
    usable_file(sheet)
    source = entry.open(data_root)
    found = {}
    for title, part in (("training", source.train), ("validation", source.val)):
        with progress_of(f"reading {title} images", Console(stderr=True)) as advance:
            found[title] = examine(part, source.classes, advance)
    console.show(dataset.frequencies(source.classes, found))
    console.show(dataset.overview(name, found, entry.published_images))
    with replacing(sheet) as temporary:
        dataset.picture_sheet(source, found["training"]).savefig(temporary, format="png")
    console.print(f"pictures: {sheet}", markup=False, soft_wrap=True)
    problems = [sentence for findings in found.values() for kind in KINDS for sentence in findings.problems[kind]]
    for sentence in problems[:MOST_PROBLEMS]:
        console.print(sentence, markup=False, soft_wrap=True)
    if len(problems) > MOST_PROBLEMS:
        console.print(f"… and {len(problems) - MOST_PROBLEMS} more")
    if problems:
        raise InputError(f"{name} in {data_root} has {len(problems)} problem(s), named above.")


def prepare(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    root: Annotated[Path, tyro.conf.arg(metavar="DIR")],
) -> None:
    """Get a dataset and lay it out as 'incseg train' wants it. Interrupted, it goes on where it was when run again.

    Downloads what may be downloaded, checks it against the published checksums, and unpacks it: voc (with the augmented
    masks, built from the Semantic Boundaries Dataset) and ade20k. Cityscapes needs an account: it says which files to
    get and where to put them, and unpacks these.

    Args:
        name: the dataset: voc, ade20k or cityscapes.
        root: the folder it goes to; archives that already lie there are used.
    """
    from incseg.datasets import dataset_entry
    from incseg.datasets.prepare import prepare as prepare_dataset

    def show_progress(title: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return progress_of(title, Console(stderr=True))

    source = prepare_dataset(name, root, show_progress)
    shortfall = dataset_entry(name).shortfall(source)
    if shortfall:
        raise IncompleteError(shortfall)
    Console(highlight=False, markup=False, soft_wrap=True).print(
        f"{name} is ready in {root}: {len(source.train)} images to learn from, {len(source.val)} to be scored on.\n"
        f"Look at it with: incseg data check {name} --data-root {root}"
    )


COMMANDS: dict[str, Callable[..., None]] = {"prepare": prepare, "check": check, "split": split}
