"""Scoring a model: one confusion matrix over all validation images, each at its own size."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
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
        for images, labels in batches:
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
        image, truth = images[position]
        prediction = segmenter.segment(image[None].to(device)).argmax(dim=1)[0].cpu()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{name}.image.jpg", quality=92)
        index_image(truth.numpy().astype(np.uint8)).save(folder / f"{name}.truth.png")
        index_image(prediction.numpy().astype(np.uint8)).save(folder / f"{name}.prediction.png")
