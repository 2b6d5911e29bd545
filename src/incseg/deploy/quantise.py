"""``incseg export --quantise``: an ONNX file that computes its convolutions in 8 bits, and what that costs."""

import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from incseg.console import Console, percent, progress_of
from incseg.datasets import open_source
from incseg.deploy.asked import check_quantising, has_masks
from incseg.deploy.export import export
from incseg.deploy.model import Model
from incseg.deploy.onnx_file import OnnxFile
from incseg.deploy.scoring import score_folder
from incseg.files import replacing
from incseg.images import Pixels, read_image
from incseg.sizes import reduced_size, resize_images

CALIBRATED = 64  # images at most from which the ranges of activations are taken
COMPARED = 64  # images at most on which classes are compared, where there are no masks


@dataclass(frozen=True)
class Quantised:
    """How large a quantised file is, and how it compares with the model."""

    megabytes: float
    megabytes_before: float
    images: int
    miou: float | None = None
    """Of the file, and of the model, where the folder has masks; else the share of pixels with the same class."""
    miou_before: float | None = None
    same: float | None = None

    @property
    def sentence(self) -> str:
        """For a person."""
        size = f"{self.megabytes:.1f} MB instead of {self.megabytes_before:.1f}"
        if self.miou is None or self.miou_before is None:
            return f"{size}; {percent(self.same or 0.0)} % of the pixels of {self.images} images get the same class."
        lost = f"{percent(self.miou)} instead of {percent(self.miou_before)}"
        return f"{size}; mIoU {lost} on {self.images} images ({percent(self.miou - self.miou_before)} points)."


def quantise(model: Model, out: Path, folder: Path, console: Console) -> Quantised:
    """Write an INT8 ONNX file (QDQ), calibrated on the images of a folder, and compare it with the model."""
    files = check_quantising(out, folder)
    with tempfile.TemporaryDirectory() as place, replacing(out) as temporary:
        exact = Path(place) / "exact.onnx"
        export(model, exact, "onnx")
        _write(exact, temporary, files[:CALIBRATED], model.segmenter.architecture.longest_side, console)
        size, size_before = (round(path.stat().st_size / 1e6, 2) for path in (temporary, exact))
        found = _scored(model, temporary, folder, console) if has_masks(folder) else _agreeing(model, temporary, files)
    return Quantised(size, size_before, **found)


def _write(exact: Path, out: Path, images: Sequence[Path], longest_side: int | None, console: Console) -> None:
    """Weights per output channel and activations in 8 bits; everything but convolutions stays as it is."""
    import onnx  # noqa: PLC0415 - extras
    from onnxruntime import quantization  # noqa: PLC0415

    with progress_of(f"calibrating on {len(images)} images", console) as advance:
        logging.disable(logging.WARNING)  # advice for developers of onnxruntime
        try:
            quantization.quantize_static(
                exact,
                out,
                _reader(images, longest_side, advance),
                quant_format=quantization.QuantFormat.QDQ,
                op_types_to_quantize=["Conv"],
                per_channel=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                # Seven of the eight bits: processors without VNNI add two products in 16 bits, which would overflow.
                reduce_range=True,
            )
        finally:
            logging.disable(logging.NOTSET)
    written, original = onnx.load(out), onnx.load(exact, load_external_data=False)
    onnx.helper.set_model_props(written, {entry.key: entry.value for entry in original.metadata_props})
    onnx.save(written, out)


def _reader(images: Sequence[Path], longest_side: int | None, advance: Any) -> Any:
    """What onnxruntime asks for one image after another."""
    from onnxruntime.quantization import CalibrationDataReader  # noqa: PLC0415

    def inputs() -> Iterator[dict[str, Any]]:
        for done, path in enumerate(images, start=1):
            pixels = torch.tensor(read_image(path)).permute(2, 0, 1)[None]
            size = reduced_size((pixels.shape[2], pixels.shape[3]), longest_side)
            yield {"images": resize_images(pixels, size).contiguous().numpy()}
            advance(done, len(images))

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime ships without types
        def __init__(self) -> None:
            self.waiting = inputs()

        def get_next(self) -> dict[str, Any] | None:
            return next(self.waiting, None)

    return Reader()


def _scored(model: Model, file: Path, folder: Path, console: Console) -> dict[str, Any]:
    open_source("folder", folder)  # refuses a folder whose files are not all there
    before, after = (score_folder(each, folder, console) for each in (model, OnnxFile.open(file)))
    return {"miou": after.miou, "miou_before": before.miou, "images": after.images}


def _agreeing(model: Model, file: Path, images: Sequence[Path]) -> dict[str, Any]:
    """On images that were not calibrated on, where there are enough."""
    compared = [*images[CALIBRATED:], *images][:COMPARED]
    quantised, shares = OnnxFile.open(file), []
    for path in compared:
        pixels: Pixels = read_image(path)
        one, two = (each.predict_all([pixels])[0].ids for each in (model, quantised))
        shares.append(float(np.mean(one == two)))
    return {"same": sum(shares) / len(shares), "images": len(compared)}
