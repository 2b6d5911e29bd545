"""What a dataset is: class names, and two splits of images with masks."""

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from incseg import registry
from incseg.colours import DISTINCT, Colours
from incseg.config import DataConfig
from incseg.errors import InputError
from incseg.files import read_text
from incseg.protocol import IGNORE, Protocol, Setting, count_classes
from incseg.registry import Registry

if TYPE_CHECKING:  # PyTorch takes seconds: a dataset that is not there is refused without it
    from torch import Tensor

    from incseg.sizes import Size

# How the images of a dataset are shared out in the disjoint setting; see curriculum/rules.py.
Disjoint = Literal["plain", "balanced"]
ReportProgress = Callable[[int, int], None]  # called with (done, total); a total of 0: not known


BACKGROUND_NAMES = {
    "background", "_background_", "__background__", "bg", "void", "other", "others", "none", "unlabelled", "unlabeled",
}  # fmt: skip


def plain(name: str) -> str:
    """A class name for comparisons: names that differ only in case, spaces or Unicode form (é, e + ́) are the same."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def require_distinct(names: Sequence[str], where: Path) -> None:
    """Refuse names that a person cannot tell apart, or that are not text; ``where`` they are written."""
    first: dict[str, str] = {}
    for name in names:
        if not name.isprintable():
            raise InputError(f"{where} has a class {name!r}, with characters that cannot be printed: rename it.")
        other = first.get(plain(name))
        if other is not None:
            what = f"'{name}' twice" if other == name else f"'{other}' and '{name}', which are one name in another form"
            raise InputError(f"{where} names {what}: every class needs a name of its own.")
        first[plain(name)] = name


class Split(ABC):
    """An ordered collection of images and their masks."""

    ids: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids)

    @abstractmethod
    def image(self, index: int) -> "Tensor":
        """(3, H, W) uint8 RGB."""

    @abstractmethod
    def mask(self, index: int) -> "Tensor":
        """(H, W) integer class ids of the dataset: 0 background, 255 ignored."""

    def shape(self, index: int) -> "Size":
        """Height and width, if possible without decoding anything."""
        mask = self.mask(index)
        return mask.shape[0], mask.shape[1]

    def check(self, index: int) -> None:  # noqa: B027 - a split without files needs no check
        """Refuse an image file that is missing or cut off, if possible without decoding it."""

    def require_intact(self, index: int) -> None:  # noqa: B027 - a split without files has nothing to compare
        """Refuse an image or mask file whose own checksums do not hold."""

    def files(self, index: int) -> tuple[Path, ...]:  # noqa: ARG002 - not every split has any
        """The files of an image and its mask."""
        return ()

    def missing(self) -> list[Path]:
        """Files that are listed but not there."""
        return [path for index in range(len(self)) for path in self.files(index) if not path.is_file()]

    def where(self, index: int) -> str:
        """How to name the mask of this image in a message."""
        return self.ids[index]

    def fingerprint(self) -> str | None:
        """A text that changes whenever a file does, the key of a cached scan; None: scans are not cached."""
        return None


@dataclass(frozen=True)
class Domains:
    """Where images come from, such as cities: what the steps of a domain protocol bring one after another."""

    names: tuple[str, ...]
    """In the order of learning."""
    of: Callable[[str], str]
    """The id of an image → its domain."""
    shared_out: bool = False
    """No domain is in both splits, so both are put together and every step's images shared out anew."""


@dataclass(frozen=True)
class Validation:
    """Whether the validation images of a dataset were given, or chosen by us from all its images."""

    given: bool = True
    words: str = "that it keeps for validation"
    """Which images were given, after "those of the folder"; or why we had to choose, after "all of the folder,"."""


GIVEN = Validation()


@dataclass(frozen=True, repr=False)
class Source:
    """A dataset: ``classes`` by id (background first), a split to train on and a split to score on.

    ``orders`` are published class orders by name, each the dataset's ids with background first.
    """

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    """What a person should hear about how it was read."""
    domains: Domains | None = None
    """Where its images come from, if that is known."""
    validation: Validation = GIVEN
    """How it was decided which images are in ``val``."""

    def to_score(self) -> list[Split]:
        """The images to score a model on that does not learn from this dataset: ``val`` if it was given, else all."""
        return [self.val] if self.validation.given else [self.train, self.val]

    def __repr__(self) -> str:
        images = f"{len(self.train)} images to train on, {len(self.val)} to score on"
        return f"Source({self.name}: {count_classes(self.classes)}, {images})"

    def __post_init__(self) -> None:
        if len(self.classes) > IGNORE:
            raise InputError(
                f"{self.name} has {len(self.classes)} classes; there can be at most {IGNORE} with background, since "
                f"the id {IGNORE} marks ignored pixels."
            )


