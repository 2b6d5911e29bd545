"""Names and what they stand for: built in, installed, in a single file; and what is said when one is broken."""

import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from incseg import methods, registry
from incseg.cli.arguments import read_arguments
from incseg.cli.train import train
from incseg.datasets.source import DATASETS
from incseg.errors import InputError
from incseg.methods.parsing import METHODS
from incseg.registry import PLUGINS, Registry, load_plugin

METHOD = """
from incseg.methods import CrossEntropy, register_method

@register_method({name!r}, "for this test", paper="–")
def anything({arguments}):
    return [CrossEntropy()]
"""


@dataclass(frozen=True)
class Fruit:
    name: str


@pytest.fixture(autouse=True)
def _forget_plugins() -> Iterator[None]:
    """What a test registers or imports is gone after it."""
    assert METHODS.names()  # a built-in that a test imports first would not be registered again after it
    assert DATASETS.names()
    plugins = list(PLUGINS)
    before = copy.copy(METHODS.__dict__), copy.copy(DATASETS.__dict__)
    METHODS._items, METHODS._origins = dict(METHODS._items), dict(METHODS._origins)
    DATASETS._items, DATASETS._origins = dict(DATASETS._items), dict(DATASETS._origins)
    path, modules = list(sys.path), set(sys.modules)
    yield
    METHODS.__dict__.update(before[0])
    DATASETS.__dict__.update(before[1])
    PLUGINS[:] = plugins
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if not name.startswith(("incseg", "torch")):
            del sys.modules[name]


def fruits() -> Registry[Fruit]:
    """A registry whose package has no items of its own."""
    return Registry[Fruit]("fruit", "incseg.config", advice=", or none")


def one_apple() -> None: ...


def another_apple() -> None: ...


def test_a_name_is_found_and_a_misspelt_one_gets_a_hint() -> None:
    basket = fruits()
    basket.add(Fruit("pear"), another_apple)
    basket.add(Fruit("apple"), one_apple)
    assert basket.names() == ["apple", "pear"]
    assert basket.find("pear") == Fruit("pear")
    with pytest.raises(InputError) as caught:
        basket.find("aple", "aple+pear")
    assert str(caught.value) == (
        "'aple' in 'aple+pear' is not a fruit: choose from apple, pear, or none. Did you mean 'apple'? "
        "If a file of yours defines this fruit, add --plugin FILE."
    )


def test_a_name_registered_twice_names_both_places() -> None:
    basket = fruits()
    basket.add(Fruit("apple"), one_apple)
    basket.add(Fruit("apple"), one_apple)  # the same definition again, as when a module is reloaded
    with pytest.raises(InputError, match=r"two fruits are called 'apple'") as caught:
        basket.add(Fruit("apple"), another_apple)
    for definition in (one_apple, another_apple):
        assert f"{__file__} (line {definition.__code__.co_firstlineno})" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plugin_adds_methods_with_settings(tmp_path: Path) -> None:
    file = tmp_path / "my_method.py"
    file.write_text(METHOD.format(name="mine", arguments="strength: float = 1.0"))
    load_plugin(file)
    load_plugin(file)  # twice is once
    assert file in PLUGINS
    assert len(set(PLUGINS)) == len(PLUGINS)
    assert "mine" in methods.method_names()
    assert methods.parse("mine+ewf", {"mine": {"strength": 2}}).name == "mine+ewf"


