"""From images to the statistics of a closed-form head: one pass over a frozen network, no gradient, no teacher."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

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
from incseg.models.segmenter import Segmenter, padded_images
from incseg.models.tensor_file import checksum_of
from incseg.protocol import IGNORE
from incseg.sizes import STRIDE

# Memory is bounded by these and by the width squared, whatever the size and the number of the images.
CELLS = 2048  # that are projected and added at once
PIXELS = 2**20  # of images that go through the network together; a larger image goes alone
MOST_WAITING = 8  # times as many pixels may wait for others of their size
TILE, CONTEXT = 2048, 128  # pixels: the side of the tiles of a still larger image, and what only their middles see
# Random features per channel of the embedding and the last stage. Wider is a little better, and costs W² per cell: with
# the first, an extension on a CPU costs no more than a forward pass of a ResNet-18 over its images ('incseg bench
# extend').
FRUGAL, GENEROUS = 3.0, 6.0
MODEL = "model"  # of a file of statistics: the tensor that says which one carries them
ORIGINAL_STAGES = 2  # of the encoder before its training, in statistics that a model carries


Labelled = tuple[Tensor, Tensor]  # images and their labels, or cells and their shares


@dataclass(frozen=True)
class Fit:
    """How images become statistics, and statistics a head; the symbols are those of ``closed_form.py``."""

    balance: float = 0.3
    """β: 0 counts every cell alike, 1 every class alike."""
    ridge: float = 1.0
    """γ."""
    mirrored: bool = False
    """See every image a second time, mirrored: twice the time, for a little."""
    certainty: float = 2.0
    """How much a pseudo-label counts less the less sure the head was of it; 0: all count fully."""
    soft: bool = False
    """Targets are the shares of the classes in a cell, instead of the class at its centre."""
    crops: int = 0
    """So many passes over training crops are seen instead of the images, in whole batches, as training has them; 0: the
    images themselves."""

    def state(self) -> dict[str, Tensor]:
        """As a tensor beside the statistics: whoever adds to them, or solves them again, follows the same rules."""
        return {"fit": _as_tensor(json.dumps(asdict(self)))}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Fit":
        """The way back from :meth:`state`; the default where a file does not say."""
        return cls(**json.loads(bytes(state["fit"].tolist()))) if "fit" in state else cls()


def as_state(statistics: Statistics, fit: Fit, segmenter: Segmenter) -> dict[str, Tensor]:
    """Statistics as tensors for a file, with their rules and a checksum of the model that is to carry them.

    Its head counts too: two extensions of one model have the same features, and other classes.
    """
    return {**statistics.state(), **fit.state(), MODEL: _as_tensor(_checksum(segmenter))}


def is_of(state: Mapping[str, Tensor], segmenter: Segmenter) -> bool:
    """Whether statistics of :func:`as_state` are those of this model; also where they do not say."""
    return MODEL not in state or bytes(state[MODEL].tolist()).decode() == _checksum(segmenter)


def _checksum(segmenter: Segmenter) -> str:
    head = {f"head.{name}": tensor for name, tensor in segmenter.classifier.state_dict().items()}
    return checksum_of({name: tensor.cpu() for name, tensor in {**segmenter.below_the_head(), **head}.items()})


def _as_tensor(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def feature_layout(
    segmenter: Segmenter,
    num_classes: int,
    *,
    width: int | None = None,
    stages: int | None = None,
    original: int = ORIGINAL_STAGES,
    stride: int | None = None,
    context: int = 0,
    seed: int = 0,
    ratio: float = FRUGAL,
) -> FeatureLayout:
    """The features of a closed-form head on this network: the embedding and so many of the encoder's last stages.

    ``original`` counts those of the original encoder, where the network keeps it; unless ``stages`` is given, it is 1
    beside those, and 2 where there are none. ``context`` is the side of the window whose mean every cell sees too, in
    cells, an odd number; 0: none. The width is ``ratio`` times the
    channels of the embedding and the last stage unless it is given, and such that the statistics stay below 70 MB. The
    grid is the network's own at stride 16, and twice as fine where the embedding is finer.
    """
    if stride is not None and (stride < 1 or STRIDE % stride):
        raise InputError(
            f"the grid of a closed-form head cannot have a stride of {stride}: images are padded to a multiple of "
            f"{STRIDE}, which it must divide."
        )
    if context and context % 2 == 0:
        raise InputError(f"a window around a cell has an odd number of cells along its side, not {context}.")
    size = 2 * STRIDE
    embedding, found = _features_of_blank(segmenter, size)
    before, own = (found[: len(found) // 2], found[len(found) // 2 :]) if segmenter.original else ([], found)
    stages = min(1 if before and original else 2, len(own)) if stages is None else stages
    for wanted in (stages, original):
        if not 0 <= wanted <= len(own):
            raise InputError(f"a head can see 0 to {len(own)} stages of this encoder, not {wanted}.")
    seen = [*own[::-1][:stages], *before[::-1][:original]]
    maps = [embedding, *seen]
    channels = tuple(each.shape[1] for each in maps)
    strides = tuple(size // each.shape[-1] for each in maps)
    proportionate = 128 * round(ratio * sum(channels[:2]) / 128)
    layout = FeatureLayout(
        channels=channels,
        strides=strides,
        width=width or min(default_width(num_classes), max(1024, proportionate)),
        stride=stride or (16 if strides[0] >= 16 else 8),
        original=len(seen) - stages,
        seed=seed,
    )
    return layout.with_context(context) if context else layout


@torch.no_grad()
def gather(
    segmenter: Segmenter,
    statistics: Statistics,
    batches: Iterable[Batch],
    fit: Fit,
    join: Callable[[Tensor], Tensor] = lambda own: own,
    *,
    complete: bool = False,
) -> Statistics:
    """Statistics with the cells of these images added.

    Args:
        segmenter: the frozen network, on any device: sums are made where the statistics are. Its own head is not used.
        statistics: with room for the classes that the labels name. Where a label is background, the head that these
            statistics give says what is there; at first, when they are empty, it is background.
        batches: images and labels of one size each, of any size.
        fit: the rules.
        join: adds up a tensor over all processes, each of which sees its share of the images.
        complete: the labels name all classes so far; background is what they call so.
    """
    segmenter.eval()
    features = RandomFeatures(statistics.layout).to(statistics.gram.device, segmenter.mean.dtype)
    learnt = statistics.cross.any(dim=0)
    before = statistics.solve(fit.ridge).to(features.projection) if learnt.any() and not complete else None
    weights, added = statistics.class_weights(fit.balance), statistics.nothing()
    device = segmenter.mean.device
    padded = (_padded(some, device) for batch in batches for some in _pieces(batch))
    # A CPU gains nothing from more images at once, and what it computes for one depends on the others in the last bits.
    together = _together(padded) if device.type == "cuda" else padded
    pieces = (piece for some in together for piece in _labelled_cells(segmenter, features, some, added, fit))
    for cells, shares in _in_blocks(pieces):
        random = features.project(cells)
        if before is not None:
            # A class without a cell so far, as a new one, has a score of 0 everywhere, which means nothing.
            scores = (random @ before).masked_fill(~learnt, -torch.inf)
            shares = complete_background(shares, scores, fit.certainty)  # noqa: PLW2901
        added.add(random, shares, weights)
    gram, cross = join(added.gram), join(added.cross)
    return replace(statistics, gram=gram.add_(statistics.gram), cross=cross.add_(statistics.cross))


def _labelled_cells(
    segmenter: Segmenter, features: RandomFeatures, some: Labelled, statistics: Statistics, fit: Fit
) -> Iterator[Labelled]:
    """(P, D) cells and (P, C) shares of some images, and then of their mirror images.

    Cells without a label, as those of padding, count for nothing and are left out.
    """
    for flipped in (False, True) if fit.mirrored else (False,):
        images, labels = (each.flip(-1) for each in some) if flipped else some
        shares = class_shares(
            labels.to(statistics.gram.device), statistics.num_classes, statistics.layout.stride, soft=fit.soft
        )
        labelled = shares.any(dim=-1)
        cells = features.cells(*segmenter.features(images))
        yield cells[labelled], shares[labelled].to(cells)


def _padded(some: Labelled, device: torch.device) -> Labelled:
    """The same where the network is, at a size that it takes."""
    images, labels = (each.to(device) for each in some)
    return padded_images(images), _padded_labels(labels)


def _together(pieces: Iterable[Labelled]) -> Iterator[Labelled]:
    """Images that have one size once they are padded, as many as go through the network together.

    They wait for each other, in a bounded amount of memory: a GPU takes as long for one image as for some.
    """
    waiting: dict[torch.Size, Labelled] = {}
    for images, labels in pieces:
        size = labels.shape[-2:]
        others = waiting.pop(size, (images[:0], labels[:0]))
        waiting[size] = torch.cat([others[0], images]), torch.cat([others[1], labels])
        if waiting[size][1].numel() + size.numel() > PIXELS:
            yield waiting.pop(size)
        elif sum(each.numel() for _, each in waiting.values()) > MOST_WAITING * PIXELS:
            yield waiting.pop(max(waiting, key=lambda known: waiting[known][1].numel()))
    yield from waiting.values()


def _pieces(batch: Batch) -> Iterator[Labelled]:
    """A few images and labels at a time; of an image larger than a tile, one tile after another.

    Tiles overlap, for context, and a label counts only in the tile in whose middle it lies.
    """
    height, width = batch.labels.shape[-2:]
    if max(height, width) <= TILE:
        together = max(1, PIXELS // (height * width))
        yield from zip(batch.images.split(together), batch.labels.split(together), strict=True)
        return
    for image, label in zip(batch.images, batch.labels, strict=True):
        for top, rows in _overlapping(height):
            for left, columns in _overlapping(width):
                own = torch.full_like(label[top : top + TILE, left : left + TILE], IGNORE)
                own[rows, columns] = label[top : top + TILE, left : left + TILE][rows, columns]
                yield image[None, :, top : top + TILE, left : left + TILE], own[None]


def _overlapping(length: int) -> list[tuple[int, slice]]:
    """The starts of tiles, multiples of the stride, and the part within each that is its own."""
    if length <= TILE:
        return [(0, slice(0, length))]
    starts = range(0, length - 2 * CONTEXT, TILE - 2 * CONTEXT)
    return [
        (start, slice(CONTEXT if start else 0, TILE - CONTEXT if start + TILE < length else TILE)) for start in starts
    ]


def _in_blocks(pieces: Iterable[Labelled]) -> Iterator[Labelled]:
    """The same cells and shares, ``CELLS`` at a time: large products are fast, and A is read and written rarely."""
    waiting: tuple[Tensor, Tensor] | None = None
    for cells, shares in pieces:
        waiting = (
            (cells, shares) if waiting is None else (torch.cat([waiting[0], cells]), torch.cat([waiting[1], shares]))
        )
        while len(waiting[0]) >= CELLS:
            yield waiting[0][:CELLS], waiting[1][:CELLS]
            waiting = waiting[0][CELLS:], waiting[1][CELLS:]
    if waiting is not None and len(waiting[0]):
        yield waiting


def solved_head(statistics: Statistics, head_sizes: list[int], ridge: float) -> ClosedFormHead:
    """The head that the statistics give."""
    head = ClosedFormHead(statistics.layout, head_sizes, statistics.solve(ridge).cpu())
    return head.to(statistics.gram.device)


def _features_of_blank(segmenter: Segmenter, size: int) -> tuple[Tensor, list[Tensor]]:
    blank = torch.zeros(1, 3, size, size, device=segmenter.mean.device)
    try:
        with torch.no_grad():
            return segmenter.eval().features(blank)
    except Exception as error:  # networks raise errors of many types
        raise InputError(
            f"this network cannot have a closed-form head: it does not take images of {size}×{size} "
            f"({' '.join(str(error).split())})"
        ) from error


def _padded_labels(labels: Tensor) -> Tensor:
    height, width = labels.shape[-2:]
    return F.pad(labels, (0, -width % STRIDE, 0, -height % STRIDE), value=IGNORE)
