"""A model on disk: one safetensors file with its weights, architecture, class names and history."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_args

import torch
from torch import Tensor

from incseg.colours import DISTINCT, Colours
from incseg.errors import DamagedError, InputError
from incseg.model_header import STATISTICS, read_header, require_description
from incseg.models.closed_form import Statistics
from incseg.models.devices import choose_device, exact_device
from incseg.models.gather import Fit, as_state, is_of
from incseg.models.segmenter import Architecture, Segmenter
from incseg.models.tensor_file import as_stored, read_tensors, write_tensors
from incseg.protocol import count_classes
from incseg.run_folder import model_file, statistics_file

StepHistory = Mapping[str, Any]  # classes, method, data, settings and scores of one step that a model has learnt


@dataclass(frozen=True)
class Description:
    """The metadata of a model file."""

    architecture: Architecture
    head_sizes: list[int]
    classes: tuple[str, ...]
    history: list[StepHistory] = field(default_factory=list)
    """One entry per step learnt, oldest first; empty for a model trained elsewhere."""
    colours: Colours = DISTINCT
    """The palette in which its classes are drawn."""


OF_ANOTHER = (
    "they belong to another model. Put its own there, or gather them again with 'incseg statistics MODEL --data DIR "
    "--overwrite'"
)


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A segmenter with the names of its classes and its history."""

    segmenter: Segmenter
    classes: tuple[str, ...]
    """By channel, background first."""
    history: Sequence[StepHistory] = ()
    """One entry per step learnt, oldest first; empty for a model trained elsewhere."""
    path: Path | None = None
    """The file it was read from."""
    memory: Mapping[str, Tensor] | None = field(default=None, repr=False, compare=False)
    """What the method that trained it remembers, the statistics of a closed-form head among it; None: in a file beside
    its own. :meth:`remembered` asks for neither before it is needed."""
    colours: Colours = DISTINCT
    """The palette in which its classes are drawn; an extension keeps it."""

    @classmethod
    def open(cls, path: str | Path, step: int | None = None, device: str = "auto") -> Self:
        """Load a model.

        Args:
            path: the folder of a run (its last finished step), a ``step-K`` folder, or a ``.safetensors`` file.
            step: which step of a run, instead of the last.
            device: "cpu", "cuda", "cuda:1", "mps", or "auto" for a GPU if there is one.
        """
        file = model_file(Path(path), step)
        segmenter, classes = load_model(file, choose_device(device))
        described = describe_model(file)
        return cls(segmenter, classes, described.history, file, colours=described.colours)

    def __repr__(self) -> str:
        network = self.segmenter.architecture
        names = textwrap.shorten(", ".join(self.classes[1:]), 60, placeholder=" …")
        place = "" if self.path is None else f", from {self.path}"
        return (
            f"{type(self).__name__}({count_classes(self.classes)}: {names}; {network.encoder} {network.decoder}, "
            f"{self.segmenter.classifier.kind} head, on {self.device}{place})"
        )

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.segmenter.mean.device

    @property
    def exact_device(self) -> torch.device:
        """Where its statistics are."""
        return exact_device(self.device)

    def remembered(self) -> dict[str, Tensor]:
        """What the method that trained it remembers, by name; of a model in a file, what lies beside that file."""
        if self.memory is not None:
            return dict(self.memory)
        return load_memory(statistics_file(self.path)) if self.path is not None else {}

    def statistics(self) -> tuple[Statistics, Fit] | None:
        """The sums from which a closed-form head is solved, and the rules they were made by; None if it has none."""
        found = {name.removeprefix(STATISTICS): tensor for name, tensor in statistics_among(self.remembered()).items()}
        if not found:
            return None
        statistics = Statistics.from_state({name: tensor.to(self.exact_device) for name, tensor in found.items()})
        if statistics.num_classes != len(self.classes):
            raise InputError(
                f"the statistics beside {self.path} are of {statistics.num_classes - 1} classes and the model knows "
                f"{len(self.classes) - 1}: {OF_ANOTHER}."
            )
        if statistics.layout.original and self.segmenter.original is None:
            raise InputError(
                f"the statistics beside {self.path} are of a model that keeps its encoder as it was before training, "
                f"and this one does not: {OF_ANOTHER}."
            )
        if not is_of(found, self.segmenter):
            raise InputError(
                f"the statistics beside {self.path} are not those that it was saved with, and a head that is solved "
                f"from them could be wrong: {OF_ANOTHER}."
            )
        return statistics, Fit.from_state(found)

    def save(self, path: str | Path) -> Path:
        """Write the model as one file, and its statistics, if it has any, beside it; returns the path of the model."""
        statistics = statistics_among(self.remembered())
        save_model(self.segmenter, self.classes, Path(path), self.history, self.colours)
        save_memory(statistics, statistics_file(Path(path)))
        return Path(path)


