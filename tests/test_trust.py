"""Files from strangers: recipes, run folders and models that try to run code, or to reach the network."""

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import huggingface_hub
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import incseg
from command_line import run
from incseg.config import load_recipe
from incseg.datasets.formats.conversion import distinct_names
from incseg.deploy.model import Model
from incseg.engine.checkpoint import Checkpoint
from incseg.engine.evaluator import save_pictures
from incseg.errors import InputError
from incseg.files import read_text
from incseg.loading.batches import ScoredImages
from incseg.loading.generated import open_generator
from incseg.models import Architecture
from incseg.models.segmenter import Segmenter
from incseg.models.storage import save_model
from incseg.models.tensor_file import write_tensors
from incseg.run_folder import RunFolder

EVIL = "evil_generator"
WAYS = {
    "by the method's name": "recall: {{generator: '{name}', images: pictures}}",
    "among the settings": "settings: {{recall: {{generator: '{name}', images: pictures}}}}",
    "as JSON": '"recall": {{"generator": "{name}", "images": "pictures"}}',
    "by a merge": "<<: {{recall: {{generator: '{name}', images: pictures}}}}",
}


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a module that leaves a trace when it is imported or called; the trace."""
    trace = tmp_path / "ran"
    source = f"import pathlib\npathlib.Path({str(trace)!r}).touch()\ndef make(name):\n    return []\n"
    for name in (EVIL, "diffusers", "scipy", "wandb"):
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    yield trace
    assert not trace.exists(), "code from a file was run"


def quick(data: Path) -> list[str | Path]:
    return [
        "--data-root", data, "--data.crop-size", "64", "--data.workers", "0", "--model.encoder", "test_resnet",
        "--model.decoder", "deeplabv3plus", "--model.weights", "none", "--engine.accelerator", "cpu",
    ]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [f"{EVIL}:make", f"{EVIL}.py:make", "os:popen", "diffusers:someone/model"])
def test_a_recipe_from_anyone_runs_nothing(
    way: str, name: str, trap: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = trap.parent / "theirs.yaml"
    recipe.write_text(f"protocol: folder/2-2/overlapped\nmethod: recall\n{WAYS[way].format(name=name)}\n")
    assert run("train", recipe, *quick(tiny_folder), "--out", trap.parent / "out") == 2
    said = capsys.readouterr().err
    assert f"names code to run (generator: {name})" in said
    assert "--trust" in said
    assert not (trap.parent / "out").exists()


@pytest.mark.parametrize("way", WAYS)
def test_the_help_for_a_recipe_from_anyone_runs_nothing(way: str, trap: Path) -> None:
    """It reads the recipe too."""
    recipe = trap.parent / "theirs.yaml"
    named = WAYS[way].format(name=f"{EVIL}:make")
    recipe.write_text(f"protocol: folder/2-2/overlapped\nmethod: recall\n{named}\n")
    assert run("train", recipe, "--help") == 0


def test_who_trusts_a_file_or_names_the_code_may_use_it(tmp_path: Path) -> None:
    recipe = tmp_path / "theirs.yaml"
    recipe.write_text("protocol: shapes/4-2\nmethod: recall\nrecall: {generator: 'a:b', images: p}\n")
    mine = {"recall": {"generator": "mine:make"}}
    assert load_recipe(str(recipe), mine).settings["recall"]["generator"] == "mine:make"
    assert load_recipe(str(recipe), trust=True).settings["recall"]["generator"] == "a:b"
    for other in ({"recall": {"per_class": 3}}, {"recall": {"generator": None}}):
        with pytest.raises(InputError, match=r"add --recall\.generator a:b, or --trust"):
            load_recipe(str(recipe), other)
    recipe.write_text("protocol: shapes/4-2\nmethod: recall\nrecall: {generator: [a, b], images: p}\n")
    with pytest.raises(InputError, match="names code to run"):
        load_recipe(str(recipe))


@pytest.mark.parametrize("installed", [True, False])
def test_a_recipe_may_name_what_an_installed_package_offers_as_a_generator(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what only lies in the working folder, though Python may look for modules there."""
    package, working = tmp_path / "site", tmp_path / "working"
    (package / "sketches-1.0.dist-info").mkdir(parents=True)
    (package / "sketches-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sketches\nVersion: 1.0\n"
    )
    (package / "sketches-1.0.dist-info" / "entry_points.txt").write_text(
        "[incseg.generators]\nsketch = sketches:make\n"
    )
    (package / "sketches.py").write_text("def make(name):\n    return [name]\n")
    working.mkdir()
    monkeypatch.chdir(working if installed else package)
    monkeypatch.syspath_prepend(str(package))
    recipe = tmp_path / "theirs.yaml"
    recipe.write_text("protocol: shapes/4-2\nmethod: recall\nrecall: {generator: sketch, images: p}\n")
    if installed:
        assert load_recipe(str(recipe)).settings["recall"]["generator"] == "sketch"
        assert list(open_generator("sketch").make("cat")) == ["cat"]
        with pytest.raises(InputError, match=r"'sketchy' cannot be found .*: write sketch, package\.module:function"):
            open_generator("sketchy")
    else:
        with pytest.raises(InputError, match=r"names code to run \(generator: sketch\)"):
            load_recipe(str(recipe))
        with pytest.raises(InputError, match="'sketch' cannot be found"):
            open_generator("sketch")


