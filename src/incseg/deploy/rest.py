"""The models of ``incseg serve`` for programs: ``/api/v1/models``, ``/api/v1/predict``, and a page on them."""

import html
import io
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from PIL import Image, UnidentifiedImageError

import incseg
from incseg.console import as_json
from incseg.deploy.model import Model
from incseg.deploy.visitors import FORMATS, Visitors
from incseg.errors import InputError
from incseg.images import read_image

PREFIX = "/api/v1"
LARGEST = 20_000_000  # bytes of an image file
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>incseg API</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<body style="max-width: 46rem; margin: 2rem auto; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif">
<h1>incseg API</h1><p>For programs: <a href="openapi.json">openapi.json</a>.</p>{routes}</body></html>"""


class Models(Protocol):
    """Whatever holds models by name, the newest last."""

    @property
    def models(self) -> Mapping[str, Model]:
        """By name."""


def mount(app: Any, now: Callable[[], Models], visitors: Visitors) -> None:
    """Add the API to a web application; ``now`` gives the models as they are at the moment."""
    app.mount(PREFIX, rest_api(now, visitors))


def rest_api(now: Callable[[], Models], visitors: Visitors) -> Any:
    """An application of its own, with its OpenAPI description; it loads nothing from elsewhere."""
    from fastapi import FastAPI, HTTPException, Request, Response  # noqa: PLC0415 - comes with the extra 'serve'
    from fastapi.concurrency import run_in_threadpool  # noqa: PLC0415
    from fastapi.responses import HTMLResponse  # noqa: PLC0415

    api = FastAPI(title="incseg", version=incseg.__version__, docs_url=None, redoc_url=None)

    @api.get("/", response_class=HTMLResponse, include_in_schema=False)
    def explain() -> str:
        """The page."""
        return PAGE.format(routes=_described(api.openapi()))

    @api.get("/models", summary="The models that can be asked, the newest last, each with its classes by id.")
    def models() -> list[dict[str, Any]]:
        return [{"name": name, "classes": list(model.classes)} for name, model in now().models.items()]

    async def predict(request: Request, model: str = "", format: str = "png") -> Response:
        try:
            visitors.admit(request.client.host if request.client else "")
        except InputError as error:
            raise HTTPException(429, str(error)) from None
        found = (await run_in_threadpool(now)).models  # to load a new model here would stop the whole server
        if model and model not in found:
            raise HTTPException(404, f"there is no model '{model}': ask for one of {', '.join(found)}.")
        if format not in ("png", "json"):
            raise HTTPException(400, f"format cannot be '{format}': use png or json.")
        chosen = found[model] if model else list(found.values())[-1]
        data = b"".join([part async for part in _limited(request.stream())])
        try:
            content, kind = await run_in_threadpool(_answer, chosen, data, format, visitors)
        except InputError as error:
            raise HTTPException(400, str(error)) from None
        return Response(content, media_type=kind)

    async def _limited(parts: Any) -> Any:
        size = 0
        async for part in parts:
            size += len(part)
            if size > LARGEST:
                raise HTTPException(413, f"the file has more than {LARGEST // 1_000_000} MB.")
            yield part

    body = {"required": True, "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}
    predict.__annotations__ |= {"request": Request, "return": Response}  # FastAPI reads them as they are
    api.post(
        "/predict",
        summary="Segment the image in the body: a PNG whose pixels are class ids, or with format=json the share of "
        "every class. 'model' is a name from /models, the newest by default.",
        response_class=Response,
        openapi_extra={"requestBody": body},
    )(predict)
    return api


def _answer(model: Model, data: bytes, format: str, visitors: Visitors) -> tuple[bytes, str]:
    """The content of a response and its type."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            visitors.check_size(image)
            pixels = read_image(image)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise InputError(f"the body is not a complete image of a kind that is read: {', '.join(FORMATS)}.") from None
    prediction = visitors.in_time(lambda: model.predict(pixels))
    if format == "json":
        return as_json(prediction.to_json()).encode(), "application/json"
    buffer = io.BytesIO()
    prediction.index().save(buffer, "PNG")
    return buffer.getvalue(), "image/png"


def _described(schema: Mapping[str, Any]) -> str:
    """Every route in a line or two, with a command to try it."""
    lines = []
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            names = [parameter["name"] for parameter in route.get("parameters", ())]
            query = f"?{'&'.join(f'{name}=…' for name in names)}" if names else ""
            lines.append(f"<h2>{method.upper()} {PREFIX}{html.escape(path + query)}</h2>")
            lines.append(f"<p>{html.escape(route.get('summary', ''))}</p>")
    lines.append(f"<pre>curl --data-binary @photo.jpg http://HOST:PORT{PREFIX}/predict --output classes.png</pre>")
    return "\n".join(lines)
