"""The segmenter: any timm or smp encoder, any smp decoder, and a classifier that grows by one head per step."""

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import segmentation_models_pytorch as smp
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from incseg.batch import Outputs, upsample
from incseg.config import Network
from incseg.errors import InputError, closest
from incseg.models.activations import last_activations, make_leaky, recorded_inputs
from incseg.models.branched import BranchedHead
from incseg.models.closed_form import ClosedFormHead, FeatureLayout
from incseg.models.decoders import RATES, WINDOW, NetworkParts, SummedDeepLab
from incseg.models.heads import Head, SigmoidHead, SoftmaxHead, TrainedHead
from incseg.models.torchvision_models import torchvision_network
from incseg.sizes import STRIDE

OURS = "deeplabv3-mib"  # the one decoder that is not smp's
# Arguments of an smp model, and of our decoder, that are not options of the decoder.
NOT_OPTIONS = {"encoder_name", "encoder_weights", "in_channels", "classes", "activation", "aux_params"}
TRAINED_HEADS: dict[str, type[TrainedHead]] = {head.kind: head for head in (SoftmaxHead, SigmoidHead, BranchedHead)}
SMP_RATES = {8: (12, 24, 36), 16: (6, 12, 18)}  # dilations of smp's DeepLab by output stride
NEVER = 30.0  # below the lowest logit: e⁻³⁰ of its probability, and not so large that files of logits lose digits
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Architecture(Network):
    """All that is needed to build a segmenter again: written into every saved model.

    Beyond what a run's settings choose, it says how models imported from elsewhere differ from ours.
    """

    library: Literal["smp", "torchvision"] = "smp"
    """Which library builds it."""
    classifier_kernel: int = 1
    """Side of the classifier's convolutions."""
    align_corners: bool = False
    """How logits are brought to the size of the image: smp's own models align the corners."""
    closed_form: FeatureLayout | None = None
    """The features of a closed-form head; None: the head is trained."""
    pooling_window: int | None = None
    """Cells along a side over which deeplabv3-mib pools in evaluation; None: 32, as published."""
    longest_side: int | None = None
    """Larger images are reduced to it, in training as in prediction; None: images are taken as they are."""
    seen_side: int | None = None
    """The longer side of a typical training image as the network saw it, scaled into the crops; None: not known."""
    never_background: bool | None = None
    """Predicts one of the classes everywhere, as it learnt from data without background; None: it does not."""
    original: bool | None = None
    """Keeps its encoder as it was before training, for closed-form heads to look at; None: it does not."""

    @classmethod
    def of(cls, network: Network, crop_size: int, *, never_background: bool = False) -> "Architecture":
        """The network that a run's settings choose; it pools as much in evaluation as it does of a training crop."""
        window = crop_size // network.output_stride if network.decoder.lower() == OURS else None
        chosen = network.model_dump(include=set(Network.model_fields))
        return cls(**chosen, pooling_window=window, never_background=never_background or None)


