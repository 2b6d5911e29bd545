"""The networks of smp, timm and torchvision: which there are, by name, and how one is built."""

import inspect
import re
from typing import TYPE_CHECKING, Any

import segmentation_models_pytorch as smp
import timm
from torch import nn

from incseg.config import Network
from incseg.errors import InputError, closest
from incseg.models.decoders import OURS, RATES, WINDOW, NetworkParts, SummedDeepLab
from incseg.models.torchvision_models import torchvision_network

if TYPE_CHECKING:
    from incseg.models.segmenter import Architecture

# Arguments of an smp model, and of our decoder, that are not options of the decoder.
NOT_OPTIONS = {"encoder_name", "encoder_weights", "in_channels", "classes", "activation", "aux_params"}
SMP_RATES = {8: (12, 24, 36), 16: (6, 12, 18)}  # dilations of smp's DeepLab by output stride
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def build(architecture: "Architecture") -> Any:
    """A network without weights: something with an encoder, a decoder and a segmentation head."""
    return torchvision_network(architecture) if architecture.library == "torchvision" else _from_smp(architecture)


def input_statistics(architecture: "Architecture") -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and standard deviation of the images an encoder's published weights were trained on."""
    name = architecture.encoder.removeprefix("tu-")
    from_timm = architecture.library == "smp" and timm.is_model(name)
    config = timm.get_pretrained_cfg(name) if from_timm else None
    return (tuple(config.mean), tuple(config.std)) if config is not None else (IMAGENET_MEAN, IMAGENET_STD)


def check_network(network: Network) -> tuple[str, dict[str, Any]]:
    """Refuse names and options that smp and timm do not have; tells nothing of what fits together.

    Returns the encoder as smp calls it, and the options of the decoder.
    """
    decoders = {*smp.MODEL_ARCHITECTURES_MAPPING, OURS}
    if network.decoder.lower() not in decoders:
        raise InputError(
            f"'{network.decoder}' is not a decoder: choose from {', '.join(sorted(decoders))}."
            f"{closest(network.decoder, decoders)}"
        )
    options, encoder = _deeplab_options(network), encoder_name(network.encoder)
    _refuse_options(network)
    return encoder, {**options, **network.decoder_options}


def _from_smp(architecture: "Architecture") -> Any:
    encoder, options = check_network(architecture)
    try:
        if architecture.decoder.lower() == OURS:
            return _build_ours(encoder, architecture)
        return smp.create_model(architecture.decoder, encoder_name=encoder, encoder_weights=None, classes=1, **options)
    except Exception as error:  # smp and timm raise whatever suits them
        raise InputError(
            f"the decoder '{architecture.decoder}' cannot be built on the encoder '{architecture.encoder}': "
            f"{' '.join(str(error).split())}"
        ) from error


def _build_ours(encoder_name: str, architecture: "Architecture") -> NetworkParts:
    stride = architecture.output_stride
    encoder = smp.encoders.get_encoder(encoder_name, weights=None, output_stride=stride)
    window = architecture.pooling_window or WINDOW
    options = {"rates": RATES[stride], "window": window, **architecture.decoder_options}
    decoder = SummedDeepLab(encoder.out_channels[-1], **options)
    return NetworkParts(encoder, decoder, nn.Conv2d(decoder.channels, 1, 1))


def _deeplab_options(network: Network) -> dict[str, Any]:
    """DeepLab as the reference recipes have it: dilations that fit the stride, and no dropout in the head."""
    if not network.decoder.lower().startswith("deeplab"):
        return {}
    if network.output_stride not in (8, 16):
        raise InputError(f"{network.decoder} has an output stride of 8 or 16, not {network.output_stride}.")
    return {
        "encoder_output_stride": network.output_stride,
        "decoder_atrous_rates": SMP_RATES[network.output_stride],
        "decoder_aspp_dropout": 0.0,
    }


def _refuse_options(network: Network) -> None:
    """Refuse options that the decoder does not name: smp hands these to timm, which may fetch or load what they say."""
    name = network.decoder.lower()
    kind = SummedDeepLab if name == OURS else smp.MODEL_ARCHITECTURES_MAPPING[name]
    accepted = {key for key in inspect.signature(kind).parameters if key not in NOT_OPTIONS} - {"kwargs"}
    for option in network.decoder_options:
        if option not in accepted:
            raise InputError(
                f"the decoder '{network.decoder}' has no option '{option}': use {', '.join(sorted(accepted))}."
                f"{closest(option, accepted)}"
            )


def encoder_name(encoder: str) -> str:
    """smp's own encoders go by their name, timm's by theirs; smp wants the latter marked with ``tu-``.

    Only names in the lists of both: others, such as ``hf-hub:someone/x``, would make timm look in the network or in
    a folder, with the user's token, and a name may come with a model file from anywhere.
    """
    own = smp.encoders.get_encoder_names()
    if encoder in own:
        return encoder
    if re.fullmatch(r"[\w.-]+", encoder) and timm.is_model(encoder.removeprefix("tu-")):
        return f"tu-{encoder.removeprefix('tu-')}"
    raise InputError(
        f"'{encoder}' is not an encoder that timm or segmentation-models-pytorch knows by name (one from a hub or a "
        f"folder is not fetched).{closest(encoder, [*own, *timm.list_models()])}"
    )
