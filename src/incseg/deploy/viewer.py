"""The models that ``incseg serve`` shows, usually the steps of a run, and what each sees in an image."""

import hashlib
import html
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from incseg.errors import InputError, Note
from incseg.files import expanded
from incseg.hub import fetched
from incseg.images import read_image
from incseg.run_folder import RunFolder, model_file

REMEDY = "to about {} pixels before"  # for an image whose things are much larger than in training
Predictions = dict[str, Prediction]  # of one image, by the name of the model


class FileVersion(NamedTuple):
    """A file that may be replaced by another under the same name."""

    path: Path
    """As it was named: itself, the folder of its run, or its address on the Hub."""
    file: Path
    modified: int
    size: int


Reasons = dict[Path | FileVersion, str]  # a sentence on each path or file that cannot be read


@dataclass(frozen=True)
class ModelViewer:
    """The models to choose from, by name: usually the steps of a run, oldest first."""

    models: dict[str, Model]
    places: Mapping[Path, Path] = field(default_factory=dict)
    """Where to look for them again, by the paths that were named: what the Hub has lies where it was downloaded to."""
    device: str = "auto"
    versions: Mapping[str, FileVersion] = field(default_factory=dict)
    """The file of each model as it was when it was last looked at."""
    unread: Reasons = field(default_factory=Reasons)
    """What cannot be read as it is now; the models read before are shown instead."""

    @classmethod
    def load(cls, paths: Sequence[Path], device: str = "auto") -> "ModelViewer":
        """Load every finished step of a run's folder, and of any other path the one model it holds.

        The Hub is asked only here: what was downloaded is looked at later like any other folder.
        """
        viewer = cls({}, {path: fetched(expanded(path)) for path in paths}, device)
        versions = {name: version for path in viewer.places for name, version in viewer._versions_at(path).items()}
        return viewer._showing({name: viewer._open(version) for name, version in versions.items()}, versions)

    def refreshed(self) -> "ModelViewer":
        """With the steps that were finished and the files that were replaced since: extended models, for example.

        A model that cannot be read stays as it was, and does not keep others from being read. Its file is tried again
        only when it has changed, as a failure can take as long as a success.
        """
        versions, missing = self._looked_for()
        unchanged = {version: why for version, why in self.unread.items() if version in versions.values()}
        viewer = replace(self, unread={**unchanged, **missing})
        if versions == self.versions:
            return self if viewer.unread == self.unread else viewer
        models, failed = self._read(versions)
        return replace(viewer, unread={**viewer.unread, **failed})._showing(models, versions)

    def _versions_at(self, path: Path) -> dict[str, FileVersion]:
        """The model files at a path as they are now, by the names they are shown under."""
        place, prefix = self.places[path], "" if len(self.places) == 1 else f"{path} \u00b7 "
        steps = RunFolder(place).finished_steps
        files = {f"{prefix}step {step}": model_file(place, step) for step in steps} or {str(path): model_file(place)}
        facts = {name: file.stat() for name, file in files.items()}
        return {name: FileVersion(path, files[name], fact.st_mtime_ns, fact.st_size) for name, fact in facts.items()}

    def _looked_for(self) -> tuple[dict[str, FileVersion], Reasons]:
        """The files as they are now, or as they were at a path where they cannot be found; and why they cannot."""
        versions, missing = dict[str, FileVersion](), Reasons()
        for path in self.places:
            try:
                versions |= self._versions_at(path)
            except (InputError, OSError) as error:
                versions |= {name: version for name, version in self.versions.items() if version.path == path}
                missing[path] = _unreadable(path, error)
        return versions, missing

    def _read(self, versions: Mapping[str, FileVersion]) -> tuple[dict[str, Model], Reasons]:
        """The models in these files, or those of before where a file cannot be read; and why it cannot."""
        models, failed = dict(self.models), Reasons()
        for name, version in versions.items():
            is_shown = name in self.models and version == self.versions.get(name)
            if is_shown or version in self.unread:
                continue
            try:
                models[name] = self._open(version)
            except Exception as error:  # a full GPU too: whoever happens to ask now gets an answer all the same
                failed[version] = _unreadable(version.file, error)
        return {name: models[name] for name in versions if name in models}, failed

    def _open(self, version: FileVersion) -> Model:
        return open_model(version.file, device=self.device)

    def _showing(self, models: dict[str, Model], versions: Mapping[str, FileVersion]) -> "ModelViewer":
        """These models, equal ones once."""
        first_named = {fingerprint(model): name for name, model in reversed(models.items())}
        shown = {name: model for name, model in models.items() if name in first_named.values()}
        return replace(self, models=shown, versions=versions)

    @property
    def repeated(self) -> list[str]:
        """Models that equal one named before them, as an extension's step 0 equals the model it began with."""
        hidden = {name: version for name, version in self.versions.items() if name not in self.models}
        return [name for name, version in hidden.items() if version not in self.unread]

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


def _unreadable(path: Path, error: Exception) -> str:
    """For the console of the server."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return f"{path} cannot be read; the models of before stay in use until it changes or the server restarts: {reason}"


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

    def __init__(self, viewer: ModelViewer, say: Note):
        self._viewer, self._say, self._lock = viewer, say, Lock()

    def now(self) -> ModelViewer:
        """The models as they are on disk now, or as they were while another request loads what is new."""
        if self._lock.acquire(blocking=False):  # to wait would keep a thread from everybody else
            try:
                self._look_again()
            finally:
                self._lock.release()
        return self._viewer

    def _look_again(self) -> None:
        """Take up what is new, and say once what cannot be read."""
        before, self._viewer = self._viewer, self._viewer.refreshed()
        for unread, reason in self._viewer.unread.items():
            if unread not in before.unread:
                self._say(reason)
