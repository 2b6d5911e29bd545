"""Models trained elsewhere: any smp model, torchvision's DeepLab and FCN, with their class list.

Weights are copied into a segmenter that must then say what the original says, so that a model that cannot be taken over
is refused rather than changed.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import segmentation_models_pytorch as smp
import torch
import torchvision.models.segmentation as zoo
from torch import Tensor, nn

from incseg.curriculum.extension import BACKGROUND_NAMES, plain
from incseg.deploy.model import Model
from incseg.errors import InputError, closest
from incseg.models import Architecture, Segmenter
from incseg.models.pretrained import read_state
from incseg.models.torchvision_models import NAMES, Parts

Statistics = Sequence[float] | None
# Arguments of an smp model that are no options of its decoder: heads and weights come from the model itself.
NOT_OPTIONS = {"encoder_name", "encoder_weights", "in_channels", "classes", "activation", "aux_params"}
TOLERANCE = 1e-4  # of the largest logit


def from_smp(model: nn.Module, classes: Sequence[str], mean: Statistics = None, std: Statistics = None) -> Model:
    """Take over a model of segmentation-models-pytorch.

    Args:
        model: any smp model whose head ends in one convolution; it stays as it is.
        classes: the names of its channels, background first.
        mean: what it expects images, scaled to 0 … 1, to be normalised with; ImageNet's, or what timm says of its
            encoder, unless given.
        std: likewise.
    """
    config: dict[str, Any] = dict(getattr(model, "config", {}))
    decoder = type(model).__name__.lower()
    if decoder not in smp.MODEL_ARCHITECTURES_MAPPING or "encoder_name" not in config:
        raise InputError(f"a {type(model).__name__} is not a model of segmentation-models-pytorch.")
    if config.get("in_channels", 3) != 3:
        raise InputError(
            f"the model looks at {config['in_channels']} channels: incseg's look at three, red green blue."
        )
    original = copy.deepcopy(model).cpu().eval()
    head = original.get_submodule("segmentation_head")
    convolutions = [layer for layer in head.modules() if isinstance(layer, nn.Conv2d)]
    if len(convolutions) != 1:
        raise InputError(
            f"the head of smp's {type(model).__name__} has {len(convolutions)} convolutions: incseg needs one."
        )
    for name, layer in head.named_children():
        if isinstance(layer, smp.base.modules.Activation):
            setattr(head, name, nn.Identity())  # networks here return logits
    architecture = Architecture(
        encoder=config["encoder_name"],
        decoder=decoder,
        output_stride=config.get("encoder_output_stride", 16),
        decoder_options={name: value for name, value in config.items() if name not in NOT_OPTIONS},
        classifier_kernel=convolutions[0].kernel_size[0],
        align_corners=True,
    )
    return _adapted(original, original, convolutions[0], architecture, classes, mean, std)


def from_torchvision(
    model: nn.Module, classes: Sequence[str], mean: Statistics = None, std: Statistics = None
) -> Model:
    """Take over torchvision's deeplabv3 or fcn; an auxiliary classifier is left behind.

    Args:
        model: deeplabv3 or fcn, as torchvision.models.segmentation builds them; it stays as it is.
        classes: the names of its channels, background first.
        mean: what it expects images, scaled to 0 … 1, to be normalised with; ImageNet's unless given.
        std: likewise.
    """
    name = next((name for name in NAMES if _same_shape(model, name)), None)
    if name is None:
        raise InputError(f"a {type(model).__name__} of this shape is none of torchvision's {', '.join(NAMES)}.")
    original = copy.deepcopy(model).cpu().eval()
    decoder, _, encoder = name.partition("_")
    architecture = Architecture(encoder=encoder, decoder=decoder, output_stride=8, library="torchvision")
    parts = Parts(original)
    last = parts.segmentation_head
    assert isinstance(last, nn.Conv2d)
    return _adapted(original, parts, last, architecture, classes, mean, std)


def read_checkpoint(
    checkpoint: Path, kind: str | None, encoder: str, classes: Sequence[str], mean: Statistics, std: Statistics
) -> Model:
    """Build the network that ``kind`` names, fill it with a file's weights and take it over.

    Args:
        checkpoint: a ``.safetensors`` or ``.pth`` file of weights by name, or a folder written by smp's
            ``save_pretrained``.
        kind: ``smp:unet``, ``torchvision:deeplabv3_resnet50`` …; a folder needs none.
        encoder: for smp.
        classes: the names of its channels, background first.
        mean: see :func:`from_smp`.
        std: likewise.
    """
    _check_classes(classes)
    if checkpoint.is_dir():
        try:
            return from_smp(smp.from_pretrained(str(checkpoint)), classes, mean, std)
        except (OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
            raise InputError(f"{checkpoint} is not a folder of smp's save_pretrained ({error}).") from error
    library, _, name = (kind or "").partition(":")
    if library == "smp" and name.lower() in smp.MODEL_ARCHITECTURES_MAPPING:
        # Built by a segmenter first, for its sentence about an encoder that does not exist.
        Segmenter(Architecture(encoder=encoder, decoder=name), [len(classes)])
        model: nn.Module = smp.create_model(name, encoder_name=encoder, encoder_weights=None, classes=len(classes))
        return from_smp(_filled(model, checkpoint), classes, mean, std)
    if library == "torchvision" and name in NAMES:
        model = getattr(zoo, name)(weights=None, weights_backbone=None, num_classes=len(classes), aux_loss=False)
        return from_torchvision(_filled(model, checkpoint), classes, mean, std)
    kinds = [f"smp:{name}" for name in sorted(smp.MODEL_ARCHITECTURES_MAPPING)] + [
        f"torchvision:{name}" for name in NAMES
    ]
    raise InputError(f"--kind '{kind or ''}' is not known: choose from {', '.join(kinds)}.{closest(kind or '', kinds)}")


def _adapted(
    original: nn.Module,
    parts: Any,
    last: nn.Conv2d,
    architecture: Architecture,
    classes: Sequence[str],
    mean: Statistics,
    std: Statistics,
) -> Model:
    """A segmenter with the weights of ``parts``, that has proved to say what the original says."""
    _check_classes(classes)
    if last.out_channels != len(classes):
        raise InputError(
            f"the model has {last.out_channels} channels, and the class list {len(classes)} names: they must be as "
            "many, background first."
        )
    for name, numbers in (("mean", mean), ("std", std)):
        if numbers is not None and (len(numbers) != 3 or (name == "std" and min(numbers) <= 0)):
            raise InputError(f"{name} must be three numbers, for red, green and blue, not {tuple(numbers)}.")
    segmenter = Segmenter(architecture, [len(classes)], mean, std)
    segmenter.encoder.load_state_dict(parts.encoder.state_dict())
    segmenter.decoder.load_state_dict(parts.decoder.state_dict())
    head = segmenter.softmax_head.heads[0]
    bias = last.bias if last.bias is not None else torch.zeros(len(classes))
    head.load_state_dict({"weight": last.weight, "bias": bias})
    segmenter.eval()
    _require_same(original, segmenter)
    return Model(segmenter, tuple(name.strip() for name in classes))


@torch.no_grad()
def _require_same(original: nn.Module, segmenter: Segmenter) -> None:
    images = torch.randint(0, 256, (2, 3, 128, 160), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    said = original(segmenter.normalise(images))
    expected: Tensor = said["out"] if isinstance(said, Mapping) else said[0] if isinstance(said, tuple) else said
    found = segmenter.segment(images)
    if expected.shape != found.shape or not torch.allclose(
        found, expected, atol=TOLERANCE * float(expected.abs().max())
    ):
        apart = f"by up to {float((found - expected).abs().max()):.2g}" if expected.shape == found.shape else "in size"
        raise InputError(f"this model cannot be taken over: what incseg makes of it differs from the original {apart}.")


def _check_classes(classes: Sequence[str]) -> None:
    if len(classes) < 2:
        raise InputError(
            f"the class list names {len(classes)} classes: it must name the background and at least one more."
        )
    if plain(classes[0]) not in BACKGROUND_NAMES:
        raise InputError(
            f"the first class is '{classes[0]}', but channel 0 must be the background, called 'background': it is "
            "what new classes are learnt from, so a model without one cannot be extended."
        )
    doubled = sorted({name for name in classes if [plain(other) for other in classes].count(plain(name)) > 1})
    if doubled:
        raise InputError(f"the class list names '{doubled[0]}' twice: every class needs a name of its own.")


def _same_shape(model: nn.Module, name: str) -> bool:
    """Whether a model is of that kind, whatever its number of classes and its auxiliary classifier."""
    with torch.device("meta"):
        kind: nn.Module = getattr(zoo, name)(weights=None, weights_backbone=None, num_classes=1, aux_loss=False)

    def shapes(whole: nn.Module) -> dict[str, torch.Size]:
        return {
            key: value.shape[1:] for key, value in whole.state_dict().items() if not key.startswith("aux_classifier")
        }

    return type(model) is type(kind) and shapes(model) == shapes(kind)


def _filled(model: nn.Module, checkpoint: Path) -> nn.Module:
    state = {name: tensor for name, tensor in read_state(checkpoint).items() if not name.startswith("aux_classifier.")}
    for prefix in ("module.", "model."):  # what training loops wrap around a network
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the weights of {checkpoint} do not fit this kind of network: {reason}…") from error
    return model
