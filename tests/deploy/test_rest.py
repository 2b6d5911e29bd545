import asyncio
import io
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from PIL import Image

from incseg.deploy import rest
from incseg.deploy.model import Model
from incseg.deploy.serve import serve
from incseg.deploy.viewer import ModelViewer
from incseg.deploy.visitors import Visitors

pytest.importorskip("gradio", reason="the extra incseg[serve] is not installed")


@pytest.fixture(scope="module")
def address(tiny_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tiny_model.save(tmp_path_factory.mktemp("served") / "shapes.safetensors")
    app = serve([path], "127.0.0.1", None, "cpu", block=False)
    app.visitors.per_minute = 6
    yield f"{app.local_url.rstrip('/')}{rest.PREFIX}"
    app.close()
    app.visitors.close()


def ask(address: str, data: bytes | None = None) -> tuple[int, str, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data=data), timeout=30) as answer:
            return answer.status, answer.headers["content-type"], answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["content-type"], error.read()


def test_programs_get_models_masks_areas_and_a_description(
    address: str, tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, listed = ask(f"{address}/models")
    (model,) = json.loads(listed)
    assert model["classes"] == list(tiny_model.classes)

    pixels = np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    image, expected = buffer.getvalue(), tiny_model.predict(pixels)

    status, kind, mask = ask(f"{address}/predict", image)
    assert (status, kind) == (200, "image/png")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(mask))), expected.ids)
    query = urllib.parse.urlencode({"model": model["name"], "format": "json"})
    status, kind, areas = ask(f"{address}/predict?{query}", image)
    assert (status, kind) == (200, "application/json")
    assert json.loads(areas) == json.loads(json.dumps(expected.to_json()))

    schema: dict[str, Any] = json.loads(ask(f"{address}/openapi.json")[2])
    assert set(schema["paths"]) == {"/models", "/predict"}
    assert [each["name"] for each in schema["paths"]["/predict"]["post"]["parameters"]] == ["model", "format"]
    page = ask(f"{address}/")[2].decode()
    assert "POST /api/v1/predict" in page
    assert "https://" not in page, "nothing is loaded from elsewhere"

    for request, code, message in [
        (f"{address}/predict?model=none", 404, "there is no model 'none'"),
        (f"{address}/predict?format=gif", 400, "use png or json"),
    ]:
        status, _, answer = ask(request, image)
        assert status == code
        assert message in json.loads(answer)["detail"]
    status, _, answer = ask(f"{address}/predict", b"no image")
    assert status == 400
    assert "not a complete image" in json.loads(answer)["detail"]
    monkeypatch.setattr(rest, "LARGEST", 10)
    assert ask(f"{address}/predict", image)[0] == 413
    assert ask(f"{address}/predict", image)[0] == 429, "more than six in a minute"


def test_other_requests_are_answered_while_a_model_loads(tiny_model: Model) -> None:
    import httpx  # comes with gradio

    begun, go_on, visitors = Event(), Event(), Visitors()

    def slow() -> ModelViewer:
        begun.set()
        assert go_on.wait(5), "nobody else was answered"
        return ModelViewer({"mine": tiny_model})

    async def ask_twice() -> list[int]:
        api = httpx.ASGITransport(rest.rest_api(slow, visitors))
        async with httpx.AsyncClient(transport=api, base_url="http://here") as client:
            slow_one = asyncio.create_task(client.post("/predict?model=none"))
            await asyncio.to_thread(begun.wait)
            page = await client.get("/")
            go_on.set()
            return [page.status_code, (await slow_one).status_code]

    assert asyncio.run(ask_twice()) == [200, 404]
    visitors.close()


def test_the_page_says_how() -> None:
    text = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
    assert f"{rest.PREFIX}/predict --output classes.png" in text
