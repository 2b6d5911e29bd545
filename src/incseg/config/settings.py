"""Every setting of a run, declared once; the rest of the library receives these frozen sections themselves."""

import contextlib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from incseg.config.strict_yaml import parse_yaml
from incseg.errors import InputError, closest
from incseg.files import expanded
from incseg.protocol import Protocol, Setting

CODE = "generator"
"""The setting of a method that names code to run: from the command line, and from a file only if that is trusted."""


LARGEST_NUMBER = 2**63 - 1
LONGEST_SHOWN = 100  # letters of a wrong value that its refusal repeats
YEAR = 365 * 24 * 3600  # seconds; clocks overflow at much more


def is_plain_number(text: str) -> bool:
    """Whether a number is written with 0 to 9: Python also takes other digits, and 1_0 for 10."""
    return text.isascii() and "_" not in text


class Section(BaseModel):
    """A group of settings; an unknown name is an error, not a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    always_printed: ClassVar[tuple[str, ...]] = ()

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
        """When printed, only what differs from the defaults, and what nobody should have to guess."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name in self.always_printed or value != field.get_default(call_default_factory=True):
                yield name, value

    @field_validator("*", mode="before")
    @classmethod
    def _from_text(cls, value: object, info: ValidationInfo) -> object:
        """Read what pydantic does not: 'none', choices of numbers, lists with commas, and dictionaries as in YAML."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        alternatives = (annotation, *get_args(annotation))
        kinds = {get_origin(kind) or kind for kind in alternatives}
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            empty = () if tuple in kinds else value  # 'none' may also be a text like any other
            return None if type(None) in kinds else empty
        if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
            raise ValueError("it takes a number, not true or false")
        if isinstance(value, str) and kinds & {int, float} and not is_plain_number(value):
            raise ValueError("write numbers with the digits 0 to 9")
        if isinstance(value, str) and tuple in kinds:
            items = tuple(item.strip() for item in value.split(","))
            if not all(items):
                raise ValueError("it takes names separated by commas, or none; one of them is empty")
            return items
        if Literal in kinds:
            choices = [choice for kind in alternatives if get_origin(kind) is Literal for choice in get_args(kind)]
            return next((choice for choice in choices if as_text(choice) == value), value)
        if isinstance(value, str) and dict in kinds:
            with contextlib.suppress(InputError):
                return parse_yaml(value, "it")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _fits(cls, value: object) -> object:
        """Refuse whole numbers that only Python can count to."""
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            raise ValueError(f"at most {LARGEST_NUMBER} is accepted")
        return value


HeadKind = Literal["softmax", "sigmoid", "branched"]
AS_WORDS = {"background": "as background", "ignore": "ignored"}


class DataConfig(Section):
    """The data: where it is, how it is labelled and scored."""

    SCORING: ClassVar = ("scoring", "future", "scored_void", "background", "score_on")
    """Settings that only decide how a trained model is scored: 'incseg eval' may change them."""

    READING: ClassVar = ("format", "unlabelled", "validation_share")
    """Settings that say how a folder in a format of another tool is read."""

    root: Path | None = None
    """Folder of the dataset; the embedded 'shapes' needs none. Can also be written --data-root."""
    format: str = "auto"
    """Format of a folder of your own: auto (told by its contents), coco, yolo, labelme, cvat, masks, hugging-face."""
    unlabelled: Literal["background", "ignore"] = "background"
    """How pixels that no annotation covers are read from these formats: as background, or ignored."""
    validation_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of a folder's images that is kept for validation if nothing lists them; chosen by the classes they show."""
    crop_size: int = Field(default=512, ge=32, multiple_of=32)
    """Side of the square training crops; a multiple of 32."""
    longest_side: int | None = Field(default=None, ge=32)
    """Images with a longer side than this are reduced to it, in training as in scoring and prediction, and predictions
    are enlarged again; the model remembers it. none: images are taken at their own size."""
    workers: int = Field(default=16, ge=0)
    """Processes that load images for each device, at most one per core; 0: the training process itself. Results do not
    depend on it."""
    cache: Literal["auto", "gpu", "ram", "none"] = "auto"
    """Where training images are kept once they are decoded: on the GPU, which then cuts the crops itself, in RAM, or
    nowhere; auto: on the GPU if they take at most a quarter of its free memory, else nowhere. Crops are the same."""
    class_order: tuple[str, ...] | None = None
    """Foreground class names in the order in which they are learnt, separated by commas, or the name of a published
    order (for ade20k: a, b or c; for voc: plop-a to plop-w); none: the dataset's own order."""
    splits: Path | None = None
    """Folder with a list of training images per step (train-0.npy or train-0.txt, …), or a file written by 'incseg data
    split --out'; none: the protocol's rule. Can also be written --splits."""
    saliency: Path | None = None
    """Folder of saliency maps of the training images, made by any detector: grey PNGs under the images' names, salient
    from 128 on; none: without. Only ssul uses them, for which just salient background is unknown."""
    has_background: bool = True
    """Whether the data has a background, the class of id 0. false: every pixel has a class or is unlabelled. Then
    id 0 is unlabelled as well, in training and in scoring, whatever void and the others say, and never predicted."""
    void: Literal["ignore", "background"] = "ignore"
    """How unlabelled pixels (255) count in training: ignored (as in the paper), or as background (as MiB on VOC)."""
    scored_void: Literal["ignore", "background"] = "ignore"
    """How unlabelled pixels (255) count in scoring: ignored, or as background (as UCD on Cityscapes)."""
    future: Literal["background", "ignore"] = "background"
    """How classes of later steps count in scoring: as background (as in UCD and PLOP), or ignored (as in MiB)."""
    background: Literal["score", "ignore"] = "score"
    """How background counts in scoring: as a class like the others, or ignored (as MiB on ADE20K)."""
    scoring: Literal["full", "paper"] = "full"
    """What is scored of an image: all of it at its own size, or, as in the reference codebases, a centre crop of
    crop_size after resizing the short side to that."""
    score_on: Literal["seen", "all"] = "seen"
    """Validation images scored after a step: those that show a class learnt so far (as the reference), or all."""

    sampling: Literal["uniform", "balanced"] = "uniform"
    """How training images are chosen: each once per epoch, or by chance, so that every class a step learns is shown
    about equally often: rare classes more than by their number of images."""

    changed: Literal["refuse", "accept"] = "refuse"
    """Whether a run may resume when its data has changed since it began: other images, masks, classes or folder."""

    on_error: Literal["stop", "skip"] = "stop"
    """What to do about an image or mask that cannot be read: stop and name it, or skip it: take the next one of the
    step in its place in training, leave it out in scoring, and list it in the result."""

    known: tuple[str, ...] | None = None
    """The classes that a given model already knows, background first; 'incseg extend' sets it."""
    validation: Path | None = None
    """A second folder to score on, its classes matched by name; 'incseg extend' sets it."""
    replay: Path | None = None
    """A folder of old images with their labels, from which half of every batch is taken; 'incseg extend' sets it."""
    replayed_images: int | None = Field(default=None, ge=1)
    """At most so many of them, balanced by class; none: all. 'incseg extend' sets it."""
    complete: bool = False
    """For 'incseg extend': the folder labels every class that the model knows wherever its images show it, so that its
    background is none of them. false: anything known may lie in its background."""

    @property
    def after_training(self) -> "DataConfig":
        """The same without old images and saliency maps: only a training needs them, and they may be gone."""
        return self.model_copy(update={"replay": None, "replayed_images": None, "saliency": None})

    def scored_as(self, *, by_domain: bool) -> str:
        """See :attr:`RunConfig.scored_as`."""
        part = "whole images" if self.scoring == "full" else f"the middle square at {self.crop_size} pixels"
        words = [f"{self.scoring} ({part})"]
        if self.known is not None:
            return ", ".join([*words, "each class on images that label it"])
        if not self.has_background:
            words += ["data without background"]
        else:
            words += [] if by_domain else [f"classes to come {AS_WORDS[self.future]}"]
            words += ["unlabelled pixels as background"] if self.scored_void == "background" else []
            words += ["background not scored"] if self.background == "ignore" else []
        seen = ["only images with a class learnt so far"] if self.score_on == "seen" else []
        return ", ".join([*words, *(["images of the domains learnt so far"] if by_domain else seen)])

    @field_validator("root", "splits", "saliency", "validation", "replay")
    @classmethod
    def _from_anywhere(cls, path: Path | None) -> Path | None:
        """Absolute, so that a run can be resumed from another folder, or with another spelling of the path."""
        return None if path is None else expanded(path).resolve()


