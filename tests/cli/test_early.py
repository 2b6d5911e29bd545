"""What is refused without importing PyTorch, which alone takes seconds; and in the same words as with it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from incseg.config import load_recipe, to_yaml
from incseg.model_header import STATISTICS
from incseg.models.tensor_file import write_tensors
from incseg.run_folder import RunFolder, write_json

SLOW = ("torch", "torchvision", "lightning", "matplotlib", "gradio", "timm", "huggingface_hub")
REFUSED = [
    "nothing", "train nowhere.yaml", "train shapes/4-2/overlapped --method mib+nope",
    "train voc/15-5/overlapped --data-root nowhere", "train nope/1-1/overlapped", "predict nowhere x.jpg",
    "predict . x.jpg", "export nowhere", "serve nowhere", "extend nowhere --data d --out o", "report nowhere",
    "eval nowhere", "eval nowhere --data d", "reproduce nope", "merge a b --out c", "forget a b --out c",
    "statistics a --data b", "compare nowhere.yaml --methods mib", "compare demo --methods mib nope", "compare demo",
    "import nowhere --classes c --out d", "data check nope", "data check folder --data-root nowhere",
    "data split voc/15-5/overlapped --data-root nowhere", "bench nope",
    "bench step --method nope", "bench step --method mib+plop", "bench step --recipe nowhere.yaml",
    "train shapes/4-9/overlapped", "train shapes/4-2/overlapped --method mib+mib", "train folder/2-1 --data-root data",
    "train shapes/4-2/overlapped --optim.batch-size 1", "train shapes/4-2/overlapped --out file",
    "train shapes/4-2/overlapped --out run", "train shapes/4-2/overlapped --first-step data",
    "train shapes/4-2/overlapped --model.weights nowhere.pth", "train shapes/4-2/overlapped --splits nowhere",
    "train shapes/4-2/overlapped --method ssul --data.saliency nowhere",
    "extend run --data data --out o --data.saliency nowhere",
    "train shapes/4-2/overlapped --data.class-order nope", "train shapes/4-2/overlapped --ucd.temperture 3",
    "train shapes/4-2/overlapped --method mib+plop", "train shapes/4-2/overlapped --method joint+mib",
    "train shapes/4-2/overlapped --ucd.temperature -1", "train shapes/4-2/overlapped --mib.kd-weight abc",
    "train shapes/4-2/overlapped --method ft --ucd.temperature 1", "train shapes/4-2/overlapped --model.head sigmoid",
    "train shapes/4-2/overlapped --model.encoder resnet19", "train shapes/4-2/overlapped --model.decoder unet9",
    "compare shapes/4-2/overlapped --methods ft mib+plop", "extend run --data data --out o --method joint",
    "extend run --data data --out o --method ewc", "extend run --data data --out o --method emseg",
    "extend run --data data --out o --method mib+plop", "extend run --data data --out o --ucd.temperature x",
    "train shapes/4-2/overlapped --nope.x 3", "train folder/offline --data-root file", "demo --out file",
    "eval run --data nowhere", "eval run --data run", "eval run --step 0", "eval run --out data",
    "eval run --data-root nowhere", "eval run --optim.epochs 3", "report run --out data", "report data",
    "reproduce voc-main --rows nope", "reproduce voc-main --columns nope", "reproduce voc-main --seeds 0",
    "extend run --data nowhere --out o", "extend run --data run --out o", "extend run --data data --out file",
    "extend run --data data --out o --step 4", "extend run --data data --out o --validation nowhere",
    "extend run --data data --out o --replay nowhere", "extend run --data data --out o --memory 3",
    "extend run --data data --out o --model.encoder resnet50", "extend run --data data --out o --min-agreement 300",
    "extend run --data data --out o --mib.kd-weigth 3", "extend run --data data --out o --method ucd+ucd",
    "extend file --data data --out o", "extend run --data known --out o",
    "memory data --keep 3", "memory run --keep 0", "memory run --keep 3 --out data",
    "memory run --keep 3 --out o --data-root nowhere",
    "statistics run --data nowhere", "statistics run --data data", "statistics run --data known --device nope",
    "statistics gathered --data known", "merge run run --out run", "merge file run --out o",
    "forget run nope --out o", "forget run car --out run", "forget run car --out o --learnt-in data",
    "import nowhere --classes data/classes.txt --out o", "import file --classes data/classes.txt --out file",
    "import file --classes data/classes.txt --out o", "import file --classes data/classes.txt --out o --kind smp:unet9",
    "predict run", "predict run nowhere.jpg", "predict run data --tile 100", "predict run data --batch-size 0",
    "predict run data --longest-side 2", "predict run data --out file", "predict run data --device nope",
    "predict file data", "export run --out model.xyz", "export run --out data", "export file",
    "export run --out a.onnx --quantise nowhere", "export run --out a.pt2 --quantise data",
    "serve run --device nope", "serve run --port 99999", "serve file", "data check folder --data-root run",
    "data check folder --data-root data --out run", "data convert nowhere --out o", "data split shapes/9-9",
]  # fmt: skip
OUTCOMES = """
def outcomes():
    import torch
    from incseg.config import Network
    from incseg.methods import describe_methods, parse
    from incseg.models.building import check_network

    def outcome(find):
        try:
            return repr(find())
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    found = {"torch": getattr(torch, "__file__", None)}
    entries = describe_methods()
    for one in entries:
        found[one.name] = str(one.section.model_json_schema())
        for other in entries:
            found[f"{one.name}+{other.name}"] = outcome(lambda: parse(f"{one.name}+{other.name}"))
    for network in (
        {}, {"encoder": "resnet19"}, {"encoder": "tu-convnext_tin"}, {"encoder": "hf-hub:a/b"}, {"decoder": "unet9"},
        {"decoder": "unet", "decoder_options": {"decoder_channel": 3}}, {"output_stride": 9},
        {"decoder": "deeplabv3-mib", "decoder_options": {"x": 3}}, {"decoder": "fpn", "encoder": "convnext_tiny"},
    ):
        found[str(network)] = outcome(lambda: check_network(Network(**network)))
    return found
