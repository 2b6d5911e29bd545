"""A trained model, wherever it lies: a run's folder, the folder of one step, or a single file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from incseg.deploy.prediction import Prediction
from incseg.deploy.tiles import TILE, predict_ids
from incseg.errors import InputError
from incseg.images import ImageLike, Pixels, read_image
from incseg.models import Segmenter
from incseg.models.storage import Record, describe_model, load_model, save_model
from incseg.run_folder import RunFolder


@dataclass(frozen=True)
class Model:
    """A segmenter with the names of its channels and its past."""

    segmenter: Segmenter
    classes: tuple[str, ...]
    """By channel, background first."""
    history: Sequence[Record] = field(default_factory=tuple)
    """One record per step learnt, oldest first; empty for a model trained elsewhere."""
    path: Path | None = None
    """The file it was read from."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.segmenter.mean.device

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

    def save(self, path: str | Path) -> Path:
        """Write the model as one file; returns its path."""
        save_model(self.segmenter, self.classes, Path(path), self.history)
        return Path(path)


def open_model(path: str | Path, step: int | None = None, device: str = "auto") -> Model:
    """Load a model.

    Args:
        path: the folder of a run (its last finished step), the ``step-K`` folder of a run, or a ``.safetensors`` file.
        step: which step of a run, instead of the last.
        device: "cpu", "cuda", "cuda:1", "mps", or "auto" for a GPU if there is one.
    """
    file = model_file(Path(path), step)
    segmenter, classes = load_model(file, choose_device(device))
    return Model(segmenter, classes, describe_model(file).history, file)


def model_file(path: Path, step: int | None = None) -> Path:
    """The file that a person means by MODEL."""
    path = path.expanduser()
    if not path.exists():
        raise InputError(f"there is no model {path}: give the folder of a run, a step-K folder or a .safetensors file.")
    if step is not None:
        return _file_of_step(path, step)
    if path.is_file():
        return path
    inside = path / "model.safetensors"
    steps = finished_steps(path)
    if not inside.is_file() and not steps:
        raise InputError(
            f"{path} holds no model: give the folder of a run with a finished step (step-0/model.safetensors …), a "
            "step-K folder or a .safetensors file."
        )
    return inside if inside.is_file() else RunFolder(path).model(steps[-1])


def _file_of_step(path: Path, step: int) -> Path:
    steps = finished_steps(path)
    if not steps:
        raise InputError(f"a step can be chosen only of a run's folder, and {path} is none: leave the step out.")
    if step not in steps:
        raise InputError(f"{path} has no finished step {step}: choose from {', '.join(map(str, steps))}.")
    return RunFolder(path).model(step)


def finished_steps(run: Path) -> list[int]:
    """The steps of a run whose model is there, in order; empty for anything but a run's folder."""
    if not run.is_dir():
        return []
    folders = [re.fullmatch(r"step-(\d+)", folder.name) for folder in run.iterdir()]
    return sorted(int(found[1]) for found in folders if found and RunFolder(run).completed(int(found[1])))


def choose_device(name: str) -> torch.device:
    """Where to compute; "auto" takes a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
        return torch.device(name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"this machine cannot compute on '{name}' ({reason}): use auto, cpu, cuda or mps.") from None
