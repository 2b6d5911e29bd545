"""``incseg serve``: a web page where one drops an image and sees what each step of a model predicts."""

import hashlib
import html
import ipaddress
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from incseg.colours import DISTINCT, Colours, palette
from incseg.console import Console
from incseg.deploy import rest
from incseg.deploy.model import Model, open_model
from incseg.deploy.prediction import Prediction, magnified, percentage
from incseg.deploy.visitors import Visitors
from incseg.errors import InputError
from incseg.images import read_image
from incseg.run_folder import RunFolder, model_file

LARGEST_FILE = "20mb"
BUTTONS: list[Any] = ["download", "fullscreen"]  # gradio's third button would publish the image
STYLE = """
.areas {width: 100%; border-collapse: collapse}
.areas td, .areas th {padding: 2px 10px !important; border: none !important; text-align: right !important}
.areas td:first-child {text-align: left !important; white-space: nowrap} .areas .none {opacity: 0.35}
.areas i {display: inline-block; width: 0.9em; height: 0.9em; margin-right: 0.5em; vertical-align: -0.1em}
"""
Predictions = dict[str, Prediction]  # of one image, by the name of the model


class FileVersion(NamedTuple):
    """A file that may be replaced by another under the same name."""

    file: Path
    modified: int
    size: int


def _versions_at(paths: Sequence[Path]) -> dict[str, FileVersion]:
    """The model files below some paths, by the names they are shown under."""
    files: dict[str, Path] = {}
    for path in paths:
        steps = RunFolder(path).finished_steps
        prefix = f"{path} \u00b7 " if len(paths) > 1 else ""
        files |= {f"{prefix}step {step}": model_file(path, step) for step in steps}
        if not steps:
            files[str(path)] = model_file(path)
    facts = {name: file.stat() for name, file in files.items()}
    return {name: FileVersion(file, facts[name].st_mtime_ns, facts[name].st_size) for name, file in files.items()}


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
        return cls({}, paths, device)._with(_versions_at(paths))

    def refreshed(self) -> "ModelViewer":
        """With the steps that were finished and the files that were replaced since: extended models, for example.

        A model that can no longer be read stays as it was.
        """
        try:
            now = _versions_at(self.paths)
            return self if now == self.versions else self._with(now)
        except (InputError, OSError):
            return self

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
            predictions[name] = Prediction(pixels, common_ids[model.predict(pixels).ids], classes, self.colours)
        return predictions

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
        return f"<table class='areas'><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"

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


def build_app(viewer: ModelViewer, visitors: Visitors) -> Any:  # noqa: PLR0915 - a page, top to bottom
    """The page: an image and the classes to show above, the predictions of two models side by side below."""
    if find_spec("gradio") is None:
        raise InputError("incseg serve needs gradio: pip install 'incseg[serve]'.")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported, so that it sends nothing
    os.environ["GRADIO_TEMP_DIR"] = str(visitors.folder)  # read when components are made
    import gradio  # noqa: PLC0415 - an extra

    live, columns = LiveViewer(viewer), min(2, len(viewer.models))

    def predict(image: Image.Image | None, request: gradio.Request) -> tuple[Predictions, str]:
        current = live.now()
        try:
            visitors.admit(request.client.host if request.client else "")
            predictions = visitors.in_time(lambda: current.predict(image))
        except InputError as error:
            raise gradio.Error(str(error)) from None
        return predictions, current.area_table(predictions)

    def receive(payload: Any) -> Any:
        try:
            with explained_uploads():
                if payload is not None:
                    visitors.check_upload(Path(payload.path or ""))
                return as_usual(payload)
        except InputError as error:
            raise gradio.Error(str(error)) from None

    def offer(known: Sequence[str], shown: Sequence[str], *names: str) -> list[Any]:
        """What can be chosen now; ``known`` are the models and classes that this page has offered so far."""
        current = live.now()
        models, labels = list(current.models), list(current.classes[1:])
        wanted = [label for label in labels if label in shown or label not in known]
        latest = models[-columns:] if set(models) - set(known) else names
        radios = [gradio.Radio(choices=models, value=name) for name in latest]
        return [[*models, *labels], gradio.CheckboxGroup(choices=labels, value=wanted), *radios]

    def draw(predictions: Predictions, shown: Sequence[str], *names: str) -> Any:
        drawn = viewer.overlays(predictions, shown, *names)
        return drawn if len(drawn) > 1 else drawn[0]

    names, labels = list(viewer.models), list(viewer.classes[1:])
    with gradio.Blocks(title="incseg", analytics_enabled=False) as app:
        predictions, known = gradio.State({}), gradio.State([*names, *labels])
        gradio.Markdown("## What does each step recognise?")
        with gradio.Row():
            image = gradio.Image(
                type="pil", image_mode=None, sources=["upload", "clipboard"], label="Your image", height=340
            )
            as_usual = image.preprocess
            image.__dict__["preprocess"] = receive  # gradio opens the file before it calls predict
            with gradio.Column():
                shown = gradio.CheckboxGroup(labels, value=labels, label="Classes to show")
                areas = gradio.HTML(viewer.area_table({}))
        chosen, overlays = [], []
        with gradio.Row():
            for name in names[-columns:]:
                with gradio.Column():
                    chosen.append(gradio.Radio(names, value=name, label="Predicted by"))
                    overlays.append(
                        gradio.Image(interactive=False, format="png", show_label=False, height=460, buttons=BUTTONS)
                    )
        offered: list[Any] = [known, shown, *chosen]
        app.load(offer, offered, offered, api_name=False, show_progress="hidden")
        predicted = image.change(predict, image, [predictions, areas], api_name="look")
        updated = predicted.then(offer, offered, offered, api_name=False, show_progress="hidden")
        events: list[Any] = [updated.then, shown.change, *(choice.change for choice in chosen)]
        for on in events:
            on(draw, [predictions, shown, *chosen], overlays, api_name=False, show_progress="hidden")
    return app


def serve(models: Sequence[Path], host: str, port: int | None, device: str = "auto", *, block: bool = True) -> Any:
    """Open the page at ``host`` and ``port`` (the first free one from 7860 if None); returns gradio's app."""
    viewer, visitors = ModelViewer.load(models, device), Visitors()
    app = build_app(viewer, visitors).queue(max_size=visitors.waiting)
    app.visitors = visitors
    import gradio  # noqa: PLC0415 - an extra

    theme = gradio.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    try:
        app.launch(
            server_name=host,
            server_port=port,
            max_file_size=LARGEST_FILE,
            theme=theme,
            css=STYLE,
            footer_links=[],
            share=False,
            enable_monitoring=False,
            ssr_mode=False,
            quiet=True,
            prevent_thread_lock=True,
        )
    except (OSError, OverflowError) as error:
        raise InputError(f"the page cannot be opened at {host}, port {port or '7860 to 7959'}: {error}") from None
    rest.mount(app.app, LiveViewer(viewer).now, visitors)
    for name in viewer.repeated:
        Console().say(f"{name} equals a model named before it and is shown once.")
    Console().say(f"open {app.local_url} in a browser; stop with Ctrl+C.{_warning(host)}")
    if block:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left behind
        try:
            app.block_thread()
        finally:
            visitors.close()
    return app


def _warning(host: str) -> str:
    try:
        private = ipaddress.ip_address(host).is_loopback
    except ValueError:
        private = host == "localhost"
    return "" if private else f" Everyone who can reach this machine at {host} can use it: there is no password."
