"""An exported ONNX file, used from its own metadata alone: class names, and the size to which images are reduced."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from incseg.colours import Colours
from incseg.deploy.prediction import Prediction
from incseg.images import Pixels
from incseg.sizes import reduced_size, resize_images, resize_nearest


@dataclass(frozen=True)
class OnnxFile:
    """Predicts as the model does from which the file was written, without tiles: large images take more memory."""

    session: Any
    classes: tuple[str, ...]
    colours: Colours
    longest_side: int | None

    @classmethod
    def open(cls, path: Path) -> "OnnxFile":
        """Read the file and its metadata."""
        import onnxruntime  # noqa: PLC0415 - an extra

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        metadata = session.get_modelmeta().custom_metadata_map
        description = json.loads(metadata["incseg"])
        longest_side = description["architecture"].get("longest_side")
        return cls(session, tuple(json.loads(metadata["classes"])), description["colours"], longest_side)

    def predict_all(self, images: Sequence[Pixels]) -> list[Prediction]:
        """Segment images as ``read_image`` gives them, one by one."""
        return [self._predict(image) for image in images]

    def _predict(self, image: Pixels) -> Prediction:
        size = (image.shape[0], image.shape[1])
        pixels = torch.tensor(image).permute(2, 0, 1)[None]
        reduced = resize_images(pixels, reduced_size(size, self.longest_side))
        (classes,) = self.session.run(["classes"], {"images": reduced.contiguous().numpy()})
        return Prediction(image, resize_nearest(torch.tensor(classes[0]), size).numpy(), self.classes, self.colours)
