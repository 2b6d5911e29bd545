import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from incseg.errors import InputError
from incseg.images import read_image
from incseg.loading.generated import (
    DiffusionPictures,
    Generator,
    PictureFolder,
    as_image,
    open_diffusion,
    open_generator,
)


def test_a_picture_may_come_as_image_array_or_tensor() -> None:
    array = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    expected = Image.fromarray(array).tobytes()
    tensor = torch.from_numpy(array).movedim(-1, 0)
    for picture in (Image.fromarray(array), array, tensor, tensor.float() / 255, array / 255):
        assert as_image(picture).tobytes() == expected
    with pytest.raises(ValueError, match=r"shape \(4, 5\)"):
        as_image(array[..., 0])


def counted(made: list[int]) -> Generator:
    def make(_: str) -> Iterator[np.ndarray[Any, Any]]:
        for shade in range(100):
            made.append(shade)
            yield np.full((2, 2, 3), shade, np.uint8)

    return Generator("counted", make)


def test_a_folder_is_filled_up_as_if_it_had_never_been_interrupted(tmp_path: Path) -> None:
    folder = PictureFolder(tmp_path)
    folder.fill("cat", 2, counted([]))
    folder.fill("cat", 5, counted([]))
    made: list[int] = []
    folder.fill("cat", 5, counted(made))
    assert made == [], "nothing is missing"
    files = folder.files("cat", most=10)
    assert [int(read_image(file)[0, 0, 0]) for file in files] == [0, 1, 2, 3, 4]
    assert folder.files("cat", most=3) == files[:3]
    with pytest.raises(InputError, match="made no picture of 'dog'"):
        folder.fill("dog", 1, Generator("none", lambda _: []))


def broken(name: str) -> Iterator[None]:
    yield None
    raise RuntimeError(name)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: [], "TypeError: .* positional argument"),
        (lambda _: None, "TypeError: 'NoneType' object is not"),
        (lambda _: [None], "ValueError: a NoneType of shape"),
        (lambda name: {}[name], "KeyError: 'cat'"),
        (lambda name: itertools.islice(broken(name), 1, None), "RuntimeError: cat"),
    ],
)
def test_whatever_a_generator_does_wrong_is_a_sentence(make: Any, error: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"the generator 'a\.b:c' cannot make a picture of 'cat' \({error}") as caught:
        PictureFolder(tmp_path).fill("cat", 2, Generator("a.b:c", make))
    assert "\n" not in str(caught.value)


def test_every_picture_that_may_be_used_must_be_complete(tmp_path: Path) -> None:
    folder = PictureFolder(tmp_path)
    folder.fill("cat", 3, counted([]))
    folder.check(["cat"], most=3)
    (tmp_path / "cat" / "00002.png").write_text("not found")
    folder.check(["cat"], most=2)
    with pytest.raises(InputError, match=r"cat/00002\.png cannot be read"):
        folder.check(["cat"], most=3)


def test_a_generator_may_lie_in_a_file_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_generator.py").write_text("def grey(name):\n    return [name]\n")
    monkeypatch.chdir(tmp_path)
    assert list(open_generator("my_generator.py:grey").make("cat")) == ["cat"]
    assert list(open_generator(f"{tmp_path}/my_generator.py:grey").make("cat")) == ["cat"]
    (tmp_path / "my_broken_generator.py").write_text("def grey(name:\n")
    with pytest.raises(InputError, match=r"'my_broken_generator\.py:grey' cannot be found \(SyntaxError: "):
        open_generator("my_broken_generator.py:grey")
    with pytest.raises(InputError, match=r"'nothing\.py:grey' cannot be found \(FileNotFoundError: "):
        open_generator("nothing.py:grey")


@pytest.mark.parametrize("place", ["", "."])
def test_no_module_is_taken_from_the_working_folder(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lying_about.py").write_text("from pathlib import Path\nPath('ran').touch()\ndef grey(name): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(place)  # as 'python -m' does
    with pytest.raises(InputError, match=r"'lying_about:grey' cannot be found \(ModuleNotFoundError: "):
        open_generator("lying_about:grey")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["../../x", "..", ".", "", "/etc/x", "a/b", "a\\b", "a\nb", "a\0b"])
def test_the_name_of_a_class_does_not_become_a_path(name: str, tmp_path: Path) -> None:
    pictures = PictureFolder(tmp_path / "deep" / "pictures")
    for use in (lambda: pictures.files(name, 1), lambda: pictures.fill(name, 1, counted([]))):
        with pytest.raises(InputError, match="cannot have a folder of pictures"):
            use()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["no_such_module:f", "nonsense", "incseg.datasets.shapes:nothing", "diffusers:no/such/model"]
)
def test_what_cannot_be_found_is_said_in_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match=r"cannot be found|cannot be opened|pip install 'incseg\[generate\]'"):
        open_generator(name)


def test_a_diffusion_model_repeats_its_pictures_and_each_has_its_own_seed() -> None:
    asked: list[tuple[str, int]] = []

    def pipeline(prompt: str, generator: torch.Generator) -> SimpleNamespace:
        asked.append((prompt, generator.initial_seed()))
        return SimpleNamespace(images=[Image.new("RGB", (4, 4))])

    for _ in range(2):
        pictures = DiffusionPictures(pipeline)("potted plant")
        assert [next(pictures).size, next(pictures).size] == [(4, 4), (4, 4)]
    assert asked[:2] == asked[2:]
    assert asked[0][0] == "a photo of a potted plant"
    assert asked[0][1] != asked[1][1]
    later = Generator("diffusers:any", DiffusionPictures(pipeline)).pictures("potted plant", 1, 2)
    assert len(list(later)) == 1
    assert asked[4:] == asked[1:2], "the pictures before are not made again"


def test_without_the_extra_a_diffusion_model_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "diffusers", None)
    with pytest.raises(InputError, match=r"pip install 'incseg\[generate\]'"):
        open_diffusion("any")
