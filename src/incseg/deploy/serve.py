"""``incseg serve``: a web page where one drops an image and sees what each step of a model predicts."""

import html
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from incseg.console import Console
from incseg.deploy.model import Model, open_model
from incseg.deploy.prediction import Prediction, magnified, percentage
from incseg.errors import InputError
from incseg.images import palette, read_image
from incseg.run_folder import RunFolder

MOST_PIXELS = 25_000_000  # of an uploaded image: anyone who can reach the page may upload one
LARGEST_FILE = "20mb"
BUTTONS: list[Any] = ["download", "fullscreen"]  # gradio's third button would publish the image
STYLE = """
.areas {width: 100%; border-collapse: collapse}
.areas td, .areas th {padding: 2px 10px !important; border: none !important; text-align: right !important}
.areas td:first-child {text-align: left !important; white-space: nowrap} .areas .none {opacity: 0.35}
.areas i {display: inline-block; width: 0.9em; height: 0.9em; margin-right: 0.5em; vertical-align: -0.1em}
"""
Predictions = dict[str, Prediction]  # of one image, by the name of the model


@dataclass(frozen=True)
class ModelViewer:
    """The models to choose from, by name: usually the steps of a run, oldest first."""

    models: dict[str, Model]

    @classmethod
    def load(cls, paths: Sequence[Path], device: str = "auto") -> "ModelViewer":
        """Load every finished step of a run's folder, and of any other path the one model it holds."""
        models: dict[str, Model] = {}
        for path in paths:
            steps = RunFolder(path).finished_steps
            prefix = f"{path} \u00b7 " if len(paths) > 1 else ""
            models |= {f"{prefix}step {step}": open_model(path, step, device) for step in steps}
            if not steps:
                models[str(path)] = open_model(path, device=device)
        return cls(models)

    @property
    def classes(self) -> tuple[str, ...]:
        """Background and the classes of all models, in the order they were learnt."""
        return tuple(dict.fromkeys(name for model in self.models.values() for name in model.classes))

    def predict(self, image: Image.Image | None) -> Predictions:
        """Segment an image with every model; an id means the same class in all predictions."""
        if image is None:
            return {}
        if image.width * image.height > MOST_PIXELS:
            raise InputError(
                f"this image is {image.width}×{image.height}: this page takes at most {MOST_PIXELS // 1_000_000} "
                "million pixels; use 'incseg predict' for larger images."
            )
        pixels, classes, predictions = read_image(image), self.classes, {}
        for name, model in self.models.items():
            common_ids = np.array([classes.index(known) for known in model.classes], np.uint8)
            predictions[name] = Prediction(pixels, common_ids[model.predict(pixels).ids], classes)
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
            red, green, blue = palette()[channel]
            swatch = f"<i style='background: rgb({red} {green} {blue})'></i>"
            numbers = "".join(f"<td>{cell}</td>" for cell in cells)
            rows.append(f"<tr{faint}><td>{swatch}{html.escape(label)}</td>{numbers}</tr>")
        return f"<table class='areas'><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"

    def overlays(self, predictions: Predictions, shown: Sequence[str], *names: str) -> list[Image.Image | None]:
        """The image overlaid with the predictions of the named models, limited to the classes shown."""
        return [magnified(predictions[name].overlay(shown)) if predictions else None for name in names]


def build_app(viewer: ModelViewer) -> Any:
    """The page: an image and the classes to show above, the predictions of two models side by side below."""
    if find_spec("gradio") is None:
        raise InputError("incseg serve needs gradio: pip install 'incseg[serve]'.")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported, so that it sends nothing
    import gradio  # noqa: PLC0415 - an extra

    def predict(image: Image.Image | None) -> tuple[Predictions, str]:
        try:
            predictions = viewer.predict(image)
        except InputError as error:
            raise gradio.Error(str(error)) from error
        return predictions, viewer.area_table(predictions)

    def draw(predictions: Predictions, shown: Sequence[str], *names: str) -> Any:
        drawn = viewer.overlays(predictions, shown, *names)
        return drawn if len(drawn) > 1 else drawn[0]

    names, labels = list(viewer.models), list(viewer.classes[1:])
    with gradio.Blocks(title="incseg", analytics_enabled=False) as app:
        predictions = gradio.State({})
        gradio.Markdown("## What does each step recognise?")
        with gradio.Row():
            image = gradio.Image(
                type="pil", image_mode=None, sources=["upload", "clipboard"], label="Your image", height=340
            )
            with gradio.Column():
                shown = gradio.CheckboxGroup(labels, value=labels, label="Classes to show")
                areas = gradio.HTML(viewer.area_table({}))
        chosen, overlays = [], []
        with gradio.Row():
            for name in names[-2:]:
                with gradio.Column():
                    chosen.append(gradio.Radio(names, value=name, label="Predicted by"))
                    overlays.append(
                        gradio.Image(interactive=False, format="png", show_label=False, height=460, buttons=BUTTONS)
                    )
        predicted = image.change(predict, image, [predictions, areas], api_name="look")
        events: list[Any] = [predicted.then, shown.change, *(choice.change for choice in chosen)]
        for on in events:
            on(draw, [predictions, shown, *chosen], overlays, api_name=False, show_progress="hidden")
    return app


def serve(models: Sequence[Path], host: str, port: int | None, device: str = "auto", *, block: bool = True) -> Any:
    """Open the page at ``host`` and ``port`` (the first free one from 7860 if None); returns gradio's app."""
    app = build_app(ModelViewer.load(models, device))
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
    Console().say(f"open {app.local_url} in a browser; stop with Ctrl+C.{_warning(host)}")
    if block:
        app.block_thread()
    return app


def _warning(host: str) -> str:
    try:
        private = ipaddress.ip_address(host).is_loopback
    except ValueError:
        private = host == "localhost"
    return "" if private else f" Everyone who can reach this machine at {host} can use it: there is no password."
