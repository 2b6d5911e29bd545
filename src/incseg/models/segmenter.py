"""The segmenter: any timm or smp encoder, any smp decoder, and a classifier that grows by one head per step."""

from collections.abc import Iterator, Sequence
from typing import Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from incseg.batch import Outputs, upsample
from incseg.config import Network
from incseg.errors import InputError
from incseg.models.activations import last_activations, make_leaky, recorded_inputs
from incseg.models.branched import BranchedHead
from incseg.models.closed_form import ClosedFormHead, FeatureLayout
from incseg.models.decoders import OURS
from incseg.models.heads import Head, SigmoidHead, SoftmaxHead, TrainedHead
from incseg.sizes import STRIDE

TRAINED_HEADS: dict[str, type[TrainedHead]] = {head.kind: head for head in (SoftmaxHead, SigmoidHead, BranchedHead)}
NEVER = 30.0  # below the lowest logit: e⁻³⁰ of its probability, and not so large that files of logits lose digits


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

    @model_validator(mode="after")
    def _sees_what_it_keeps(self) -> Self:
        if self.closed_form is not None and self.closed_form.original and not self.original:
            raise ValueError("its head looks at the encoder as it was before training, which it does not keep")
        return self

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
        from incseg.models.building import build, input_statistics  # noqa: PLC0415 - timm takes a while to import

        super().__init__()
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

    def below_the_head(self) -> dict[str, Tensor]:
        """All tensors on which the features of a closed-form head depend, by name."""
        own = ("encoder.", "decoder.", "original.", "mean", "std")
        return {name: tensor for name, tensor in self.state_dict().items() if name.startswith(own)}

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


def _embedding_channels(head: nn.Module) -> int:
    """What smp's own classifier, which ours replaces, expects from the decoder."""
    return next(layer.in_channels for layer in head.modules() if isinstance(layer, nn.Conv2d))
