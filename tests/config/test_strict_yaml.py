from pathlib import Path

import pytest

from incseg.config import load_recipe
from incseg.errors import InputError

START = "protocol: shapes/4-2/overlapped\nmethod: mib\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (START + "seed: 1\nseed: 2\n", "'seed' is given twice"),
        (START + "optim: {epochs: 1, epochs: 2}\n", "'epochs' is given twice"),
        (START + "optim: " + "[" * 50_000, "nested too deeply"),
        (START + "optim: " + "{a: " * 3000 + "1" + "}" * 3000, "nested too deeply"),
        (START + "seed: " + "9" * 5000, "Exceeds the limit"),
        (START + "seed: " + "9" * 400, r"seed cannot be 9+ …: at most 9223372036854775807 is accepted"),
        (
            START + "optim: {epochs: " + "9" * 400 + "}",
            r"optim\.epochs cannot be 9+ …: .* less than or equal to 1000000",
        ),
        (START + "optim: {epochs: true}", r"optim\.epochs cannot be True: it takes a number"),
        (START + "optim: {learning_rate: .inf}", "finite"),
        (START + "optim: {learning_rate: 1e999}", "learning_rate cannot be"),
        (START + "seed: 2024-13-45", "month must be in"),
        (START + "a: &a [1, 1]\nb: [*a, *a]\n", "aliases are not read"),
        (START + "seed: !!python/object/apply:os.getpid []\n", "could not determine a constructor"),
        (START + "---\n" + START, "expected a single document"),
        (START + "# " + "x" * 2_000_000, "at most 1048576"),
        (START + "preset: 3", "preset cannot be 3"),
        (START + "preset: [[a]]", "preset cannot be"),
        (START.encode("utf-16"), "not UTF-8 text"),
        (START.encode("utf-16-le"), "special characters are not allowed"),
        ((START + "# Größe").encode("latin-1"), "not UTF-8 text"),
        (bytes(range(256)), "not UTF-8 text"),
        ("", "must hold settings by name"),
        ("- a", "must hold settings by name"),
        ("1: 2", "must hold settings by name"),
    ],
    ids=lambda value: str(value)[-40:] if isinstance(value, str) else "bytes",
)
def test_a_recipe_that_cannot_be_used_is_one_sentence(content: str | bytes, message: str, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as caught:
        load_recipe(str(recipe))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(("mark", "line"), [(b"", b"\n"), (b"\xef\xbb\xbf", b"\r\n")])
def test_marks_and_line_ends_of_other_systems_are_read(mark: bytes, line: bytes, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_bytes(mark + (START + "seed: 3\n").encode().replace(b"\n", line))
    assert load_recipe(str(recipe)).seed == 3
