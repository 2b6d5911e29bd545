"""``incseg import``: convert models of segmentation-models-pytorch (smp), and torchvision's DeepLab and FCN.

The weights are copied into a segmenter, whose outputs must then equal the original's: a model that cannot be converted
faithfully is refused.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import segmentation_models_pytorch as smp
import torch
import torchvision.models.segmentation as zoo
from torch import Tensor, nn

from incseg.config import Network
from incseg.datasets.source import BACKGROUND_NAMES, plain
from incseg.deploy.model import Model
from incseg.errors import InputError, closest
from incseg.hub import fetched
from incseg.models import Architecture, Segmenter
from incseg.models.building import NOT_OPTIONS, check_network
from incseg.models.pretrained import read_state
from incseg.models.torchvision_models import NAMES, Parts
from incseg.run_folder import MODEL_FILE

Statistics = Sequence[float] | None
TOLERANCE = 1e-4  # relative to the largest logit
LAST_LAYERS = ("segmentation_head.0.weight", "classifier.4.weight")  # smp's and torchvision's: (channels, …)


def from_smp(model: nn.Module, classes: Sequence[str], mean: Statistics = None, std: Statistics = None) -> Model:
    """Convert a model of segmentation-models-pytorch.

    Args:
        model: any smp model whose head has one convolution; it is not changed.
        classes: the names of its channels, background first; of a model with one channel for yes or no, which is taken
            to be asked through a sigmoid, the background and the class.
        mean: mean of each colour over the images it was trained on, scaled to 0 … 1; by default timm's value for its
            encoder, or else ImageNet's.
        std: likewise the standard deviation.
    """
    config: dict[str, Any] = dict(getattr(model, "config", {}))
    decoder = type(model).__name__.lower()
    if decoder not in smp.MODEL_ARCHITECTURES_MAPPING or "encoder_name" not in config:
        raise InputError(f"a {type(model).__name__} is not a model of segmentation-models-pytorch.")
    if config.get("in_channels", 3) != 3:
        raise InputError(
            f"the model expects {config['in_channels']} input channels: incseg supports three, red, green and blue."
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
            setattr(head, name, nn.Identity())  # our segmenters return logits
    architecture = Architecture(
        encoder=config["encoder_name"],
        decoder=decoder,
        output_stride=config.get("encoder_output_stride", 16),
        decoder_options={name: value for name, value in config.items() if name not in NOT_OPTIONS},
        classifier_kernel=convolutions[0].kernel_size[0],
        align_corners=True,
    )
    return _convert(original, original, convolutions[0], architecture, classes, mean, std)


def from_torchvision(
    model: nn.Module, classes: Sequence[str], mean: Statistics = None, std: Statistics = None
) -> Model:
    """Convert torchvision's deeplabv3 or fcn, without its auxiliary classifier.

    Args:
        model: deeplabv3 or fcn, as torchvision.models.segmentation builds them; it is not changed.
        classes: the names of its channels, background first.
        mean: mean of each colour over the images it was trained on, scaled to 0 … 1; ImageNet's by default.
        std: likewise the standard deviation.
    """
    name = next((name for name in NAMES if _same_shape(model, name)), None)
    if name is None:
        raise InputError(f"this {type(model).__name__} is not one of torchvision's {', '.join(NAMES)}.")
    original = copy.deepcopy(model).cpu().eval()
    decoder, _, encoder = name.partition("_")
    architecture = Architecture(encoder=encoder, decoder=decoder, output_stride=8, library="torchvision")
    parts = Parts(original)
    last = parts.segmentation_head
    assert isinstance(last, nn.Conv2d)
    return _convert(original, parts, last, architecture, classes, mean, std)


def read_checkpoint(
    checkpoint: Path, kind: str | None, encoder: str, classes: Sequence[str], mean: Statistics, std: Statistics
) -> Model:
    """Build the network that ``kind`` names, load a file's weights into it and convert it.

    Args:
        checkpoint: a ``.safetensors`` or ``.pth`` file of weights by name, or a folder written by smp's
            ``save_pretrained``.
        kind: ``smp:unet``, ``torchvision:deeplabv3_resnet50`` …; not needed for a folder.
        encoder: the encoder of an smp model.
        classes: the names of its channels, background first.
        mean: see :func:`from_smp`.
        std: likewise.
    """
    _check_classes(classes)
    checkpoint = fetched(checkpoint)
    if checkpoint.is_dir():
        return from_smp(_saved_by_smp(checkpoint), classes, mean, std)
    library, name = check_kind(kind, encoder)
    state = _read_weights(checkpoint)
    channels = _channels(state, default=len(classes))
    if library == "smp":
        # A segmenter is built only for its error message, in case the decoder does not go with the encoder.
        Segmenter(Architecture(encoder=encoder, decoder=name), [len(classes)])
        model: nn.Module = smp.create_model(name, encoder_name=encoder, encoder_weights=None, classes=channels)
        return from_smp(_load_weights(model, state, checkpoint), classes, mean, std)
    model = getattr(zoo, name)(weights=None, weights_backbone=None, num_classes=channels, aux_loss=False)
    return from_torchvision(_load_weights(model, state, checkpoint), classes, mean, std)


def check_kind(kind: str | None, encoder: str) -> tuple[str, str]:
    """The library and the name of a network; refuses one that does not exist."""
    names = {"smp": sorted(smp.MODEL_ARCHITECTURES_MAPPING), "torchvision": NAMES}
    kinds = [f"{library}:{name}" for library in names for name in names[library]]
    if kind is None:
        raise InputError(f"a file of weights does not say of which network they are: add --kind, {', '.join(kinds)}.")
    library, _, name = kind.partition(":")
    if name.lower() not in names.get(library, ()):
        raise InputError(f"--kind '{kind}' is not known: choose from {', '.join(kinds)}.{closest(kind, kinds)}")
    if library == "smp":
        check_network(Network(encoder=encoder, decoder=name))
    return library, name.lower()


def _convert(
    original: nn.Module,
    parts: Any,
    last: nn.Conv2d,
    architecture: Architecture,
    classes: Sequence[str],
    mean: Statistics,
    std: Statistics,
) -> Model:
    """A model with the weights of ``parts``, after a check that its outputs equal the original's."""
    _check_classes(classes)
    is_binary = last.out_channels == 1
    if len(classes) != (2 if is_binary else last.out_channels):
        wanted = (
            "'background' and the one class that it finds" if is_binary else "one name per channel, background first"
        )
        count = f"{last.out_channels} output channel{'' if is_binary else 's'}"
        raise InputError(f"the model has {count}, but the class list has {len(classes)} names: give {wanted}.")
    for name, numbers in (("mean", mean), ("std", std)):
        if numbers is not None and (len(numbers) != 3 or (name == "std" and min(numbers) <= 0)):
            raise InputError(
                f"{name} must be three numbers, for red, green and blue (std above 0), not {tuple(numbers)}."
            )
    segmenter = Segmenter(architecture, [len(classes)], mean, std)
    segmenter.encoder.load_state_dict(parts.encoder.state_dict())
    segmenter.decoder.load_state_dict(parts.decoder.state_dict())
    head = segmenter.trained_head.heads[0]
    bias = last.bias if last.bias is not None else torch.zeros(last.out_channels)
    head.load_state_dict({"weight": _with_background(last.weight), "bias": _with_background(bias)})
    segmenter.eval()
    _check_same_outputs(original, segmenter)
    return Model(segmenter, tuple(name.strip() for name in classes))