def test_settings_of_a_plugin_are_read_whatever_their_names(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    file = tmp_path / "my_underscores.py"
    file.write_text(METHOD.format(name="my_method", arguments="some_weight: float = 1.0, copy: bool = True"))
    load_plugin(file)
    for name in ("my_method.some_weight", "my-method.some-weight"):
        words = ["shapes/4-2", "--method", "my_method", f"--{name}", "3", "--my_method.copy", "false"]
        given = read_arguments(train, words, "incseg train")
        assert given["settings"] == {"my_method": {"some_weight": 3.0, "copy": False}}
    assert not [warning for warning in recwarn if "shadows" in str(warning.message)]


def test_a_plugin_that_was_mended_can_be_loaded(tmp_path: Path) -> None:
    file = tmp_path / "mended.py"
    file.write_text("1 / 0\n")
    with pytest.raises(InputError, match=r"mended.py cannot be loaded: ZeroDivisionError: division by zero\.$"):
        load_plugin(file)
    file.write_text(METHOD.format(name="mended", arguments=""))
    load_plugin(file)
    assert "mended" in methods.method_names()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.py", None, "is not a file: give the path of a Python file"),
        ("notes.txt", "x = 1", "is not a Python file: its name must be like my_file.py"),
        ("a.b.py", "x = 1", "is not a Python file: its name must be like my_file.py"),
        ("prose.py", "please learn from this", "cannot be loaded: SyntaxError"),
        ("quits.py", "raise SystemExit(3)", "cannot be loaded: SystemExit: 3"),
        ("__main__.py", "x = 1", "has the name of another Python module, '__main__': rename it"),
        ("json.py", "x = 1", "has the name of another Python module, 'json': rename it"),
        ("takes.py", METHOD.format(name="mib", arguments=""), "cannot be loaded: two methods are called 'mib': one in"),
        (
            "path.py",
            'from incseg.datasets import dataset\n\n@dataset("a/b", "mine")\ndef open_it(root): ...\n',
            "a dataset cannot be called 'a/b'",
        ),
        ("sum.py", METHOD.format(name="a+b", arguments=""), "a method cannot be called 'a+b'"),
        ("section.py", METHOD.format(name="data", arguments=""), "a method cannot be called 'data'"),
        (
            "hidden.py",
            METHOD.format(name="hidden", arguments="_x: int = 1"),
            "'_x' of the method 'hidden' may not begin",
        ),
        ("bare.py", METHOD.format(name="bare", arguments="weight"), "'weight' of the method 'bare' needs a default"),
    ],
)
def test_what_is_wrong_with_a_plugin_is_said_in_one_sentence(
    name: str, text: str | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError) as caught:
        load_plugin(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plugin_cannot_take_the_name_of_a_dataset_that_is_not_imported_yet(tmp_path: Path) -> None:
    file = tmp_path / "own_voc.py"
    file.write_text('from incseg.datasets import dataset\n\n@dataset("voc", "mine")\ndef open_it(root): ...\n')
    with pytest.raises(
        InputError, match=r"own_voc.py cannot be loaded: two datasets are called 'voc'.*voc.py.*own_voc"
    ):
        load_plugin(file)


def test_a_broken_entry_point_is_named_and_the_others_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_fruit.py").write_text("raise ValueError('rotten\\nto the core')\n")
    (tmp_path / "good_fruit.py").write_text("import fruit_basket\nfruit_basket.add()\n")
    basket = fruits()
    module = type(sys)("fruit_basket")
    module.add = lambda: basket.add(Fruit("plum"), one_apple)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fruit_basket", module)
    monkeypatch.syspath_prepend(tmp_path)
    points = [EntryPoint("kiwi", "broken_fruit", "incseg.config"), EntryPoint("plum", "good_fruit", "incseg.config")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "incseg.config" else [])
    assert basket.names() == ["plum"]
    reason = "the plugin 'kiwi' (broken_fruit) cannot be loaded: ValueError: rotten to the core"
    assert capsys.readouterr().err == f"{reason}; it is left out.\n"
    with pytest.raises(InputError) as caught:
        basket.find("kiwi")
    assert str(caught.value) == f"the fruit 'kiwi' is not available: {reason}."
    with pytest.raises(InputError, match=r"'fig' is not a fruit: .* add --plugin FILE. Note that the plugin 'kiwi'"):
        basket.find("fig")
