"""A trained model that predicts, wherever it lies: a run's folder, the folder of one step, or a single file."""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import torch
from torch import Tensor

from incseg.deploy.asked import check_longest_side
from incseg.deploy.given_images import MaskLike
from incseg.deploy.prediction import Prediction
from incseg.deploy.statistics import learn
from incseg.images import ImageLike, Pixels, read_image
from incseg.models.storage import TrainedModel
from incseg.models.tiles import class_ids, predict_maps
from incseg.sizes import TILE, far_from_training, reduced_size


@dataclass(frozen=True, repr=False)
class Model(TrainedModel):
    """A trained model for use on images."""

    _has_warned: Event = field(default_factory=Event, init=False, repr=False, compare=False)
    """Whether it has said that an image's scale is far from that of training."""

    def predict(self, image: ImageLike, *, confidence: bool = False, probabilities: bool = False) -> Prediction:
        """Segment one image of any size: a file, a Pillow image, or an array (H, W, 3) of RGB.

        ``confidence=True`` also keeps how probable the class of each pixel is, 2 bytes per pixel, and
        ``probabilities=True`` how probable every class is, 2 bytes per pixel and class: 2 GB for 8000×6000 pixels and
        21 classes. The first image whose scale is far from that of the training images comes with a warning.
        """
        pixels = read_image(image)
        sentence = "" if self._has_warned.is_set() else self.far_from_training(pixels, "with model.limited_to({})")
        if sentence:
            self._has_warned.set()
            warnings.warn(f"the image has {sentence}", stacklevel=2)
        return self.predict_all([pixels], confidence=confidence, probabilities=probabilities)[0]

    def predict_all(
        self, images: Sequence[Pixels], tile: int = TILE, *, confidence: bool = False, probabilities: bool = False
    ) -> list[Prediction]:
        """Segment images as :func:`read_image` gives them; those of one size go through the network together."""

        def read(scores: Tensor) -> tuple[Tensor, ...]:
            kept = [class_ids(scores)]
            if confidence or probabilities:
                by_class = self.segmenter.classifier.probabilities(scores)
                kept += [by_class.amax(dim=1).half(), *([by_class.half()] if probabilities else [])]
            return tuple(each.cpu() for each in kept)

        predictions: dict[int, Prediction] = {}
        for shape in {image.shape for image in images}:
            chosen = [index for index, image in enumerate(images) if image.shape == shape]
            batch = torch.stack([torch.tensor(images[index]).permute(2, 0, 1) for index in chosen])
            for index, (ids, *likely) in zip(chosen, predict_maps(self.segmenter, batch, read, tile), strict=True):
                maps = [each.numpy() for each in likely]
                predictions[index] = Prediction(images[index], ids.numpy(), self.classes, self.colours, *maps)
        return [predictions[index] for index in range(len(images))]

    def far_from_training(self, pixels: Pixels, remedy: str) -> str:
        """What to say of an image as the network would see it; see :func:`incseg.sizes.far_from_training`."""
        network = self.segmenter.architecture
        side = max(reduced_size((pixels.shape[0], pixels.shape[1]), network.longest_side))
        return far_from_training(side, network.seen_side, remedy)

    def limited_to(self, longest_side: int) -> "Model":
        """The same model, but images with a longer side than this are reduced to it before the network sees them."""
        check_longest_side(longest_side)
        segmenter = copy.copy(self.segmenter)
        segmenter.architecture = segmenter.architecture.model_copy(update={"longest_side": longest_side})
        return replace(self, segmenter=segmenter)

    def save_pretrained(self, folder: str | Path, license: str | None = None) -> Path:
        """Write a folder that ``incseg.load`` reads: the model, its statistics, and its card as ``README.md``."""
        from incseg.deploy import publishing  # noqa: PLC0415 - it needs this class

        return publishing.save_pretrained(self, Path(folder), license=license)

    def push_to_hub(self, repository: str, *, private: bool = False, license: str | None = None) -> str:
        """Upload it to the Hugging Face Hub as ``user/name``; ``incseg.load("hf://user/name")`` reads it from there."""
        from incseg.deploy import publishing  # noqa: PLC0415 - it needs this class

        return publishing.push_to_hub(self, repository, private=private, license=license)

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
