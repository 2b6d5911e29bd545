"""``incseg export``: a model for other runtimes, believed only after it has said the same as PyTorch."""

import json
import logging
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import timm.layers
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from incseg.deploy.model import Model
from incseg.errors import IncompleteError, InputError
from incseg.files import replacing, usable_file
from incseg.models import Segmenter
from incseg.seeding import seed_from

Format = Literal["onnx", "pt2"]
Runner = Callable[[Tensor], tuple[NDArray[np.float32], NDArray[np.uint8]]]
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
EXAMPLE = (2, 150, 210)  # batch, height, width: nothing that could be mistaken for a constant
CHECKED = ((1, 64, 64), (1, 97, 130), (3, 160, 96), (2, 33, 200))
TOLERANCE = 1e-3  # of the largest logit; float32 sums in another order differ by about 1e-6
CONTRACT = {
    "images": "uint8 (batch, 3, height, width), RGB, any size; the network normalises and pads",
    "logits": "float32 (batch, classes, height, width)",
    "classes": "uint8 (batch, height, width), index into the class names",
}


class Deployed(nn.Module):
    """What leaves the house: images in, logits and classes out, at the size of the images."""

    def __init__(self, segmenter: Segmenter):
        super().__init__()
        self.segmenter = segmenter

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) uint8 → (B, C, H, W) logits, (B, H, W) uint8 classes."""
        logits = self.segmenter.segment(images)
        return logits, logits.argmax(dim=1).to(torch.uint8)


def export(model: Model, out: Path, kind: Format | None = None) -> float:
    """Write the model, run what was written on images of several sizes and compare; returns the largest difference.

    The file appears only if it agrees with PyTorch.
    """
    kind = kind or _kind_of(out)
    usable_file(out)
    deployed = Deployed(model.segmenter.cpu().eval())
    write = {"onnx": _write_onnx, "pt2": _write_pt2}[kind]
    with replacing(out) as temporary:
        try:
            with (
                _quiet(),
                _whole_numbers(),
                torch.no_grad(),
            ):  # already without gradients, so that nothing need be switched on the way
                runner = write(deployed, temporary, _metadata(model))
        except (InputError, KeyboardInterrupt):
            raise
        except Exception as error:  # exporters raise whatever suits them
            raise IncompleteError(
                f"this network cannot be exported to {kind} ({_reason(error)}); no file is left."
            ) from error
        return _checked(deployed, runner, kind)


def _kind_of(out: Path) -> Format:
    if out.suffix in (".onnx", ".pt2"):
        return "onnx" if out.suffix == ".onnx" else "pt2"
    raise InputError(f"'{out}' does not say which format: end it in .onnx or .pt2, or give --format.")


def _metadata(model: Model) -> dict[str, str]:
    """What a user of the file needs to know, as texts: the class names above all."""
    said = {
        "architecture": model.segmenter.architecture.model_dump(mode="json"),
        "head_sizes": model.segmenter.classifier.head_sizes,
        "history": list(model.history),
        "contract": CONTRACT,
    }
    return {"classes": json.dumps(model.classes, ensure_ascii=False), "incseg": json.dumps(said, ensure_ascii=False)}


def _write_onnx(deployed: Deployed, path: Path, metadata: dict[str, str]) -> Runner:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(f"export to ONNX needs {', '.join(missing)}: pip install 'incseg[export]'.")
    import onnxruntime  # noqa: PLC0415 - an extra

    program = torch.onnx.export(
        deployed,
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


def _write_pt2(deployed: Deployed, path: Path, metadata: dict[str, str]) -> Runner:
    sizes: Any = dict.fromkeys((0, 2, 3), torch.export.Dim.AUTO)
    program = torch.export.export(deployed, (_images(EXAMPLE),), dynamic_shapes={"images": sizes})
    # Guards repeat how the example lay in memory (is a dimension 1, is padding needed) and would refuse other sizes,
    # though the operations recorded are the same for all; that they are is what the check below finds out.
    program._guards_code = []
    with path.open("wb") as file:
        torch.export.save(program, file, extra_files={f"{key}.json": text for key, text in metadata.items()})
    with path.open("rb") as written:
        loaded = torch.export.load(written).module()

    def run(images: Tensor) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        with torch.no_grad():
            logits, classes = loaded(images)
        return logits.numpy(), classes.numpy()

    return run


def _checked(deployed: Deployed, runner: Runner, kind: Format) -> float:
    """The largest difference of a logit, or an error if what was written does not say what PyTorch says."""
    worst = 0.0
    for size in CHECKED:
        images = _images(size)
        expected, classes = (output.numpy() for output in deployed(images))
        try:
            logits, named = runner(images)
        except Exception as error:
            raise IncompleteError(f"the {kind} file refuses images of {_words(size)} ({_reason(error)}).") from error
        difference = float(np.abs(logits - expected).max())
        worst = max(worst, difference)
        if difference > TOLERANCE * max(1.0, float(np.abs(expected).max())) or (named != classes).mean() > TOLERANCE:
            raise IncompleteError(
                f"the {kind} file does not say what PyTorch says: on images of {_words(size)} logits differ by up to "
                f"{difference:.2g}, and {100 * (named != classes).mean():.1f} % of the pixels; no file is left."
            )
    return worst


def _images(size: tuple[int, int, int]) -> Tensor:
    """Noise on several scales, the same for everyone."""
    batch, height, width = size
    generator = torch.Generator().manual_seed(seed_from(0, "export", *size))
    coarse = torch.rand(batch, 3, 8, 8, generator=generator)
    fine = torch.rand(batch, 3, height, width, generator=generator)
    mixed = 0.7 * nn.functional.interpolate(coarse, size=(height, width), mode="bilinear") + 0.3 * fine
    return (mixed * 255).to(torch.uint8)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[0], 160, placeholder="…")


def _words(size: tuple[int, int, int]) -> str:
    return f"{size[2]}×{size[1]} in a batch of {size[0]}"


@contextmanager
def _whole_numbers() -> Iterator[None]:
    """timm finds "same" paddings by dividing to fractions and rounding up, which pt2 cannot record; integers it can."""

    def same_padding(x: int, kernel_size: int, stride: int, dilation: int) -> Any:
        return torch.sym_max((-(-x // stride) - 1) * stride + (kernel_size - 1) * dilation + 1 - x, 0)

    usual = timm.layers.padding.get_same_padding
    timm.layers.padding.get_same_padding = same_padding
    try:
        yield
    finally:
        timm.layers.padding.get_same_padding = usual


@contextmanager
def _quiet() -> Iterator[None]:
    """Exporters talk a lot about what does not concern the person waiting."""
    usual = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(usual)