class Network(Section):
    """What a person chooses of a network, and what a saved model says of its own."""

    encoder: str = "resnet101"
    """Name of any smp or timm encoder."""
    decoder: str = "deeplabv3"
    """Name of any smp decoder, or deeplabv3-mib: DeepLab-v3's head as in the code of MiB, PLOP and UCD."""
    output_stride: int = 16
    """Stride of the embedding (deeplabv3 and deeplabv3plus: 8 or 16)."""
    decoder_options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the decoder by name."""
    head: HeadKind = "softmax"
    """What the scores of the classifier mean: softmax (classes compete, background among them), sigmoid (one yes-or-no
    per class, and background where none says yes, as in DKD and STAR), or branched (SSUL's: a branch per step, and a
    yes-or-no also for background and for what is unknown)."""
    activation: Literal["leaky"] | None = None
    """What takes the place of the encoder's ReLUs: leaky (slope 0.01, as in the code of MiB, PLOP and UCD); none: they
    stay."""


class ModelConfig(Network):
    """The network."""

    weights: str = "imagenet"
    """Encoder weights: 'imagenet' (from the hub), 'none', or a .safetensors or .pth file."""


class OptimConfig(Section):
    """SGD with Nesterov momentum and the poly schedule; the defaults are the paper's for VOC."""

    epochs: int = Field(default=30, ge=1, le=1_000_000)
    """Epochs per step; see incremental_epochs."""
    incremental_epochs: int | None = Field(default=None, ge=1, le=1_000_000)
    """Epochs of every later step; none: as many as step 0."""
    batch_size: int = Field(default=24, ge=1)
    """Images per iteration, over all devices together."""
    learning_rate: float = Field(default=0.01, gt=0)
    """Initial learning rate of step 0."""
    incremental_learning_rate: float = Field(default=0.001, gt=0)
    """Initial learning rate of every later step."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Nesterov momentum."""
    weight_decay: float = Field(default=1e-4, ge=0)
    """L2 penalty on all parameters."""
    power: float = Field(default=0.9, ge=0)
    """The learning rate falls as (1 − progress)^power within each step."""
    freeze_norm: bool = False
    """Keep batch normalisation as it is in every step after the first: its statistics, scales and shifts."""
    encoder_rate: float = Field(default=1.0, ge=0)
    """Factor on the learning rate of the encoder in every step after the first; 0 freezes its weights (and freeze_norm
    its statistics)."""
    decoder_rate: float = Field(default=1.0, ge=0)
    """The same for the decoder."""
    old_heads_rate: float = Field(default=1.0, ge=0)
    """The same for the heads of earlier steps, background's among them where it has one."""
    new_heads_rate: float = Field(default=1.0, ge=0)
    """The same for the head of the step."""

    LATER_STEPS: ClassVar = (
        "incremental_epochs", "incremental_learning_rate",
        "freeze_norm", "encoder_rate", "decoder_rate", "old_heads_rate", "new_heads_rate",
    )  # fmt: skip
    """Settings that say nothing of step 0."""

    def epochs_at(self, step: int) -> int:
        """How often a step sees its images."""
        return self.epochs if step == 0 or self.incremental_epochs is None else self.incremental_epochs

    def learning_rate_at(self, step: int, progress: float) -> float:
        """The poly schedule ``lr₀ (1 − progress)^power``; progress runs from 0 to 1 in every step."""
        initial = self.learning_rate if step == 0 else self.incremental_learning_rate
        return initial * math.pow(1 - progress, self.power)

    def stable_curvature(self, step: int) -> float:
        """The largest second derivative at which SGD converges: ``(2 + 2β) / ((1 + 2β) lr₀)``, β the momentum.

        The rate is the highest among parameters that existed before the step: nothing holds those of a new head.
        """
        factor = 1.0 if step == 0 else max(self.encoder_rate, self.decoder_rate, self.old_heads_rate)
        rate = factor * self.learning_rate_at(step, progress=0)
        return (2 + 2 * self.momentum) / ((1 + 2 * self.momentum) * rate) if rate else math.inf