"""
FOUND = """
import json, sys
from incseg.without_torch import without_torch

def found_after(modules):  # packages of others in the copy that imports modules of ours, and whether each is real
    for module in modules:
        __import__(module)
    names = ("timm", "segmentation_models_pytorch", "huggingface_hub")
    return {name: getattr(sys.modules[name], "__file__", None) is not None for name in names if name in sys.modules}

print(json.dumps(without_torch(lambda: found_after(sys.argv[1:]))))
"""
PROGRAM = f"""
import json, sys
from incseg import cli
codes = {{line: (cli.main(line.split()), "torch" in sys.modules) for line in {REFUSED!r}}}
print(json.dumps([codes, [name for name in {SLOW!r} if name in sys.modules]]))
"""


def write_folder(folder: Path, *names: str) -> None:
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
        for name in "ab":
            Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / kind / f"{name}.png")
    (folder / "classes.txt").write_text("\n".join(["background", *names]))
    (folder / "val.txt").write_text("b")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model's header without weights, two folders of images, and a file of nothing."""
    write_folder(tmp_path / "data", "ring")
    write_folder(tmp_path / "known", "car")
    (tmp_path / "file").touch()
    for run in (RunFolder(tmp_path / "run"), RunFolder(tmp_path / "gathered")):
        write_tensors(run.model(0), {}, {"classes": ["background", "car"]})
        write_json(run.scores(0), {})
        run.config.write_text(to_yaml(load_recipe("shapes/4-4/overlapped")))
    write_tensors(RunFolder(tmp_path / "gathered").memory(0), {f"{STATISTICS}gram": torch.zeros(1)})
    return tmp_path


def test_refusals_import_nothing_that_is_slow(place: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=place, check=True)
    codes, imported = json.loads(done.stdout.splitlines()[-1])
    assert {line: found for line, found in codes.items() if found != [2, False]} == {}, done.stderr
    assert imported == []
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (["incseg.engine.method_check", "incseg.engine.first_step", "incseg.study.comparison_plan"], {}),
        (["incseg.models.building"], {"timm": True, "segmentation_models_pytorch": True, "huggingface_hub": False}),
    ],
    ids=["methods", "networks"],
)
def test_what_refuses_a_name_imports_only_the_packages_that_know_it(
    modules: list[str], expected: dict[str, bool], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FOUND, *modules], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert json.loads(done.stdout) == expected


def test_methods_and_networks_are_refused_in_the_same_words_without_pytorch(place: Path) -> None:
    program = f"{OUTCOMES}import json; from incseg.without_torch import without_torch; "
    program += "print(json.dumps(without_torch(outcomes)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=place, check=True)
    here: dict[str, Any] = {}
    exec(OUTCOMES, here)
    found = here["outcomes"]()
    assert json.loads(done.stdout) == {**found, "torch": None}
    refused = [sentence for sentence in found.values() if sentence.startswith("InputError")]
    assert 100 < len(refused) < len(found) - 100
