"""Scoring a model: one confusion matrix over all validation images, each at its own size."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from incseg.batch import Batch
from incseg.data.loader import ScoredImages
from incseg.data.palette import index_image
from incseg.metrics import confusion_matrix
from incseg.models import Segmenter


def score(segmenter: Segmenter, loader: Iterable[list[Batch]], judged_as: Tensor, device: torch.device) -> Tensor:
    """(C, C) int64 confusion counts on ``device``; the segmenter is put into evaluation mode.

    ``judged_as`` says as which channel a prediction of each channel counts; see :class:`ScoredImages`.
    """
    segmenter.eval()
    num_classes, judged_as = len(judged_as), judged_as.to(device)
    total = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)
    for batches in loader:
        for images, labels, _ in batches:
            predictions = judged_as[segmenter.segment(images.to(device)).argmax(dim=1)]
            total += confusion_matrix(labels.to(device), predictions, num_classes)
    return total


def save_pictures(
    segmenter: Segmenter, names: Sequence[str], images: ScoredImages, folder: Path, device: torch.device
) -> None:
    """For each image: itself, its ground truth and the prediction, as ``NAME.{image.jpg,truth.png,prediction.png}``."""
    folder.mkdir(parents=True, exist_ok=True)
    segmenter.eval()
    for position, name in enumerate(names):
        image, truth, _ = images[position]
        prediction = segmenter.segment(image[None].to(device)).argmax(dim=1)[0].cpu()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{name}.image.jpg", quality=92)
        index_image(truth.numpy().astype(np.uint8)).save(folder / f"{name}.truth.png")
        index_image(prediction.numpy().astype(np.uint8)).save(folder / f"{name}.prediction.png")


def side_by_side(folder: Path) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Names and (H, 3W, 3) pictures of what :func:`save_pictures` left: image, ground truth, prediction."""
    for path in sorted(folder.glob("*.image.jpg")):
        name = path.name.removesuffix(".image.jpg")
        files = (path, folder / f"{name}.truth.png", folder / f"{name}.prediction.png")
        yield name, np.concatenate([np.asarray(Image.open(file).convert("RGB")) for file in files], axis=1)
