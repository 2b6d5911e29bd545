"""A trained model that predicts, wherever it lies: a run's folder, the folder of one step, or a single file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from incseg.deploy.prediction import Prediction
from incseg.deploy.statistics import MaskLike, learn
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
                predictions[index] = Prediction(images[index], ids.numpy(), self.classes, self.colours)
        return [predictions[index] for index in range(len(images))]

    def learn(self, images: Sequence[ImageLike], masks: Sequence[MaskLike], names: Sequence[str]) -> "Model":
        """A model that knows more classes, learnt in closed form: one pass over the images, no training.

        ``bigger = model.learn(["a.jpg", "b.jpg"], ["a.png", "b.png"], ["ring"])``. The model itself stays as it is. It
        must carry statistics of its training images, as after ``incseg train`` or an extension in closed form;
        ``incseg statistics`` gathers them for other models. They grow with it, and :meth:`save` writes them beside it.

        Args:
            images: files, Pillow images, or arrays (H, W, 3) of RGB, all at once in memory; ``incseg.extend`` takes a
                folder of any size.
            masks: for each image an index PNG or an array (H, W) of ids: 1, 2, … for the names in their order, 0 for
                all that is none of them, old classes included, and 255 for what is to be ignored.
            names: of the new classes.
        """
        return learn(self, images, masks, names)


def open_model(path: str | Path, step: int | None = None, device: str = "auto") -> Model:
    """Load a model for use; the arguments are those of :meth:`TrainedModel.open`."""
    return Model.open(path, step, device)
