"""The models that ``incseg serve`` shows, usually the steps of a run, and what each sees in an image."""

import hashlib
import html
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from incseg.colours import DISTINCT, Colours, palette
from incseg.deploy.model import Model, open_model
from incseg.deploy.prediction import Prediction, magnified, percentage
from incseg.errors import InputError
from incseg.images import read_image
from incseg.run_folder import RunFolder, model_file

REMEDY = "to about {} pixels before"  # for an image whose things are much larger than in training
Predictions = dict[str, Prediction]  # of one image, by the name of the model


class FileVersion(NamedTuple):
    """A file that may be replaced by another under the same name."""

    path: Path
    """Where it was looked for: itself, or the folder of its run."""
    file: Path
    modified: int
    size: int


def _versions_at(path: Path, *, alone: bool) -> dict[str, FileVersion]:
    """The model files at a path, by the names they are shown under."""
    steps, prefix = RunFolder(path).finished_steps, "" if alone else f"{path} \u00b7 "
    files = {f"{prefix}step {step}": model_file(path, step) for step in steps} or {str(path): model_file(path)}
    facts = {name: file.stat() for name, file in files.items()}
    return {name: FileVersion(path, file, facts[name].st_mtime_ns, facts[name].st_size) for name, file in files.items()}


@dataclass(frozen=True)
class ModelViewer:
    """The models to choose from, by name: usually the steps of a run, oldest first."""

    models: dict[str, Model]
    paths: Sequence[Path] = ()
    """Where they were found, to look there again."""
    device: str = "auto"
    versions: Mapping[str, FileVersion] = field(default_factory=dict)
    """The file of each model as it was when it was read."""

    @classmethod
    def load(cls, paths: Sequence[Path], device: str = "auto") -> "ModelViewer":
        """Load every finished step of a run's folder, and of any other path the one model it holds."""
        found = [_versions_at(path, alone=len(paths) == 1) for path in paths]
        return cls({}, paths, device)._with({name: version for each in found for name, version in each.items()})

    def refreshed(self) -> "ModelViewer":
        """With the steps that were finished and the files that were replaced since: extended models, for example.

        A model that can no longer be read stays as it was, and does not keep others from being read.
        """
        viewer = self
        for path in self.paths:
            with suppress(InputError, OSError):
                now = viewer._with_those_at(path, _versions_at(path, alone=len(self.paths) == 1))
                viewer = viewer if now == viewer.versions else viewer._with(now)
        return viewer

    def _with_those_at(self, path: Path, found: Mapping[str, FileVersion]) -> dict[str, FileVersion]:
        """The same files with others at a path, all in the order of the paths."""
        others = {
            place: {name: version for name, version in self.versions.items() if version.path == place}
            for place in self.paths
        }
        return {name: version for each in (others | {path: found}).values() for name, version in each.items()}

    def _with(self, versions: Mapping[str, FileVersion]) -> "ModelViewer":
        kept = {name for name in self.models if self.versions.get(name) == versions.get(name)}
        models = {
            name: self.models[name] if name in kept else open_model(version.file, device=self.device)
            for name, version in versions.items()
        }
        first_named = {fingerprint(model): name for name, model in reversed(models.items())}
        shown = {name: model for name, model in models.items() if name in first_named.values()}
        return replace(self, models=shown, versions=versions)

    @property
    def repeated(self) -> list[str]:
        """Models that equal one named before them, as an extension's step 0 equals the model it began with."""
        return [name for name in self.versions if name not in self.models]

    @property
    def classes(self) -> tuple[str, ...]:
        """Background and the classes of all models, in the order they were learnt."""
        return tuple(dict.fromkeys(name for model in self.models.values() for name in model.classes))

    @property
    def colours(self) -> Colours:
        """The palette of the first model; the others are drawn in it too, so that a colour means one class."""
        return next((model.colours for model in self.models.values()), DISTINCT)

    def predict(self, image: Image.Image | None) -> Predictions:
        """Segment an image with every model; an id means the same class in all predictions."""
        if image is None:
            return {}
        with explained_uploads():
            pixels = read_image(image)
        classes, predictions = self.classes, {}
        for name, model in self.models.items():
            common_ids = np.array([classes.index(known) for known in model.classes], np.uint8)
            ids = model.predict_all([pixels])[0].ids
            predictions[name] = Prediction(pixels, common_ids[ids], classes, self.colours)
        return predictions

    def scale_remark(self, predictions: Predictions) -> str:
        """A paragraph if things in the image are much larger or smaller than in training; empty if not."""
        said = (self.models[name].far_from_training(each.image, REMEDY) for name, each in predictions.items())
        return next((f"<p><b>This image has {html.escape(sentence)}</b></p>" for sentence in said if sentence), "")

    def area_table(self, predictions: Predictions) -> str:
        """An HTML table of the share that each class covers, a column per model; a dash for a class it never learnt."""
        if not predictions:
            return "<p>Drop an image to see how much of it each class covers.</p>"
        head = "".join(f"<th>{html.escape(name)}</th>" for name in predictions)
        shares = [prediction.areas for prediction in predictions.values()]
        rows = []
        for channel, label in enumerate(self.classes):
            known = [label in self.models[name].classes for name in predictions]
            areas = [prediction[label] for prediction in shares]
            cells = [percentage(area) if is_known else "–" for area, is_known in zip(areas, known, strict=True)]
            faint = "" if any(areas) else " class='none'"
            red, green, blue = palette(self.colours)[channel]
            swatch = f"<i style='background: rgb({red} {green} {blue})'></i>"
            numbers = "".join(f"<td>{cell}</td>" for cell in cells)
            rows.append(f"<tr{faint}><td>{swatch}{html.escape(label)}</td>{numbers}</tr>")
        table = f"<table class='areas'><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        return f"{self.scale_remark(predictions)}<div class='scrolled'>{table}</div>"

    def overlays(self, predictions: Predictions, shown: Sequence[str], *names: str) -> list[Image.Image | None]:
        """The image overlaid with the predictions of the named models, limited to the classes shown."""
        found = [predictions.get(name) for name in names]
        return [None if prediction is None else magnified(prediction.overlay(shown)) for prediction in found]


def fingerprint(model: Model) -> bytes:
    """Equal for models with the same classes and the same weights, wherever they lie."""
    digest = hashlib.sha256(repr(model.classes).encode())
    for name, tensor in sorted(model.segmenter.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.digest()


@contextmanager
def explained_uploads() -> Iterator[None]:
    """Say in a sentence why an uploaded file cannot be read."""
    try:
        yield
    except UnidentifiedImageError:
        raise InputError("this file is not an image, or of a kind that cannot be read: try JPEG or PNG.") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"this image cannot be read ({error}); is the file complete?") from None


class LiveViewer:
    """A viewer that looks for new and replaced models whenever it is asked; several requests may come at once."""

    def __init__(self, viewer: ModelViewer):
        self._viewer, self._lock = viewer, Lock()

    def now(self) -> ModelViewer:
        """The models as they are on disk now."""
        with self._lock:
            self._viewer = self._viewer.refreshed()
            return self._viewer