def statistics_among(memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of all that a method remembers, what an extension in closed form needs."""
    return {name: tensor for name, tensor in memory.items() if name.startswith(STATISTICS)}


def as_memory(statistics: Statistics, fit: Fit, segmenter: Segmenter) -> dict[str, Tensor]:
    """Statistics, their rules and their model as a method remembers them."""
    return {f"{STATISTICS}{name}": tensor for name, tensor in as_state(statistics, fit, segmenter).items()}


def load_memory(path: Path) -> dict[str, Tensor]:
    """What :func:`save_memory` wrote; nothing where there is no such file."""
    return read_tensors(path)[1] if path.is_file() else {}


def save_memory(memory: Mapping[str, Tensor], path: Path) -> None:
    """Write what a method remembers; without anything to remember there must be no file, not even one of before."""
    if not memory:
        path.unlink(missing_ok=True)
    else:
        write_tensors(path, memory)


def save_model(
    segmenter: Segmenter,
    classes: Sequence[str],
    path: Path,
    history: Sequence[StepHistory] = (),
    colours: Colours = DISTINCT,
) -> None:
    """Write weights, architecture, head sizes, class names, history and palette; a reader never sees half a file."""
    description = {
        "architecture": segmenter.architecture.model_dump(mode="json", exclude_none=True),
        "head_sizes": segmenter.classifier.head_sizes,
        "classes": list(classes),
        "history": list(history),
        "colours": colours,
    }
    state = {
        name: as_stored(tensor) if name.startswith("original.") else tensor
        for name, tensor in segmenter.state_dict().items()
    }
    write_tensors(path, state, description)


def describe_model(path: Path) -> Description:
    """Read the metadata of a model file, without its weights."""
    return _description(path, read_header(path).description)


def load_model(path: Path, device: torch.device | str = "cpu") -> tuple[Segmenter, tuple[str, ...]]:
    """Rebuild a saved segmenter, in evaluation mode, and its class names, background first."""
    metadata, state = read_tensors(path)
    description = _description(path, metadata)
    _require_fitting(path, description, state)
    try:
        segmenter = Segmenter(description.architecture, description.head_sizes)
        segmenter.load_state_dict(state)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise DamagedError(f"{path} describes a model that cannot be built ({reason}).") from None
    return segmenter.eval().to(device), description.classes


def _description(path: Path, values: dict[str, Any] | None) -> Description:
    """The metadata, checked: a file may come from anywhere."""
    values = require_description(path, values)
    try:
        architecture = Architecture(**values["architecture"])
        sizes, classes = values["head_sizes"], values["classes"]
        history = values.get("history", [])  # files of version 0.1.0 and before have none
        colours = values.get("colours", DISTINCT)
        if not _are(int, sizes) or not _are(str, classes) or not _are(dict, history or [{}]):
            raise TypeError("head_sizes must be numbers, classes names, and history entries of steps")
        if min(sizes) < 1 or sum(sizes) != len(classes):
            raise ValueError(f"head_sizes {sizes} do not fit {len(classes)} classes")
        if colours not in get_args(Colours):
            raise ValueError(f"{colours!r} is not a palette")
    except (KeyError, TypeError, ValueError) as error:  # ValueError: also pydantic's
        reason = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise DamagedError(f"{path} does not say how to build its model: {reason}.") from None
    return Description(architecture, sizes, tuple(classes), history, colours)


def _are(kind: type, values: object) -> bool:
    return isinstance(values, list) and bool(values) and all(type(value) is kind for value in values)


def _require_fitting(path: Path, description: Description, state: Mapping[str, Tensor]) -> None:
    """Refuse a description that does not fit the tensors, before memory is taken for sizes that may be absurd."""
    try:
        with torch.device("meta"):
            expected = Segmenter(description.architecture, description.head_sizes).state_dict()
    except Exception:  # some encoders cannot be built without memory; what is wrong is said when it is really built
        return
    for name in sorted(expected.keys() | state.keys()):
        there = list(state[name].shape) if name in state else "missing"
        needed = list(expected[name].shape) if name in expected else "no part of it"
        if there != needed:
            raise DamagedError(
                f"{path} does not hold the model it describes: {name} is {there}, it should be {needed}."
            )