def test_a_recipe_elsewhere_is_not_taken_for_a_published_one(tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text("protocol: shapes/4-2\nmethod: recall\nrecall: {generator: 'a:b'}\n")
    with pytest.raises(InputError, match="is not a protocol"):
        load_recipe(str(tmp_path / "theirs"))


def test_a_run_folder_from_anyone_runs_nothing(
    trap: Path, solved_base: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = trap.parent / "theirs"
    shutil.copytree(solved_base, theirs)
    text = read_text(theirs / "config.yaml").replace("method: ft", "method: recall").partition("\n")[2]
    text = text.replace("settings: {}", f"settings: {{recall: {{generator: '{EVIL}:make', images: pictures}}}}")
    assert EVIL in text
    (theirs / "config.yaml").write_text(text)
    codes = {
        "eval": run("eval", theirs),
        "report": run("report", theirs, "--out", trap.parent / "report.html"),
        "split": run("data", "split", theirs / "config.yaml"),
        "extend": run("extend", theirs, "--data", tiny_folder, "--out", trap.parent / "more"),
        "resume": run("train", "folder/offline/overlapped", "--method", "ft", *quick(tiny_folder), "--out", theirs),
        "config as recipe": run("train", theirs / "config.yaml", "--out", trap.parent / "again"),
    }
    assert codes == {"eval": 0, "report": 0, "split": 0, "extend": 2, "resume": 2, "config as recipe": 2}
    said = capsys.readouterr().err
    assert "holds another run" in said
    assert "names code to run" in said


def test_python_m_imports_nothing_from_the_working_folder(trap: Path) -> None:
    shutil.copyfile(trap.parent / f"{EVIL}.py", trap.parent / "tyro.py")
    command = [sys.executable, "-m", "incseg", "--version"]
    source = str(Path(incseg.__file__).parents[1])
    subprocess.run(command, cwd=trap.parent, env={**os.environ, "PYTHONPATH": source}, check=True)


def test_pictures_of_predictions_stay_in_their_folder(tiny_model: Model, tmp_path: Path) -> None:
    names = ["../../outside", "/absolute", "below/inside"]
    image = (torch.zeros(3, 32, 32, dtype=torch.uint8), torch.zeros(32, 32, dtype=torch.uint8), 0)
    images = cast(ScoredImages, [image] * len(names))
    save_pictures(tiny_model.segmenter, names, images, tmp_path / "deep" / "er" / "pictures", "distinct")
    found = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(found) == 3 * len(names)
    assert {path.parent for path in found} == {tmp_path / "deep" / "er" / "pictures"}


@pytest.mark.parametrize("names", [["/etc/a/x.png", "/etc/b/x.png"], ["../a/x.png", "../b/x.png"], ["..", "."]])
def test_names_in_annotations_stay_names(names: list[str]) -> None:
    assert not any(set(name) & {"/", "\\"} for name in distinct_names(names))


class Malicious:
    """Touches a file when it is unpickled."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("save", ["torch", "pickle"])
def test_a_pickle_is_not_run_nor_comes_with_the_advice_to_do_so(
    save: str, trap: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder = trap.parent / "weights.pth", RunFolder(trap.parent / "run")
    content = {"step": 0, "model": Malicious(trap)}
    if save == "torch":
        torch.save(content, file)
    else:
        file.write_bytes(pickle.dumps(content))
    weights = [word if word != "none" else file for word in quick(tiny_folder)]
    assert run("train", "folder/2-2/overlapped", "--method", "ft", *weights, "--out", folder.path) == 2
    (trap.parent / "classes.txt").write_text("background\na\n")
    imported = ("--classes", trap.parent / "classes.txt", "--kind", "smp:unet", "--out", trap.parent / "imported")
    assert run("import", file, *imported) == 2
    assert run("predict", file, file, "--out", trap.parent / "predicted") == 2
    with pytest.raises(InputError, match="is damaged") as caught:
        Checkpoint.read(file)
    said = capsys.readouterr().err + str(caught.value)
    assert "weights_only" not in said
    assert "can still be loaded" not in said


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    for module in ("timm.models._hub", "segmentation_models_pytorch.encoders"):
        monkeypatch.setattr(f"{module}.hf_hub_download", refuse)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "changes",
    [
        {"encoder": "tu-hf-hub:someone/x"},
        {"encoder": "hf-hub:someone/x"},
        {"encoder": "hf_hub:someone/x"},
        {"encoder": "tu-local-dir:/tmp"},
        {"encoder": "tu-resnet18.hf-hub:someone/x"},
        {"encoder": "tu-../../x"},
        {"decoder_options": {"pretrained": True}},
        {"decoder_options": {"pretrained_cfg_overlay": {"hf_hub_id": "someone/x"}}},
        {"decoder_options": {"checkpoint_path": "/tmp/x.pth"}},
        {"decoder_options": {"encoder_weights": "imagenet"}},
        {"decoder_options": {"kwargs": {"pretrained": True}}},
    ],
    ids=str,
)
def test_a_model_file_reaches_neither_network_nor_other_files(
    changes: dict[str, Any], tiny_model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "theirs.safetensors"
    save_model(tiny_model.segmenter, tiny_model.classes, file)
    described = tiny_model.segmenter.architecture.model_dump(mode="json", exclude_none=True)
    description = {"head_sizes": [3, 2], "classes": list(tiny_model.classes), "architecture": {**described, **changes}}
    write_tensors(file, load_file(file), description)
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    assert run("predict", file, tmp_path, "--out", tmp_path / "out") == 2
    said = capsys.readouterr().err
    assert "the network was used" not in said
    assert "is not an encoder" in said or "has no option" in said


@pytest.mark.usefixtures("offline")
def test_a_folder_of_smp_reaches_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (tmp_path / "classes.txt").write_text("background\na\n")
    for encoder, options in (("tu-hf-hub:someone/x", {}), ("resnet18", {"pretrained": True})):
        config = {"_model_class": "Unet", "encoder_name": encoder, "encoder_weights": "imagenet", **options}
        (folder / "config.json").write_text(json.dumps(config))
        assert run("import", folder, "--classes", tmp_path / "classes.txt", "--out", tmp_path / "out") == 2
        said = capsys.readouterr().err
        assert "is not an encoder" in said or "has no option" in said


@pytest.mark.usefixtures("offline")
def test_encoders_of_both_libraries_are_built_without_the_network() -> None:
    for name in ("resnet18", "test_resnet", "tu-test_resnet", "test_resnet.r160_in1k"):
        assert Segmenter(Architecture(encoder=name), [2]).architecture.encoder == name
