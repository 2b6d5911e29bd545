"""Anything may be given: what comes out is a result or a sentence for the person, never another error.

A short run, the same every time, is part of the suite; a longer one by hand: INCSEG_FUZZ=2000 pytest tests/fuzz
"""

import io
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from incseg import methods
from incseg.checksums import sealed
from incseg.config import RunConfig, load_recipe, validate
from incseg.errors import IncompleteError, InputError, TrainingError
from incseg.images import read_image, read_mask
from incseg.models.storage import describe_model, load_model
from incseg.protocol import Protocol
from incseg.report.summary import conventions_table, read_runs, summary_table
from incseg.run_folder import RunFolder
from sample_runs import write_run

BY_HAND = int(os.environ.get("INCSEG_FUZZ", "0"))
SENTENCES = (InputError, IncompleteError, TrainingError)
fuzz = settings(
    max_examples=BY_HAND or 30,
    derandomize=not BY_HAND,
    database=None,
    deadline=None,
    phases=tuple(Phase) if BY_HAND else (Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
words = st.sampled_from(
    ["voc", "shapes", "folder", "15-5", "4-2", "offline", "overlapped", "disjoint", "-", "/", "２-２", ""]
)
texts = st.text(max_size=20)
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)


def setting_names() -> list[tuple[str, str]]:
    return [
        (section, name)
        for section in ("data", "model", "optim", "engine")
        for name in RunConfig.model_fields[section].annotation.model_fields  # type: ignore[union-attr]
    ]


@fuzz
@given(st.lists(words | texts, max_size=5).map("/".join) | texts)
def test_protocols(text: str) -> None:
    with suppress(*SENTENCES):
        steps = Protocol.parse(text).steps(20)
        assert [c for step in steps for c in step.new] == list(range(1, 21))


@fuzz
@given(st.lists(st.sampled_from(["mib", "ucd", "plop", "ft", "+", " ", "ilt+"]) | texts, max_size=5).map("".join))
def test_methods(text: str) -> None:
    with suppress(*SENTENCES):
        assert methods.parse(text).parts


@fuzz
@given(st.dictionaries(st.sampled_from(setting_names()), values, max_size=4), values)
def test_recipes(chosen: dict[tuple[str, str], Any], rest: Any) -> None:
    recipe: dict[str, Any] = {"protocol": "shapes/4-2/overlapped"}
    for (section, name), value in chosen.items():
        recipe.setdefault(section, {})[name] = value
    with suppress(*SENTENCES):
        config = validate(recipe | (rest if isinstance(rest, dict) else {"settings": rest}))
        assert validate(config.model_dump()) == config


@fuzz
@given(
    values.map(lambda value: yaml.safe_dump(value, allow_unicode=True)) | st.text(max_size=200) | st.binary(max_size=60)
)
def test_recipe_files(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    with suppress(*SENTENCES):
        assert isinstance(load_recipe(str(path)), RunConfig)


MODES = ("1", "L", "P", "RGB", "RGBA", "LA", "I", "I;16", "F", "CMYK")


@fuzz
@given(
    st.sampled_from(MODES),
    st.sampled_from(["PNG", "TIFF", "BMP", "WEBP", "JPEG", "GIF"]),
    st.integers(1, 9),
    st.binary(min_size=1, max_size=40),
    st.integers(0, 400),
    st.integers(0, 255),
)
def test_masks(tmp_path: Path, mode: str, kind: str, side: int, noise: bytes, place: int, byte: int) -> None:
    pixels = np.frombuffer(noise * (4 * side * side // len(noise) + 4), np.uint8)[: side * side * 4].reshape(
        side, side, 4
    )
    image = Image.fromarray(pixels, "RGBA").convert("L" if mode in ("I;16", "F", "I") else mode)
    image = image.convert("I") if mode in ("I", "I;16") else image.convert(mode) if mode == "F" else image
    buffer = io.BytesIO()
    with suppress(OSError, ValueError, KeyError):  # not every kind can hold every mode
        image.save(buffer, kind)
    data = bytearray(buffer.getvalue() or noise)
    if place < len(data):
        data[place] = byte
    path = tmp_path / "mask.png"
    path.write_bytes(data)
    for read in (read_mask, read_image):
        with suppress(*SENTENCES):
            found = read(path)
            assert found.dtype.kind in "iu"


def paths_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The addresses of everything in a JSON document."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    return [at, *(path for key, inside in items for path in paths_in(inside, (*at, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


@fuzz
@given(st.data())
def test_run_folders(tmp_path: Path, data: st.DataObject) -> None:
    folder = RunFolder(tmp_path / "run")
    if not folder.result.exists():
        write_run(folder.path, "ft")
        (tmp_path / "result.json").write_bytes(folder.result.read_bytes())
    intact = json.loads((tmp_path / "result.json").read_text())
    intact = {key: value for key, value in intact.items() if key not in ("format", "checksum")}
    mutated = changed(intact, data.draw(st.sampled_from(paths_in(intact))), data.draw(values))
    with suppress(ValueError):  # what JSON cannot hold
        folder.result.write_text(json.dumps(sealed(mutated) if isinstance(mutated, dict) else mutated))
    with suppress(*SENTENCES):
        runs = read_runs([folder.path])
        summary_table(runs)
        conventions_table(runs)


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    import torch
    from safetensors import safe_open

    from conftest import CLASSES, SMALL
    from incseg.models import Segmenter
    from incseg.models.storage import save_model

    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    torch.manual_seed(0)
    save_model(Segmenter(SMALL, [3, 2]), CLASSES, path)
    with safe_open(path, "pt") as file:
        return path, dict(file.metadata())


@fuzz
@given(st.data())
def test_descriptions_of_models(described: tuple[Path, dict[str, Any]], tmp_path: Path, data: st.DataObject) -> None:
    from safetensors.torch import load_file

    path, metadata = described
    key = data.draw(st.sampled_from(sorted(metadata)))
    try:
        inside = json.loads(metadata[key])
        text = json.dumps(changed(inside, data.draw(st.sampled_from(paths_in(inside))), data.draw(values)))
    except ValueError:
        text = data.draw(texts)
    kept = {name: value for name, value in metadata.items() if name not in ("checksum", "format")}
    file = tmp_path / "model.safetensors"
    save_file(load_file(path), file, {**kept, key: text})
    with suppress(*SENTENCES):
        describe_model(file)
        load_model(file)
