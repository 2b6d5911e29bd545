"""What is refused without importing PyTorch, which alone takes seconds; and in the same words as with it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from incseg.datasets import dataset_names
from incseg.errors import InputError
from incseg.methods import method_names, parse
from incseg.registry import METHODS, declared_names

SLOW = ("torch", "torchvision", "lightning", "matplotlib", "gradio", "timm", "huggingface_hub")
REFUSED = [
    "nothing", "train nowhere.yaml", "train shapes/4-2/overlapped --method mib+nope",
    "train voc/15-5/overlapped --data-root nowhere", "train nope/1-1/overlapped", "predict nowhere x.jpg",
    "predict . x.jpg", "export nowhere", "serve nowhere", "extend nowhere --data d --out o", "report nowhere",
    "eval nowhere", "eval nowhere --data d", "reproduce nope", "merge a b --out c", "forget a b --out c",
    "statistics a --data b", "compare nowhere.yaml --methods mib", "compare demo --methods mib nope", "compare demo",
    "import nowhere --classes c --out d", "data check nope", "data check folder --data-root nowhere",
    "data split voc/15-5/overlapped --data-root nowhere", "bench nope",
]  # fmt: skip
PROGRAM = f"""
import json, sys
from incseg import cli
codes = {{line: cli.main(line.split()) for line in {REFUSED!r}}}
print(json.dumps([codes, [name for name in {SLOW!r} if name in sys.modules]]))
"""


def test_refusals_import_nothing_that_is_slow(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path, check=True)
    codes, imported = json.loads(done.stdout.splitlines()[-1])
    assert set(codes.values()) == {2}, codes
    assert imported == []
    assert "Traceback" not in done.stderr


def test_names_read_from_the_text_of_modules_are_those_that_they_register() -> None:
    assert declared_names("incseg.methods", "register_method") == method_names()
    assert declared_names("incseg.datasets", "dataset") == dataset_names()


def test_a_method_is_refused_in_the_same_words_before_and_after_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as after:
        parse("mib+uch")
    monkeypatch.setattr(METHODS, "_is_loaded", False)
    monkeypatch.setattr("incseg.registry.entry_points", lambda **_: ())
    monkeypatch.setattr("incseg.registry.PLUGINS", [])
    with pytest.raises(InputError) as before:
        METHODS.refuse_unknown("uch", "mib+uch")
    assert str(before.value) == str(after.value)
    METHODS.refuse_unknown("ilt", spellings=("ilt+",))
    monkeypatch.setattr("incseg.registry.PLUGINS", [Path("mine.py")])
    METHODS.refuse_unknown("uch")  # it may be in that file