class Segmenter(nn.Module):
    """Encoder → stages, decoder → embedding, head → scores per class."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        architecture: Architecture,
        head_sizes: Sequence[int],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ):
        super().__init__()
        build = torchvision_network if architecture.library == "torchvision" else _build
        whole = build(architecture)
        self.architecture = architecture
        self.encoder: nn.Module = whole.encoder
        self.decoder: nn.Module = whole.decoder
        self.original: nn.Module | None = build(architecture).encoder if architecture.original else None
        if architecture.activation == "leaky":
            for encoder in filter(None, (self.encoder, self.original)):
                make_leaky(encoder)
        self._last_activations: list[str | None] = []
        channels = _embedding_channels(whole.segmentation_head)
        self.classifier: Head = (
            TRAINED_HEADS[architecture.head](channels, head_sizes, architecture.classifier_kernel)
            if architecture.closed_form is None
            else ClosedFormHead(architecture.closed_form, head_sizes)
        )
        default_mean, default_std = input_statistics(architecture)
        self.register_buffer("mean", torch.tensor(mean or default_mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(std or default_std).view(3, 1, 1))
        # Channels last is what fast convolutions want, on CPUs (1.5 times faster here) as on tensor cores.
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor, *, with_stages: bool = False, with_raw_stages: bool = False) -> Outputs:
        """(B, 3, H, W) uint8 RGB, H and W multiples of 32 → logits, embedding and, if wanted, the stages.

        Stages are large and mixed precision copies what is returned, so only who uses them should ask.
        """
        embedding, stages, raw = self.body(images, with_raw_stages=with_raw_stages)
        seen = [*self._original_stages(images), *stages] if self.architecture.closed_form else stages
        scores, kind = self.classifier(embedding, seen), self.classifier.kind
        return Outputs(scores, embedding, stages if with_stages else [], self.architecture.align_corners, raw, kind)

    def body(self, images: Tensor, *, with_raw_stages: bool = False) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """All but the head: embedding, stages and, if wanted, the stages before their last activation."""
        with recorded_inputs(self.encoder, self._stage_ends(images) if with_raw_stages else ()) as inputs:
            all_stages = self.encoder(self.normalise(images))
        embedding, stages = self.decoder(all_stages), all_stages[1:]
        named = zip(self._last_activations, stages, strict=True) if with_raw_stages else ()
        return embedding, stages, [stage if name is None else inputs[name] for name, stage in named]

    def _stage_ends(self, images: Tensor) -> list[str | None]:
        """The activations with which the encoder's stages end, found when first asked for."""
        self._last_activations = self._last_activations or last_activations(self.encoder, self.normalise(images[:1]))
        return self._last_activations

    def features(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """All that a closed-form head may look at: the decoder's embedding, and the encoder's stages, finest first.

        Before them come the stages of the original encoder, where it is kept.
        """
        embedding, stages, _ = self.body(images)
        return embedding, [*self._original_stages(images), *stages]

    def _original_stages(self, images: Tensor) -> list[Tensor]:
        stages: list[Tensor] = [] if self.original is None else self.original(self.normalise(images))[1:]
        return stages

    def keep_original(self, encoder: nn.Module | None) -> None:
        """Keep an encoder as it was before training, which is never trained; None: keep none any longer."""
        self.architecture = self.architecture.model_copy(update={"original": None if encoder is None else True})
        self.original = None if encoder is None else encoder.to(self.mean).eval().requires_grad_(False)

    def use_head(self, head: ClosedFormHead) -> None:
        """Take a solved head in place of the one there is. It was fitted to labels at the centres of its cells."""
        self.architecture = self.architecture.model_copy(update={"closed_form": head.layout, "align_corners": False})
        self.classifier = head

    @property
    def trained_head(self) -> TrainedHead:
        """The head that training can grow; a head solved in closed form has no gradient to follow."""
        if not isinstance(self.classifier, TrainedHead):
            raise InputError(
                "the head of this model was solved in closed form and cannot be trained: use --method analytic, "
                "or begin with the model of a step that was trained."
            )
        return self.classifier

    def own_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters by name, without those of a module that a method trains beside the network for a while."""
        own = ("encoder.", "decoder.", "classifier.")
        return ((name, parameter) for name, parameter in self.named_parameters() if name.startswith(own))

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 RGB to what the encoder was pretrained on."""
        normalised = (images.float() / 255 - self.mean) / self.std
        return normalised.contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def segment(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 of any size → (B, C, H, W) logits at that size.

        Images are padded below and to the right, by repeating their edge, to the size the encoder can halve evenly.
        Logits of a network that never predicts background have the lowest for it, everywhere.
        """
        height, width = images.shape[-2:]
        padded = padded_images(images)
        outputs = self(padded)
        if self.architecture.never_background:
            others = outputs.logits[:, 1:]
            outputs = outputs._replace(logits=torch.cat([others.amin(dim=1, keepdim=True) - NEVER, others], dim=1))
        return upsample(outputs, padded)[..., :height, :width]


def padded_images(images: Tensor) -> Tensor:
    """(B, 3, H, W) → float, H and W rounded up to a multiple of 32 by repeating the last row and column."""
    height, width = images.shape[-2:]
    return F.pad(images.float(), (0, -width % STRIDE, 0, -height % STRIDE), mode="replicate")


def input_statistics(architecture: Architecture) -> tuple[tuple[float, ...], tuple[float, ...]]:
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


def _build(architecture: Architecture) -> Any:
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


def _build_ours(encoder_name: str, architecture: Architecture) -> NetworkParts:
    stride = architecture.output_stride
    encoder = smp.encoders.get_encoder(encoder_name, weights=None, output_stride=stride)
    window = architecture.pooling_window or WINDOW
    options = {"rates": RATES[stride], "window": window, **architecture.decoder_options}
    decoder = SummedDeepLab(encoder.out_channels[-1], **options)
    return NetworkParts(encoder, decoder, nn.Conv2d(decoder.channels, 1, 1))


def _embedding_channels(head: nn.Module) -> int:
    """What smp's own classifier, which ours replaces, expects from the decoder."""
    return next(layer.in_channels for layer in head.modules() if isinstance(layer, nn.Conv2d))


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
