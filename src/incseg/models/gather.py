"""From images to the statistics of a closed-form head: one pass over a frozen network, no gradient, no teacher."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from incseg.batch import Batch
from incseg.errors import InputError
from incseg.models.closed_form import (
    ClosedFormHead,
    FeatureLayout,
    RandomFeatures,
    Statistics,
    class_shares,
    complete_background,
    default_width,
)
from incseg.models.segmenter import STRIDE, Segmenter, padded_images
from incseg.protocol import IGNORE


@dataclass(frozen=True)
class Fit:
    """How images become statistics, and statistics a head; the symbols are those of ``closed_form.py``."""

    balance: float = 0.25
    """β: 0 counts every cell alike, 1 every class alike."""
    ridge: float = 1.0
    """γ."""
    mirrored: bool = True
    """See every image a second time, mirrored."""
    certainty: float = 0.0
    """How much a pseudo-label counts less the less sure the head was of it; 0: all count fully."""
    soft: bool = False
    """Targets are the shares of the classes in a cell, instead of the class at its centre."""

    def state(self) -> dict[str, Tensor]:
        """As a tensor beside the statistics: whoever adds to them, or solves them again, follows the same rules."""
        return {"fit": torch.tensor(list(json.dumps(asdict(self)).encode()), dtype=torch.uint8)}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Fit":
        """The way back from :meth:`state`; the default where a file does not say."""
        return cls(**json.loads(bytes(state["fit"].tolist()))) if "fit" in state else cls()


def feature_layout(
    segmenter: Segmenter,
    num_classes: int,
    *,
    width: int | None = None,
    stages: int = 1,
    stride: int = 16,
    seed: int = 0,
) -> FeatureLayout:
    """The features of a closed-form head on this network: the embedding and so many of the encoder's last stages."""
    size = 2 * STRIDE
    blank = torch.zeros(1, 3, size, size, device=segmenter.mean.device)
    with torch.no_grad():
        embedding, found = segmenter.eval().features(blank)
    if not 0 <= stages <= len(found):
        raise InputError(f"a head can see 0 to {len(found)} stages of this encoder, not {stages}.")
    maps = [embedding, *(found[-1 - index] for index in range(stages))]
    channels = tuple(each.shape[1] for each in maps)
    # A projection much wider than what it projects adds little: a small network gets a small head.
    chosen = width or min(default_width(num_classes), max(256, 8 * sum(channels)))
    return FeatureLayout(
        channels=channels,
        strides=tuple(size // each.shape[-1] for each in maps),
        width=chosen,
        stride=stride,
        seed=seed,
    )


@torch.no_grad()
def gather(
    segmenter: Segmenter,
    statistics: Statistics,
    batches: Iterable[Batch],
    fit: Fit,
    join: Callable[[Tensor], Tensor] = lambda own: own,
) -> Statistics:
    """Statistics with the cells of these images added.

    Args:
        segmenter: the frozen network; its own head is not used.
        statistics: with room for the classes that the labels name. Where a label is background, the head that these
            statistics give says what is there; at first, when they are empty, it is background.
        batches: images and labels of one size each, of any size.
        fit: the rules.
        join: adds up a tensor over all processes, each of which sees its share of the images.
    """
    segmenter.eval()
    device = segmenter.mean.device
    features = RandomFeatures(statistics.layout).to(device)
    seen = statistics.cross.any(dim=0)
    before = statistics.solve(fit.ridge).float() if seen.any() else None
    weights, added = statistics.class_weights(fit.balance), statistics.nothing()
    for batch in batches:
        images, labels = padded_images(batch.images.to(device)), _padded_labels(batch.labels.to(device))
        for flipped in (False, True) if fit.mirrored else (False,):
            pair = (images.flip(-1), labels.flip(-1)) if flipped else (images, labels)
            cells = features(*segmenter.features(pair[0]))
            shares = class_shares(pair[1], statistics.num_classes, statistics.layout.stride, soft=fit.soft)
            if before is not None:
                # A class without a cell yet says nothing: its score of 0 would win where all others are negative.
                scores = (cells @ before).masked_fill(~seen, -torch.inf)
                shares = complete_background(shares, scores, fit.certainty)
            added.add(cells.flatten(0, 2), shares.flatten(0, 2), weights)
    join(added.gram)
    join(added.cross)
    return statistics.plus(added)


def solved_head(statistics: Statistics, head_sizes: list[int], ridge: float) -> ClosedFormHead:
    """The head that the statistics give."""
    head = ClosedFormHead(statistics.layout, head_sizes, statistics.solve(ridge).cpu())
    return head.to(statistics.gram.device)


def _padded_labels(labels: Tensor) -> Tensor:
    height, width = labels.shape[-2:]
    return F.pad(labels, (0, -width % STRIDE, 0, -height % STRIDE), value=IGNORE)