class EngineConfig(Section):
    """Where and how it runs; of all this only the precision belongs to the experiment."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Kind of device to run on."""
    devices: int = Field(default=1, ge=1)
    """Devices (or CPU processes) per machine."""
    nodes: int = Field(default=1, ge=1)
    """Number of machines."""
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = "auto"
    """Numerical precision of the network; losses are always computed in float32. auto: bf16-mixed where the GPU has it,
    16-mixed on older ones, 32-true elsewhere; a run keeps what it began with."""
    compile: bool = True
    """Make an iteration quick on a GPU: kernels for the losses, which never hold logits at the size of the image, one
    for the optimizer, and the network captured as a graph and, in long runs, compiled. false: plain PyTorch, one
    operation after another; results are equal to rounding. On a CPU, features and logits are enlarged by matrix
    products, taps of a convolution that only meet padding are left out, and PyTorch's fused optimizer is used."""
    accumulate: int = Field(default=1, ge=1)
    """Pieces into which every batch is cut, one computed after another, so that it needs less memory. The loss is that
    of the whole batch; batch normalisation sees a piece at a time."""
    recompute: bool = False
    """Keep few activations of the encoder for the backward pass and compute the others again: less memory, a third more
    time (more on a GPU, where such a network is not captured or compiled), the same result."""
    deterministic: bool = False
    """Use deterministic algorithms only (slower on a GPU; CPU runs are deterministic anyway)."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Iterations between checkpoints; none: one after every epoch, but at most one a minute."""
    log_every: int = Field(default=10, ge=1)
    """Iterations between entries in metrics.jsonl and in the loggers."""
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ("tensorboard",)
    """Loggers that also receive metrics and images, separated by commas: tensorboard, wandb, mlflow; or none."""
    max_time: float | None = Field(default=None, gt=0, le=YEAR)
    """Time after which the run saves a checkpoint and stops with exit code 75, as 90m, 2h or 1h30m; none: no limit."""
    timeout: float = Field(default=1800, gt=0, le=YEAR)
    """How long the processes of a run wait for each other before they give up, as 30m."""
    max_skipped: int = Field(default=3, ge=0)
    """Updates in a row that may be skipped because a loss or a gradient is not finite; one more stops the run."""
    score_batch_size: int = Field(default=8, ge=1)
    """Images per batch when scoring; on a GPU more of small ones: 16 of 512², 64 of 256²."""
    pictures: int = Field(default=8, ge=0)
    """Number of validation images whose predictions are saved after every step."""
    statistics: bool = True
    """Keep beside the final model what 'incseg extend' needs to add classes in seconds: sums over all training pixels,
    no image, at most 70 MB. Kept where the last step labels every class, as in a run of a single step."""
    original_encoder: bool = True
    """Keep with these also the encoder as it was before training, in the model: what it knows of other things is worth
    more to new classes than the trained one's features, and an extended model takes up to twice the time for it."""

    @field_validator("max_time", "timeout", mode="before")
    @classmethod
    def _in_seconds(cls, value: object) -> object:
        """Hours, minutes and seconds; a plain number is in seconds."""
        found = (
            re.fullmatch(r"(?:([0-9.]+)h)?(?:([0-9.]+)m)?(?:([0-9.]+)s)?", value) if isinstance(value, str) else None
        )
        if not found or not any(found.groups()):
            return value
        return sum(float(number or 0) * unit for number, unit in zip(found.groups(), (3600, 60, 1), strict=True))


