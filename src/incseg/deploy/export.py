"""``incseg export``: write a model for other runtimes, and keep the file only if its outputs match PyTorch's."""

import copy
import io
import json
import logging
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import timm.layers
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from incseg.deploy.asked import Format, check_export
from incseg.deploy.model import Model
from incseg.errors import IncompleteError, InputError
from incseg.files import machine_error_behind, replacing
from incseg.models import Segmenter
from incseg.seeding import seed_from

Runner = Callable[[Tensor], tuple[NDArray[np.float32], NDArray[np.uint8]]]
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
Size = tuple[int, int, int]  # batch, height, width
EXAMPLE: Size = (2, 150, 210)  # unusual numbers, which an exporter cannot mistake for constants of the network
CHECKED: tuple[Size, ...] = ((1, 64, 64), (1, 97, 130), (3, 160, 96), (2, 33, 200))
TOLERANCE = 1e-3  # relative to the largest logit; float32 sums in another order differ by about 1e-6
CONTRACT = {
    "images": "uint8 (batch, 3, height, width), RGB, any size; the network normalises and pads",
    "logits": "float32 (batch, classes, height, width)",
    "classes": "uint8 (batch, height, width), index into the class names",
}


class ExportedNetwork(nn.Module):
    """The network with the inputs and outputs of the exported file (see ``CONTRACT``)."""

    def __init__(self, segmenter: Segmenter):
        super().__init__()
        self.segmenter = segmenter

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) uint8 → (B, C, H, W) logits, (B, H, W) uint8 classes."""
        logits = self.segmenter.segment(images)
        return logits, logits.argmax(dim=1).to(torch.uint8)


def export(model: Model, out: Path, kind: Format | None = None) -> float:
    """Write the model, run the written file on images of several sizes, and return the largest difference of a logit.

    The file is kept only if its outputs agree with PyTorch's. The model is not changed: a float32 copy of
    it on the CPU is exported.
    """
    kind = check_export(out, kind)
    network = ExportedNetwork(copy.deepcopy(model.segmenter).cpu().float().eval())
    write = {"onnx": _write_onnx, "pt2": _write_pt2}[kind]
    with replacing(out) as temporary:
        try:
            # Gradients are off for the whole export: exporters cannot record a network that switches them off itself.
            with _quiet(), _integer_padding(), torch.no_grad():
                runner = write(network, temporary, _metadata(model))
        except (InputError, KeyboardInterrupt):
            raise
        except Exception as error:  # exporters raise errors of many types
            if cause := machine_error_behind(error):  # of a full disk they only say that writing failed
                raise OSError(cause.errno, cause.strerror, str(out)) from error
            raise IncompleteError(
                f"this network cannot be exported to {kind} ({_reason(error)}); no file was written."
            ) from error
        return _largest_difference(network, runner, kind)


def _metadata(model: Model) -> dict[str, str]:
    """What a user of the file needs to know, as JSON texts: above all the class names."""
    description = {
        "architecture": model.segmenter.architecture.model_dump(mode="json"),
        "head_sizes": model.segmenter.classifier.head_sizes,
        "history": list(model.history),
        "colours": model.colours,
        "contract": _contract(model.segmenter.architecture.longest_side),
    }
    return {
        "classes": json.dumps(model.classes, ensure_ascii=False),
        "incseg": json.dumps(description, ensure_ascii=False),
    }


def _contract(longest_side: int | None) -> dict[str, str]:
    """Inputs and outputs; the file itself reduces nothing, so that it takes any size."""
    if longest_side is None:
        return CONTRACT
    before = f"; images with a longer side than {longest_side} are to be reduced to it before, as in training"
    return {**CONTRACT, "images": CONTRACT["images"] + before}


def _write_onnx(network: ExportedNetwork, path: Path, metadata: dict[str, str]) -> Runner:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(f"export to ONNX needs {', '.join(missing)}: pip install 'incseg[export]'.")
    import onnxruntime  # noqa: PLC0415 - an extra

    program = torch.onnx.export(
        network,
        (_images(EXAMPLE),),
        dynamo=True,
        input_names=["images"],
        output_names=["logits", "classes"],
        dynamic_shapes={"images": {0: "batch", 2: "height", 3: "width"}},
        verbose=False,
    )
    assert program is not None
    program.model.metadata_props.update(metadata)
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        logits, classes = session.run(["logits", "classes"], {"images": images.numpy()})
        return logits, classes

    return run


def _write_pt2(network: ExportedNetwork, path: Path, metadata: dict[str, str]) -> Runner:
    sizes: Any = dict.fromkeys((0, 2, 3), torch.export.Dim.AUTO)
    program = torch.export.export(network, (_images(EXAMPLE),), dynamic_shapes={"images": sizes})
    # Guards repeat properties of the example (is a dimension 1, is padding needed) and would refuse other sizes, though
    # the recorded operations are the same for all sizes; _largest_difference checks that they are.
    program._guards_code = []
    buffer = io.BytesIO()  # PyTorch's writer ends the whole process where a disk turns out to be full
    torch.export.save(program, buffer, extra_files={f"{key}.json": text for key, text in metadata.items()})
    path.write_bytes(buffer.getbuffer())
    with path.open("rb") as written:
        loaded = torch.export.load(written).module()

    def run(images: Tensor) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        with torch.no_grad():
            logits, classes = loaded(images)
        return logits.numpy(), classes.numpy()

    return run


def _largest_difference(network: ExportedNetwork, runner: Runner, kind: Format) -> float:
    """The largest difference of a logit between the file and PyTorch; an error if it is too large."""
    worst = 0.0
    for size in CHECKED:
        images = _images(size)
        expected, expected_classes = (output.numpy() for output in network(images))
        try:
            logits, classes = runner(images)
        except Exception as error:
            raise IncompleteError(
                f"the {kind} file fails on images of {_size_text(size)} ({_reason(error)}); no file was written."
            ) from error
        difference = float(np.abs(logits - expected).max())
        worst = max(worst, difference)
        wrong = float((classes != expected_classes).mean())
        if difference > TOLERANCE * max(1.0, float(np.abs(expected).max())) or wrong > TOLERANCE:
            raise IncompleteError(
                f"the outputs of the {kind} file differ from PyTorch's: on images of {_size_text(size)} logits differ "
                f"by up to {difference:.2g}, and {100 * wrong:.1f} % of the pixels get another class; no file was "
                "written."
            )
    return worst


def _images(size: Size) -> Tensor:
    """Noise on two scales, the same on every machine."""
    batch, height, width = size
    generator = torch.Generator().manual_seed(seed_from(0, "export", *size))
    coarse = torch.rand(batch, 3, 8, 8, generator=generator)
    fine = torch.rand(batch, 3, height, width, generator=generator)
    mixed = 0.7 * nn.functional.interpolate(coarse, size=(height, width), mode="bilinear") + 0.3 * fine
    return (mixed * 255).to(torch.uint8)


def _reason(error: Exception) -> str:
    """The first line of an error, shortened."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[0], 160, placeholder="…")


def _size_text(size: Size) -> str:
    return f"{size[2]}×{size[1]} in a batch of {size[0]}"


@contextmanager
def _integer_padding() -> Iterator[None]:
    """Compute timm's "same" padding with integers: torch.export cannot record its rounding up of fractions."""

    def same_padding(x: int, kernel_size: int, stride: int, dilation: int) -> Any:
        return torch.sym_max((-(-x // stride) - 1) * stride + (kernel_size - 1) * dilation + 1 - x, 0)

    original = timm.layers.padding.get_same_padding
    timm.layers.padding.get_same_padding = same_padding
    try:
        yield
    finally:
        timm.layers.padding.get_same_padding = original


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters' warnings: they concern the exporters' own developers."""
    original = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(original)