def _with_background(channels: Tensor) -> Tensor:
    """Channels in the first axis; a single one, the logit z of a sigmoid, becomes (0, z), whose softmax is the same."""
    return channels if len(channels) > 1 else torch.cat([torch.zeros_like(channels), channels])


@torch.no_grad()
def _check_same_outputs(original: nn.Module, segmenter: Segmenter) -> None:
    images = torch.randint(0, 256, (2, 3, 128, 160), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    logits = _logits(original(segmenter.normalise(images)))
    expected = torch.stack([_with_background(of_image) for of_image in logits])
    found = segmenter.segment(images)
    if expected.shape != found.shape:
        difference = "in size"
    elif not torch.allclose(found, expected, atol=TOLERANCE * float(expected.abs().max())):
        difference = f"by up to {float((found - expected).abs().max()):.2g}"
    else:
        return
    raise InputError(
        f"this model cannot be converted: the outputs after conversion differ from the original's {difference}."
    )


def _logits(output: Any) -> Tensor:
    """torchvision returns a dictionary, smp a tensor, or a tuple if it has an auxiliary head."""
    logits: Tensor = (
        output["out"] if isinstance(output, Mapping) else output[0] if isinstance(output, tuple) else output
    )
    return logits


def _check_classes(classes: Sequence[str]) -> None:
    if len(classes) < 2:
        raise InputError(
            f"the class list has {len(classes)} names: it must name the background and at least one class."
        )
    if plain(classes[0]) not in BACKGROUND_NAMES:
        raise InputError(
            f"the first class is '{classes[0]}', but channel 0 must be the background, called 'background': new "
            "classes are learnt from it, so a model without one cannot be extended."
        )
    doubled = sorted({name for name in classes if [plain(other) for other in classes].count(plain(name)) > 1})
    if doubled:
        raise InputError(f"the class list names '{doubled[0]}' twice: every class needs its own name.")


def _same_shape(model: nn.Module, name: str) -> bool:
    """Whether a model has the shapes of that kind, apart from its number of classes and auxiliary classifier."""
    with torch.device("meta"):
        kind: nn.Module = getattr(zoo, name)(weights=None, weights_backbone=None, num_classes=1, aux_loss=False)

    def shapes(whole: nn.Module) -> dict[str, torch.Size]:
        return {
            key: value.shape[1:] for key, value in whole.state_dict().items() if not key.startswith("aux_classifier")
        }

    return type(model) is type(kind) and shapes(model) == shapes(kind)


def _saved_by_smp(folder: Path) -> nn.Module:
    """The model in a folder. smp's own reader would fetch whatever the folder lacks, or names, from the hub."""
    try:
        if not (folder / "config.json").is_file():
            raise FileNotFoundError("it holds no config.json")
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        decoder = config["_model_class"].lower()
        given = {name: value for name, value in config.items() if not name.startswith("_")}
        options = {name: value for name, value in given.items() if name not in NOT_OPTIONS}
        # Built first, and thrown away, because it refuses what a network may not ask for.
        Segmenter(Architecture(encoder=given["encoder_name"], decoder=decoder, decoder_options=options), [1])
        model: nn.Module = smp.MODEL_ARCHITECTURES_MAPPING[decoder](**{**given, "encoder_weights": None})
    except (OSError, KeyError, ValueError, RuntimeError, TypeError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise InputError(f"{folder} was not written by smp's save_pretrained ({reason}).") from error
    return _load_weights(model, read_state(folder / MODEL_FILE), folder)


def _read_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Weights by name, without an auxiliary classifier and without prefixes that training loops add."""
    if not checkpoint.is_file():
        raise InputError(f"there is no checkpoint {checkpoint}: give a .safetensors or .pth file, or smp's folder.")
    state = {name: tensor for name, tensor in read_state(checkpoint).items() if not name.startswith("aux_classifier.")}
    for prefix in ("module.", "model."):
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): tensor for name, tensor in state.items()}
    return state


def _channels(state: Mapping[str, Tensor], default: int) -> int:
    """How many outputs the weights are for, so that a class list of another length is told apart from a wrong kind."""
    return next((len(state[name]) for name in LAST_LAYERS if name in state), default)


def _load_weights(model: nn.Module, state: Mapping[str, Tensor], checkpoint: Path) -> nn.Module:
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the weights of {checkpoint} do not fit this kind of network: {reason}…") from error
    return model