def read_lines(path: Path) -> list[str]:
    """The non-empty lines of a text file, stripped."""
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise InputError(f"{path} is missing.") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def existing_root(root: Path | None, name: str, layout: str) -> Path:
    """The dataset's folder; if it is not there, a sentence on what it must hold."""
    if root is None:
        raise InputError(f"the dataset '{name}' needs its folder: give --data-root DIR, which must hold {layout}.")
    if not root.is_dir():
        raise InputError(f"--data-root {root} is not a folder; for '{name}' it must hold {layout}.")
    return root


Opener = Callable[..., Source]
Doubt = Callable[[frozenset[int]], str]


@dataclass(frozen=True)
class DatasetEntry:
    """A registered dataset: how to open it, and what a person should know before."""

    name: str
    summary: str
    open: Opener
    tasks: tuple[str, ...] = ()
    """Those published for it."""
    domain_tasks: tuple[str, ...] = ()
    """Those published for it that count domains, not classes."""
    published_images: tuple[int, int] | None = None
    """How many images the complete dataset has to learn from and to be scored on."""
    disjoint: Disjoint = "plain"
    """The rule that shares out the images in the disjoint setting."""
    doubt: Doubt | None = None
    """What 'incseg data check' asks, if anything, about a copy in which these ids occur."""
    takes_settings: bool = False
    """Whether ``open`` takes the settings of the data too, besides the folder."""
    colours: Colours = DISTINCT
    """The palette in which its classes are drawn."""

    def read(self, root: Path | None, data: DataConfig | None = None) -> Source:
        """Open the dataset in a folder, as the settings say."""
        settings = data or DataConfig()
        if self.takes_settings:
            return self.open(root, settings)
        for name in DataConfig.READING:
            if getattr(settings, name) != getattr(DataConfig(), name):
                raise InputError(f"--data.{name.replace('_', '-')} is for folders of your own, not for {self.name}.")
        return self.open(root)

    def meant_otherwise(self, protocol: Protocol) -> str:
        """A sentence where papers write this task of domains and it is asked for of classes; else empty."""
        if protocol.setting is Setting.DOMAIN or protocol.task not in self.domain_tasks:
            return ""
        return (
            f"{protocol} counts classes; papers that write {self.name} {protocol.task} mean domains, which is "
            f"{self.name}/{protocol.task}/{Setting.DOMAIN}."
        )

    def shortfall(self, source: Source) -> str:
        """In words, in what an opened copy is not the published dataset; empty if it is, or if none is published."""
        counts = (len(source.train), len(source.val))
        if self.published_images in (None, counts):
            return ""
        (train, val), (all_train, all_val) = counts, self.published_images
        return (
            f"{self.name}: {train} of the published {all_train} training images and {val} of the {all_val} validation "
            "images are here; is the archive fully unpacked?"
        )


DATASETS: Registry[DatasetEntry] = Registry("dataset", registry.DATASETS)


def dataset(
    name: str,
    summary: str,
    tasks: tuple[str, ...] = (),
    published_images: tuple[int, int] | None = None,
    disjoint: Disjoint = "plain",
    doubt: Doubt | None = None,
    takes_settings: bool = False,
    colours: Colours = DISTINCT,
    domain_tasks: tuple[str, ...] = (),
) -> Callable[[Opener], Opener]:
    """Register ``open(root) -> Source``, or ``open(root, settings)``, under a name.

    It lists files; whether they are there is checked elsewhere.
    """

    def register(opener: Opener) -> Opener:
        if "/" in name or not name:
            raise InputError(f"a dataset cannot be called '{name}': it is the first word of DATASET/TASK/SETTING.")
        entry = DatasetEntry(
            name, summary, opener, tasks, domain_tasks, published_images, disjoint, doubt, takes_settings, colours
        )
        DATASETS.add(entry, opener)
        return opener

    return register


def describe_datasets() -> list[DatasetEntry]:
    """Every registered dataset, by name."""
    return DATASETS.all()


def dataset_names() -> list[str]:
    """The names a protocol can begin with."""
    return DATASETS.names()


def dataset_entry(name: str) -> DatasetEntry:
    """A dataset by name."""
    return DATASETS.find(name)


def open_source(name: str, root: Path | None, data: DataConfig | None = None) -> Source:
    """Open a dataset by name; its files are all there, but not yet read."""
    source = dataset_entry(name).read(root, data)
    missing = [*source.train.missing(), *source.val.missing()]
    if missing:
        others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(f"{missing[0]} is missing{others}: is the archive fully unpacked?")
    return source