class RunConfig(Section):
    """One run: a protocol, a method, and everything needed to repeat it."""

    always_printed = ("method", "seed")
    protocol: str
    """DATASET/TASK/SETTING."""
    method: str = "mib+ucd"
    """A method or a sum of methods."""
    seed: int = Field(default=42, ge=0)
    """Seed of every random choice."""

    @field_validator("method")
    @classmethod
    def _without_spaces(cls, method: str) -> str:
        return "".join(method.split())

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optim: OptimConfig = OptimConfig()
    engine: EngineConfig = EngineConfig()
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of methods by name, as in --ucd.temperature 0.1."""

    @property
    def scored_as(self) -> str:
        """The convention of the scores in words, as it stands under every table; 'N images' follows it."""
        return self.data.scored_as(by_domain=Protocol.parse(self.protocol).setting is Setting.DOMAIN)


def validate(values: Mapping[str, Any]) -> RunConfig:
    """Check values against the settings; the first problem becomes one sentence."""
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise _refusal(error) from None
    owners = [*section_types(), *filter(None, config.method.split("+"))]
    for owner in config.settings:
        if owner not in owners and owner not in names_in(config.method):
            raise InputError(
                f"'{owner}' is neither a group of settings nor part of the method '{config.method}': "
                f"use one of {', '.join(owners)}.{closest(owner, owners)}"
            )
    return config


def read_setting(section: type[Section], name: str, text: str) -> Any:
    """The value that text stands for, by the type with which the setting ``SECTION.NAME`` is declared."""
    owner, _, key = name.partition(".")
    return getattr(read_section(section, owner, {key: text}), key)


def read_section(section: type[Section], owner: str, values: Mapping[str, Any]) -> Section:
    """Values, as a file or the command line has them, by the types with which a section declares them."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise _refusal(error, owner) from None


