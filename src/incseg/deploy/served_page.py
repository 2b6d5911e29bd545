"""The page of ``incseg serve``: an image and the classes to show above, what two models see side by side below."""

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from incseg.deploy.viewer import LiveViewer, ModelViewer, Predictions, explained_uploads
from incseg.deploy.visitors import Visitors
from incseg.errors import InputError

BUTTONS: list[Any] = ["download", "fullscreen"]  # gradio's third button would publish the image
STYLE = """
.scrolled {overflow-x: auto} .areas {width: 100%; border-collapse: collapse}
.areas td, .areas th {padding: 2px 10px !important; border: none !important; text-align: right !important}
.areas td {white-space: nowrap} .areas td:first-child {text-align: left !important} .areas .none {opacity: 0.35}
.areas i {display: inline-block; width: 0.9em; height: 0.9em; margin-right: 0.5em; vertical-align: -0.1em}
"""


class Upload(NamedTuple):
    """An image and the file it came in."""

    image: Image.Image
    file: Path


def build_app(live: LiveViewer, visitors: Visitors) -> Any:
    """Lay out the page and connect its parts."""
    gradio, viewer = _gradio(visitors), live.now()
    names, labels, columns = list(viewer.models), list(viewer.classes[1:]), min(2, len(viewer.models))
    with gradio.Blocks(title="incseg", analytics_enabled=False) as app:
        predictions, known = gradio.State({}), gradio.State([*names, *labels])
        gradio.Markdown("## What does each step recognise?")
        image, shown, areas = _upper_half(gradio, viewer, visitors)
        chosen, overlays = _lower_half(gradio, names, columns)
        offer, offered = _offering(gradio, live, columns), [known, shown, *chosen]
        app.load(offer, offered, offered, api_name=False, show_progress="hidden")
        look = _predicting(gradio, live, visitors)  # its progress is shown where it hides no text
        predicted = image.change(look, image, [predictions, areas], api_name="look", show_progress_on=image)
        updated = predicted.then(offer, offered, offered, api_name=False, show_progress="hidden")
        events: list[Any] = [updated.then, shown.change, *(choice.change for choice in chosen)]
        for on in events:
            on(_drawing(viewer), [predictions, shown, *chosen], overlays, api_name=False, show_progress="hidden")
    return app


def _gradio(visitors: Visitors) -> Any:
    """Import gradio, so that it sends nothing and keeps files where ours are deleted."""
    if find_spec("gradio") is None:
        raise InputError("incseg serve needs gradio: pip install 'incseg[serve]'.")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported
    os.environ["GRADIO_TEMP_DIR"] = str(visitors.folder)  # read when components are made
    import gradio  # noqa: PLC0415 - an extra

    return gradio


def _upper_half(gradio: Any, viewer: ModelViewer, visitors: Visitors) -> tuple[Any, Any, Any]:
    """The image, the classes to show, and the table of areas."""
    labels = list(viewer.classes[1:])
    with gradio.Row():
        image = gradio.Image(
            type="pil", image_mode=None, sources=["upload", "clipboard"], label="Your image", height=340
        )
        # gradio opens the file before it calls us
        image.__dict__["preprocess"] = _receiving(gradio, visitors, image.preprocess)
        with gradio.Column():
            shown = gradio.CheckboxGroup(labels, value=labels, label="Classes to show")
            areas = gradio.HTML(viewer.area_table({}))
    return image, shown, areas


def _lower_half(gradio: Any, names: Sequence[str], columns: int) -> tuple[list[Any], list[Any]]:
    """For each of the last models a choice of the model and its picture."""
    chosen, overlays = [], []
    with gradio.Row():
        for name in names[-columns:]:
            with gradio.Column():
                chosen.append(gradio.Radio(names, value=name, label="Predicted by"))
                overlays.append(
                    gradio.Image(interactive=False, format="png", show_label=False, height=460, buttons=BUTTONS)
                )
    return chosen, overlays


def _receiving(gradio: Any, visitors: Visitors, as_usual: Callable[[Any], Any]) -> Callable[[Any], Upload | None]:
    def receive(payload: Any) -> Upload | None:
        if payload is None:
            return None
        file = Path(payload.path or "")
        try:
            with explained_uploads():
                visitors.check_upload(file)
                return Upload(as_usual(payload), file)
        except InputError as error:
            visitors.delete(file)
            raise _told(gradio, error) from None

    return receive


def _told(gradio: Any, refusal: InputError) -> Exception:
    """What tells a visitor why, and leaves no traceback in the log: nothing went wrong with the server."""
    error: Exception = gradio.Error(str(refusal), print_exception=False)
    return error


def _predicting(gradio: Any, live: LiveViewer, visitors: Visitors) -> Callable[..., tuple[Predictions, str]]:
    def predict(upload: Upload | None, request: gradio.Request) -> tuple[Predictions, str]:
        current = live.now()
        try:
            visitors.admit(request.client.host if request.client else "")
            predictions = visitors.in_time(lambda: current.predict(upload.image if upload else None))
        except InputError as error:
            raise _told(gradio, error) from None
        finally:
            if upload is not None:
                visitors.delete(upload.file)
        return predictions, current.area_table(predictions)

    return predict


def _offering(gradio: Any, live: LiveViewer, columns: int) -> Callable[..., list[Any]]:
    def offer(known: Sequence[str], shown: Sequence[str], *names: str) -> list[Any]:
        """What can be chosen now; ``known`` are the models and classes that this page has offered so far."""
        current = live.now()
        models, labels = list(current.models), list(current.classes[1:])
        wanted = [label for label in labels if label in shown or label not in known]
        latest = models[-columns:] if set(models) - set(known) else names
        radios = [gradio.Radio(choices=models, value=name) for name in latest]
        return [[*models, *labels], gradio.CheckboxGroup(choices=labels, value=wanted), *radios]

    return offer


def _drawing(viewer: ModelViewer) -> Callable[..., Any]:
    def draw(predictions: Predictions, shown: Sequence[str], *names: str) -> Any:
        drawn = viewer.overlays(predictions, shown, *names)
        return drawn if len(drawn) > 1 else drawn[0]

    return draw
