"""A trained model that predicts, wherever it lies: a run's folder, the folder of one step, or a single file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from incseg.deploy.prediction import Prediction
from incseg.deploy.tiles import TILE, predict_ids
from incseg.images import ImageLike, Pixels, read_image
from incseg.models.storage import TrainedModel


@dataclass(frozen=True)
class Model(TrainedModel):
    """A trained model for use on images."""

    def predict(self, image: ImageLike) -> Prediction:
        """Segment one image of any size: a file, a Pillow image, or an array (H, W, 3) of RGB."""
        return self.predict_all([read_image(image)])[0]

    def predict_all(self, images: Sequence[Pixels], tile: int = TILE) -> list[Prediction]:
        """Segment images as :func:`read_image` gives them; those of one size go through the network together."""
        predictions: dict[int, Prediction] = {}
        for shape in {image.shape for image in images}:
            chosen = [index for index, image in enumerate(images) if image.shape == shape]
            batch = torch.stack([torch.tensor(images[index]).permute(2, 0, 1) for index in chosen])
            for index, ids in zip(chosen, predict_ids(self.segmenter, batch, tile), strict=True):
                predictions[index] = Prediction(images[index], ids.numpy(), self.classes)
        return [predictions[index] for index in range(len(images))]


def open_model(path: str | Path, step: int | None = None, device: str = "auto") -> Model:
    """Load a model for use; the arguments are those of :meth:`TrainedModel.open`."""
    return Model.open(path, step, device)
