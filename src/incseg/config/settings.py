"""Every setting of a run, declared once; the frozen sections travel down to whoever needs them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from incseg.errors import InputError, closest


class Section(BaseModel):
    """A group of settings; an unknown name is an error, not a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class DataConfig(Section):
    """Which data, and how it is labelled."""

    SCORING: ClassVar = ("scoring", "future", "scored_void", "background", "score_on")
    """Settings that only decide how a trained model is scored: 'incseg eval' may change them."""

    root: Path | None = None
    """Folder of the dataset (the embedded 'shapes' needs none). On the command line also --data-root."""
    crop_size: int = Field(default=512, ge=32, multiple_of=32)
    """Side of the square training crops; a multiple of 32."""
    workers: int = Field(default=4, ge=0)
    """Processes that load images, at most one per core; 0: the training process itself. Results do not depend on it."""
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
    """What is scored of an image: all of it at its own size, or, as in the reference codebases, a centre crop of
    crop_size after resizing the short side to that."""
    score_on: Literal["seen", "all"] = "seen"
    """Validation images scored after a step: those that show a class seen so far (as the reference), or all."""

    known: tuple[str, ...] | None = None
    """The classes that a given model already knows, background first; 'incseg extend' sets it."""
    validation: Path | None = None
    """A second folder to score on, its classes matched by name; 'incseg extend' sets it."""

    @field_validator("root", "splits", "validation")
    @classmethod
    def _from_anywhere(cls, path: Path | None) -> Path | None:
        """Absolute, so that a run can be resumed from another folder, or with another spelling of the path."""
        return None if path is None else path.expanduser().resolve()

    @field_validator("class_order", mode="before")
    @classmethod
    def _separated_by_commas(cls, order: object) -> object:
        return tuple(name.strip() for name in order.split(",")) if isinstance(order, str) else order


class Network(Section):
    """What a person chooses of a network, and what a saved model says of its own."""

    encoder: str = "resnet101"
    """Any smp or timm encoder by name."""
    decoder: str = "deeplabv3"
    """Any smp decoder by name."""
    output_stride: int = 16
    """Stride of the embedding (deeplabv3 and deeplabv3plus: 8 or 16)."""
    decoder_options: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the smp decoder (in recipe files)."""


class ModelConfig(Network):
    """The network."""

    weights: str = "imagenet"
    """Encoder weights: 'imagenet' (from the hub), 'none', or a .safetensors or .pth file."""


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

    def learning_rate_at(self, step: int, progress: float) -> float:
        """The poly schedule ``lr₀ (1 − progress)^power``; progress runs from 0 to 1 in every step."""
        initial = self.learning_rate if step == 0 else self.incremental_learning_rate
        return initial * math.pow(1 - progress, self.power)

    def stable_curvature(self, step: int) -> float:
        """The largest second derivative at which SGD converges: ``(2 + 2β) / ((1 + 2β) lr₀)``, β the momentum."""
        return (2 + 2 * self.momentum) / ((1 + 2 * self.momentum) * self.learning_rate_at(step, progress=0))


class EngineConfig(Section):
    """Where and how it runs; of all this only the precision belongs to the experiment."""

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
    statistics: bool = True
    """Keep beside the final model what 'incseg extend' needs to add classes in seconds: sums over all training pixels,
    no image, at most 70 MB. Kept where the last step labels every class, as in a run of a single step."""

    @field_validator("loggers", mode="before")
    @classmethod
    def _separated_by_commas(cls, loggers: object) -> object:
        if loggers in (None, "none"):
            return ()
        return tuple(name.strip() for name in loggers.split(",")) if isinstance(loggers, str) else loggers


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
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise InputError(f"there is no setting '{name}'.{closest(name, setting_names())}") from None
        raise InputError(f"the setting {name} cannot be {first['input']!r}: {first['msg']}.") from None
    sections = [name.split(".")[0] for name in setting_names() if "." in name]
    owners = [*dict.fromkeys(sections), *filter(None, config.method.split("+"))]
    for owner in config.settings:
        if owner not in owners and owner not in names_in(config.method):
            raise InputError(
                f"'{owner}' is neither a group of settings nor part of the method '{config.method}': "
                f"use one of {', '.join(owners)}.{closest(owner, owners)}"
            )
    return config


def names_in(method: str) -> set[str]:
    """Names that may stand in a sum, those that end in a plus included; what they mean, ``methods`` knows."""
    names = set("".join(method.split()).split("+")) - {""}
    return names | {f"{name}+" for name in names}


def setting_names() -> list[str]:
    """Every setting, dotted."""
    names = []
    for name, field in RunConfig.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            names += [f"{name}.{inner}" for inner in kind.model_fields]
        else:
            names.append(name)
    return names
