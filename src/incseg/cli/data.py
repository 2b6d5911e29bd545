"""Getting and checking data: ``incseg data prepare``, ``check``, ``convert``, ``split``."""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from incseg.cli.arguments import DEFAULT, takes_settings
from incseg.cli.early import refuse_missing_data
from incseg.config import DataConfig, Layer, load_recipe, merge
from incseg.console import Console, progress_of, publish
from incseg.errors import IncompleteError, InputError
from incseg.files import replacing, usable_file

if TYPE_CHECKING:  # PyTorch is loaded where it is needed
    from incseg.datasets.check import Findings
    from incseg.datasets.source import DatasetEntry, Source

OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]

FormatName = Annotated[str, tyro.conf.arg(name="from", metavar="FORMAT")]
Unlabelled = Annotated[Literal["background", "ignore"], tyro.conf.arg()]

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
    config = load_recipe(recipe, merge(settings or {}, {"data": data}), trust=True)  # its method is never run here

    refuse_missing_data(config)

    from incseg.curriculum import build_curriculum
    from incseg.protocol import Protocol

    aside = Console(stderr=True)
    curriculum = build_curriculum(Protocol.parse(config.protocol), config.data, aside.say, aside.mention)
    described = curriculum.describe()
    publish(**described)
    console = Console()
    for step in described["steps"]:
        brought = (
            f"domains {', '.join(step['domains'])}" if "domains" in step else f"classes {', '.join(step['classes'])}"
        )
        console.say(f"step {step['step']}: {len(step['images'])} images, {brought}")
    if out is not None:
        with replacing(out) as temporary:
            temporary.write_text(json.dumps(described, indent=1, ensure_ascii=False), encoding="utf-8")


def check(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    data_root: OptionalPath = None,
    out: OptionalPath = None,
    from_: FormatName = DEFAULT.data.format,
    unlabelled: Unlabelled = DEFAULT.data.unlabelled,
    full: bool = False,
) -> None:
    """Read every image and mask of a dataset: what is there, what is wrong, how frequent each class is.

    Names missing and unreadable files, masks that hold colours or differ from their image in size, ids that belong to
    no class, and masks without any class; exit code 2 if there are any. Asks about what can hardly be right: classes in
    no image, ids as interpolation makes them, a missing background, Cityscapes' train ids in the place of label ids.
    Writes a sheet of sample images with their masks on top, on which every class is seen.

    Args:
        name: the dataset: voc, ade20k, cityscapes, or folder for your own.
        data_root: its folder.
        out: the sheet of sample images (default: runs/NAME-check.png).
        from_: format of a folder of your own, as for 'incseg data convert'.
        unlabelled: how pixels that no annotation covers are read from such a format.
        full: also compare the checksums inside files that have them (PNG), which finds a flipped bit that decoding does
            not, and record the content of every file, so that a run that resumes can tell whether it has changed.
    """
    from incseg.datasets import dataset_entry

    entry, console = dataset_entry(name), Console()
    sheet = out or Path("runs") / f"{name}-check.png"
    usable_file(sheet)
    source = entry.read(data_root, DataConfig(format=from_, unlabelled=unlabelled))

    for note in source.notes:
        console.say(note)
    found = _examined(source, full)
    _show(entry, source, found, sheet, console)
    if full and data_root is not None:
        _record_contents(data_root, found, console)
    _name_problems(entry, source, found, f"{name} in {data_root}", console)


def _examined(source: "Source", full: bool) -> "dict[str, Findings]":
    """What is found in training and in validation images, by these names."""
    from incseg.datasets.check import examine  # only now: PyTorch takes seconds, a refusal before should not

    found = {}
    for title, part in (("training", source.train), ("validation", source.val)):
        with progress_of(f"reading {title} images", Console(stderr=True)) as advance:
            found[title] = examine(part, source.classes, advance, full=full)
    return found


def _show(
    entry: "DatasetEntry", source: "Source", found: "Mapping[str, Findings]", sheet: Path, console: Console
) -> None:
    """Two tables, and a sheet of pictures in a file."""
    from incseg.report import dataset_check as dataset

    console.show(dataset.frequencies(source.classes, found))
    console.show(dataset.overview(entry.name, found, entry.published_images))
    with replacing(sheet) as temporary:
        dataset.picture_sheet(source, found, entry.colours).savefig(temporary, format="png")
    publish(pictures=sheet)
    console.say(f"pictures: {sheet}")


def _record_contents(data_root: Path, found: "Mapping[str, Findings]", console: Console) -> None:
    """Keep the checksum of every file that was read, for the runs that resume."""
    from incseg.datasets.contents import record

    contents = {path: content for findings in found.values() for path, content in findings.contents.items()}
    record(data_root, contents)
    console.say(f"contents of {len(contents)} files recorded; runs on {data_root} compare them when they resume")


def _name_problems(
    entry: "DatasetEntry", source: "Source", found: "Mapping[str, Findings]", where: str, console: Console
) -> None:
    """Say what is doubtful, and refuse the dataset for what is wrong."""
    from incseg.datasets.check import KINDS
    from incseg.datasets.doubts import doubts, nothing_labelled

    questions = list(doubts(entry, source.classes, found))
    for sentence in questions:
        console.say(f"worth a look: {sentence}")
    problems = [sentence for findings in found.values() for kind in KINDS for sentence in findings.problems[kind]]
    problems += [sentence for sentence in [nothing_labelled(entry, source.classes, found)] if sentence]
    publish(classes=source.classes, questions=questions, problems=problems)
    for sentence in problems[:MOST_PROBLEMS]:
        console.say(sentence)
    if len(problems) > MOST_PROBLEMS:
        console.say(f"… and {len(problems) - MOST_PROBLEMS} more")
    if problems:
        raise InputError(f"{where} has {len(problems)} problem(s), named above.")


def convert(
    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    from_: FormatName = DEFAULT.data.format,
    unlabelled: Unlabelled = DEFAULT.data.unlabelled,
    validation_share: float = DEFAULT.data.validation_share,
) -> None:
    """Write an export of a labelling tool as images/, masks/, classes.txt, train.txt and val.txt.

    'incseg train', 'extend' and 'data check' read such exports directly; converted, they can be looked at, changed and
    given to other programs. Splits that the export has are kept.

    Example: incseg data convert export --out mydata

    Args:
        source: folder of the export.
        out: folder to write, which must not exist yet or be empty.
        from_: auto (told by the folder's contents), coco, yolo, labelme, cvat, masks or hugging-face.
        unlabelled: how pixels that no annotation covers are read: as background, or ignored.
        validation_share: share of the images to keep for validation if the export has no splits.
    """
    from incseg.datasets.formats import convert as convert_dataset

    if not source.is_dir():
        raise InputError(f"{source} is not a folder: unpack the export, and give the folder.")
    if not 0 < validation_share < 1:
        raise InputError(f"--validation-share must lie between 0 and 1, not {validation_share}.")
    reading = DataConfig(format=from_, unlabelled=unlabelled, validation_share=validation_share)
    console = Console()
    for note in convert_dataset(source, out, reading):
        console.say(note)
    publish(folder=out)
    console.say(f"written to {out}; look at it with: incseg data check folder --data-root {out}")


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
    publish(folder=root, training_images=len(source.train), validation_images=len(source.val))
    Console().say(
        f"{name} is ready in {root}: {len(source.train)} images to learn from, {len(source.val)} to be scored on.\n"
        f"Look at it with: incseg data check {name} --data-root {root}"
    )