def as_text(value: object) -> str:
    """A value as one writes it on the command line: the inverse of :func:`read_setting`."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool | dict):
        return json.dumps(value)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _refusal(error: ValidationError, *owner: str) -> InputError:
    """The first problem in one sentence; ``owner`` is the section, where a setting was read on its own."""
    first = error.errors()[0]
    name = ".".join([*owner, *(part for part in first["loc"] if isinstance(part, str))])
    if first["type"] == "extra_forbidden":
        return InputError(f"there is no setting '{name}'.{closest(name, setting_names())}")
    given = repr(first["input"])
    given = given if len(given) <= LONGEST_SHOWN else f"{given[:LONGEST_SHOWN]} …"
    message = first["msg"].removeprefix("Value error, ")
    return InputError(f"the setting {name} cannot be {given}: {message}.")


def names_in(method: str) -> set[str]:
    """Names that a sum may contain, also those that end in a plus (``ilt+``); only ``methods`` knows which exist."""
    names = set("".join(method.split()).split("+")) - {""}
    return names | {f"{name}+" for name in names}


def split_sum(text: str, known: Collection[str]) -> list[str]:
    """The names in a sum. A known name may itself end in a plus: ``"ilt++ucd"`` is ilt+ and ucd.

    >>> split_sum("mib + ucd", ()), split_sum("ilt++ucd", ["ilt", "ilt+", "ucd"])
    (['mib', 'ucd'], ['ilt+', 'ucd'])
    """
    names: list[str] = []
    for name in "".join(text.split()).split("+"):
        if not name and names and f"{names[-1]}+" in known:
            names[-1] += "+"
        else:
            names.append(name)
    return names


def refuse_twice(names: Sequence[str]) -> None:
    """Refuse a sum that names a method twice."""
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"'{name}' is named twice in '{'+'.join(names)}': name it once.")


def section_types() -> dict[str, type[Section]]:
    """The sections of a run by name, in the order in which they are declared."""
    kinds = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)}


def setting_names() -> list[str]:
    """Every setting, dotted."""
    sections = section_types()
    plain = [name for name in RunConfig.model_fields if name not in sections]
    return plain + [f"{section}.{name}" for section, kind in sections.items() for name in kind.model_fields]
