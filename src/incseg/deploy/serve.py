"""``incseg serve``: drop an image on a page, see what each step of a model makes of it."""

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
from incseg.deploy.model import Model, finished_steps, open_model
from incseg.deploy.prediction import Prediction, magnified, percentage
from incseg.errors import InputError
from incseg.images import palette, read_image

MOST_PIXELS = 25_000_000  # of an image from a stranger's browser
LARGEST_FILE = "20mb"
BUTTONS: list[Any] = ["download", "fullscreen"]  # without gradio's third, which would share the picture with the world
STYLE = """
.areas {width: 100%; border-collapse: collapse}
.areas td, .areas th {padding: 2px 10px !important; border: none !important; text-align: right !important}
.areas td:first-child {text-align: left !important; white-space: nowrap} .areas .none {opacity: 0.35}
.areas i {display: inline-block; width: 0.9em; height: 0.9em; margin-right: 0.5em; vertical-align: -0.1em}
"""
Seen = dict[str, Prediction]  # what each model makes of an image


@dataclass(frozen=True)
class Show:
    """Models to choose between by name, usually the steps of a run, oldest first."""

    models: dict[str, Model]

    @classmethod
    def of(cls, paths: Sequence[Path], device: str = "auto") -> "Show":
        """Every finished step of the runs among ``paths``, and every other model as it is."""
        models: dict[str, Model] = {}
        for path in paths:
            steps: list[int | None] = [*finished_steps(path)] or [None]
            for step in steps:
                words = [str(path)] * (len(paths) > 1 or step is None) + [f"step {step}"] * (step is not None)
                models[" · ".join(words)] = open_model(path, step, device)
        return cls(models)

    @property
    def classes(self) -> tuple[str, ...]:
        """Background and every class any of them knows, in the order of learning."""
        return tuple(dict.fromkeys(name for model in self.models.values() for name in model.classes))

    def look(self, image: Image.Image | None) -> Seen:
        """What every model makes of an image, in ids that mean the same for all."""
        if image is None:
            return {}
        if image.width * image.height > MOST_PIXELS:
            raise InputError(
                f"this image is {image.width}×{image.height}: at most {MOST_PIXELS // 1_000_000} million pixels are "
                "looked at here; use 'incseg predict' for larger ones."
            )
        pixels, classes, seen = read_image(image), self.classes, {}
        for name, model in self.models.items():
            shared = np.array([classes.index(known) for known in model.classes], np.uint8)
            seen[name] = Prediction(pixels, shared[model.predict(pixels).ids], classes)
        return seen

    def areas(self, seen: Seen) -> str:
        """How much of the image each class covers, model by model (HTML); what a model does not know is a dash."""
        if not seen:
            return "<p>Drop an image, and see here how much of it each class covers.</p>"
        head = "".join(f"<th>{html.escape(name)}</th>" for name in seen)
        shares = {name: prediction.areas for name, prediction in seen.items()}
        rows = []
        for channel, label in enumerate(self.classes):
            cells = [percentage(shares[name][label]) if label in self.models[name].classes else "–" for name in seen]
            faint = "" if any(shares[name][label] > 0 for name in seen) else " class='none'"
            red, green, blue = palette()[channel]
            swatch = f"<i style='background: rgb({red} {green} {blue})'></i>"
            numbers = "".join(f"<td>{cell}</td>" for cell in cells)
            rows.append(f"<tr{faint}><td>{swatch}{html.escape(label)}</td>{numbers}</tr>")
        return f"<table class='areas'><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"

    def pictures(self, seen: Seen, shown: Sequence[str], *names: str) -> list[Image.Image | None]:
        """The image as the named models see it, in the colours of the classes shown."""
        return [magnified(seen[name].overlay(shown)) if seen else None for name in names]


def build_app(show: Show) -> Any:
    """The page: an image and class toggles above, two models side by side below."""
    if find_spec("gradio") is None:
        raise InputError("incseg serve needs gradio: pip install 'incseg[serve]'.")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is loaded: nothing is sent anywhere
    import gradio  # noqa: PLC0415 - an extra

    def look(image: Image.Image | None) -> tuple[Seen, str]:
        try:
            seen = show.look(image)
        except InputError as error:
            raise gradio.Error(str(error)) from error
        return seen, show.areas(seen)

    def draw(seen: Seen, shown: Sequence[str], *names: str) -> Any:
        drawn = show.pictures(seen, shown, *names)
        return drawn if len(drawn) > 1 else drawn[0]

    names, labels = list(show.models), list(show.classes[1:])
    with gradio.Blocks(title="incseg", analytics_enabled=False) as app:
        seen = gradio.State({})
        gradio.Markdown("## What does each step see?")
        with gradio.Row():
            image = gradio.Image(
                type="pil", image_mode=None, sources=["upload", "clipboard"], label="Your image", height=340
            )
            with gradio.Column():
                shown = gradio.CheckboxGroup(labels, value=labels, label="Classes to show")
                areas = gradio.HTML(show.areas({}))
        chosen, pictures = [], []
        with gradio.Row():
            for name in names[-2:]:
                with gradio.Column():
                    chosen.append(gradio.Radio(names, value=name, label="Seen by"))
                    pictures.append(
                        gradio.Image(interactive=False, format="png", show_label=False, height=460, buttons=BUTTONS)
                    )
        looked = image.change(look, image, [seen, areas], api_name="look")
        events: list[Any] = [looked.then, shown.change, *(choice.change for choice in chosen)]
        for on in events:
            on(draw, [seen, shown, *chosen], pictures, api_name=False, show_progress="hidden")
    return app


def serve(models: Sequence[Path], host: str, port: int | None, device: str = "auto", *, block: bool = True) -> Any:
    """Open the page at ``host`` and ``port`` (the first free one from 7860 if None); returns gradio's app."""
    app = build_app(Show.of(models, device))
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
    Console().say(f"open {app.local_url} in a browser; end with Ctrl+C.{_warning(host)}")
    if block:
        app.block_thread()
    return app


def _warning(host: str) -> str:
    try:
        private = ipaddress.ip_address(host).is_loopback
    except ValueError:
        private = host == "localhost"
    return "" if private else f" Everyone who can reach this machine at {host} can use it: there is no password."
