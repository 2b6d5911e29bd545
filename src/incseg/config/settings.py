"""Every setting of a run, declared once; the frozen sections travel down to whoever needs them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from incseg.errors import InputError, closest


class Section(BaseModel):
    """A group of settings; an unknown name is an error, not a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _from_text(cls, value: object, info: ValidationInfo) -> object:
        """Read what pydantic does not: 'none', and lists with commas between the items."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        kinds = {get_origin(kind) or kind for kind in (annotation, *get_args(annotation))}
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            empty = () if tuple in kinds else value  # 'none' may also be a text like any other
            return None if type(None) in kinds else empty
        if isinstance(value, str) and tuple in kinds:
            return tuple(item.strip() for item in value.split(","))
        return value


class DataConfig(Section):
    """Which data, and how it is labelled."""

    root: Path | None = None
    """Folder of the dataset (the embedded 'shapes' needs none). On the command line also --data-root."""
    crop_size: int = Field(default=512, ge=32, multiple_of=32)
    """Side of the square crops one trains on; a multiple of 32."""
    workers: int = Field(default=4, ge=0)
    """Processes that load images, at most one per core; 0: the training process itself. No influence on the result."""
    class_order: tuple[str, ...] | None = None
    """Foreground class names in the order they are learnt, separated by commas, or the name of a published order (of
    ade20k: a, b or c); the dataset's own order by default."""
    splits: Path | None = None
    """Folder with a list of training images per step (train-0.npy or train-0.txt, …), or a file that 'incseg data
    split --out' wrote, instead of the protocol's rule. On the command line also --splits."""
    void: Literal["ignore", "background"] = "ignore"
    """What unlabelled pixels (255) are while training: ignored (as in the paper), or background (as MiB on VOC)."""
    scored_void: Literal["ignore", "background"] = "ignore"
    """What unlabelled pixels (255) are when scoring: ignored, or background (as UCD on Cityscapes)."""
    future: Literal["background", "ignore"] = "background"
    """What classes still to be learnt are when scoring: background (as in UCD and PLOP), or ignored (as in MiB)."""
    background: Literal["score", "ignore"] = "score"
    """What background is when scoring: a class like others, or ignored (as MiB on ADE20K)."""
    scoring: Literal["full", "paper"] = "full"
    """What is scored of an image: all of it at its own size, or, as in the reference codebases, the square of
    crop_size in its middle after its short side was resized to that."""
    score_on: Literal["seen", "all"] = "seen"
    """Validation images scored after a step: those that show a class seen so far (as the reference), or all."""

    known: tuple[str, ...] | None = None
    """What a given model knows already, background first; 'incseg extend' sets it."""
    validation: Path | None = None
    """A second folder to be scored on, its classes matched by name; 'incseg extend' sets it."""

    @field_validator("root", "splits", "validation")
    @classmethod
    def _from_anywhere(cls, path: Path | None) -> Path | None:
        """A run can be taken up from another folder, and by another spelling of the same path."""
        return None if path is None else path.expanduser().resolve()


class ModelConfig(Section):
    """The network."""

    encoder: str = "resnet101"
    """Any smp or timm encoder by name."""
    decoder: str = "deeplabv3"
    """Any smp decoder by name."""
    output_stride: int = 16
    """Stride of the embedding (deeplabv3 and deeplabv3plus: 8 or 16)."""
    weights: str = "imagenet"
    """Encoder weights: 'imagenet' (from the hub), 'none', or a .safetensors or .pth file."""
    decoder_options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the smp decoder (in recipe files)."""


class OptimConfig(Section):
    """SGD with Nesterov momentum and the poly schedule; the defaults are the paper's for VOC."""

    epochs: int = Field(default=30, ge=1)
    """Epochs per step."""
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


class EngineConfig(Section):
    """Where and how it runs; none of this belongs to the experiment."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """What to run on."""
    devices: int = Field(default=1, ge=1)
    """Devices (or CPU processes) per machine."""
    nodes: int = Field(default=1, ge=1)
    """Machines."""
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    """Arithmetic of the network; losses are always computed in float32."""
    deterministic: bool = False
    """Ask every operation for a repeatable algorithm (slower on a GPU; CPU runs repeat anyway)."""
    checkpoint_every: int | None = Field(default=None, ge=1)
    """Iterations between checkpoints; every epoch by default."""
    log_every: int = Field(default=10, ge=1)
    """Iterations between lines in metrics.jsonl and the loggers."""
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ("tensorboard",)
    """Where numbers and pictures also go, separated by commas: tensorboard, wandb, mlflow; or none."""
    score_batch_size: int = Field(default=8, ge=1)
    """Images per batch when scoring."""
    pictures: int = Field(default=8, ge=0)
    """Validation images whose predictions are kept after every step."""


class RunConfig(Section):
    """One run: a protocol, a method, and everything needed to repeat it."""

    protocol: str
    """DATASET/TASK/SETTING."""
    method: str = "mib+ucd"
    """A method or a sum of methods."""
    seed: int = Field(default=42, ge=0)
    """Every random choice follows from it."""

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
    try:
        return getattr(section.model_validate({key: text}), key)
    except ValidationError as error:
        raise _refusal(error, owner) from None


def as_text(value: object) -> str:
    """A value as one writes it on the command line: the inverse of :func:`read_setting`."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _refusal(error: ValidationError, *owner: str) -> InputError:
    """The first problem in one sentence; ``owner`` is the section, where a setting was read on its own."""
    first = error.errors()[0]
    name = ".".join([*owner, *(part for part in first["loc"] if isinstance(part, str))])
    if first["type"] == "extra_forbidden":
        return InputError(f"there is no setting '{name}'.{closest(name, setting_names())}")
    return InputError(f"the setting {name} cannot be {first['input']!r}: {first['msg']}.")


def names_in(method: str) -> set[str]:
    """Names that may stand in a sum, those that end in a plus included; what they mean, ``methods`` knows."""
    names = set("".join(method.split()).split("+")) - {""}
    return names | {f"{name}+" for name in names}


def section_types() -> dict[str, type[Section]]:
    """The sections of a run by name, in the order in which they are declared."""
    kinds = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Section)}


def setting_names() -> list[str]:
    """Every setting, dotted."""
    sections = section_types()
    plain = [name for name in RunConfig.model_fields if name not in sections]
    return plain + [f"{section}.{name}" for section, kind in sections.items() for name in kind.model_fields]
