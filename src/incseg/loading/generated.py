"""Pictures to replay, one folder per class; a generator such as a diffusion model can fill the folders."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from incseg.errors import InputError, closest
from incseg.files import replacing, usable_folder
from incseg.images import IMAGE_SUFFIXES, check_image, read_image
from incseg.registry import installed_generators, installed_module, module_in_file
from incseg.seeding import seed_from

DIFFUSERS = "diffusers:"


@dataclass(frozen=True)
class Generator:
    """A user's function that makes pictures; whatever it raises becomes one sentence."""

    name: str
    make: Callable[[str], Iterable[Any]]
    """Class name → an iterable of pictures (PIL, array or tensor), always the same in the same order.

    If it has a method ``starting_at(class name, number)``, that gives the pictures from a number on.
    """

    def pictures(self, of: str, first: int, end: int) -> Iterator[Image.Image]:
        """The pictures ``first`` to ``end - 1`` of a class, or fewer if the generator ends before."""
        try:
            if hasattr(self.make, "starting_at"):
                made = itertools.islice(self.make.starting_at(of, first), end - first)
            else:
                made = itertools.islice(self.make(of), first, end)
            for picture in made:
                yield as_image(picture)
        except Exception as error:  # the user's code may raise anything
            raise InputError(
                f"the generator '{self.name}' cannot make a picture of '{of}' ({_on_one_line(error)}); it must give "
                "RGB images for a class name."
            ) from error


@dataclass(frozen=True)
class PictureFolder:
    """A folder with one subfolder of pictures per class name."""

    root: Path

    def folder(self, name: str) -> Path:
        """The folder of a class: of its name, which may come with a model from anywhere, so no path is made of it."""
        if name in ("", ".", "..") or re.search(r"[/\\\x00-\x1f]", name):
            raise InputError(
                f"the class {name!r} cannot have a folder of pictures in {self.root}: rename it, without / and \\."
            )
        return self.root / name

    def files(self, name: str, most: int) -> list[Path]:
        """At most ``most`` pictures of a class, in the order of their names."""
        folder = self.folder(name)
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return [path for path in found if path.suffix.lower() in IMAGE_SUFFIXES][:most]

    def check(self, names: Sequence[str], most: int) -> None:
        """Refuse a folder in which a class has no picture, or one of the pictures to be used is incomplete."""
        if not self.root.is_dir():
            raise InputError(f"{self.root} is not a folder: it must hold a folder of pictures for each old class.")
        for name in names:
            files = self.files(name, most)
            if not files:
                there = sorted(path.name for path in self.root.iterdir() if path.is_dir())
                raise InputError(
                    f"{self.folder(name)} holds no pictures: every class that will be old needs a folder of its name "
                    f"with pictures to replay.{closest(name, there)}"
                )
            for file in files:
                check_image(file)

    def fill(self, name: str, number: int, generator: Generator) -> None:
        """Let a generator make pictures of a class until there are ``number``; those already there are kept."""
        there = len(self.files(name, most=number))
        if there == number:
            return
        folder = self.folder(name)
        usable_folder(folder)
        try:
            # The first new picture continues the generator's sequence, so an interruption changes nothing.
            for index, picture in enumerate(generator.pictures(name, there, number), there):
                with replacing(folder / f"{index:05d}.png") as temporary:
                    picture.save(temporary, format="PNG")
        except OSError as error:
            raise InputError(f"pictures cannot be written to {folder}: {error}.") from error
        if not self.files(name, most=1):
            raise InputError(f"the generator '{generator.name}' made no picture of '{name}'.")


def as_image(picture: Any) -> Image.Image:
    """An RGB image from a PIL image, an (H, W, 3) array or a (3, H, W) tensor; of uint8, or floats in [0, 1]."""
    if isinstance(picture, Image.Image):
        return Image.fromarray(read_image(picture))
    array = picture.movedim(0, -1).cpu().numpy() if isinstance(picture, Tensor) else np.asarray(picture)
    if array.ndim != 3 or array.shape[-1] != 3:
        raise ValueError(f"a {type(picture).__name__} of shape {array.shape} is not an RGB image")
    if array.dtype != np.uint8:
        array = (array.clip(0, 1) * 255).round().astype(np.uint8)
    return Image.fromarray(array)


def open_generator(name: str) -> Generator:
    """The name that an installed package offers a generator under, ``package.module:function``, ``FILE.py:function`` or
    ``diffusers:MODEL``; a function is one of a class name that gives pictures."""
    if name.startswith(DIFFUSERS):
        return Generator(name, open_diffusion(name.removeprefix(DIFFUSERS)))
    offered = installed_generators()
    try:
        found = _function(offered[name].value if name in offered else name)
    except (Exception, SystemExit) as error:  # importing runs the user's code, which may raise anything
        names = f"{', '.join(sorted(offered))}, " if offered else ""
        raise InputError(
            f"the generator '{name}' cannot be found ({_on_one_line(error)}): write {names}package.module:function, "
            f"FILE.py:function or {DIFFUSERS}MODEL."
        ) from error
    if not callable(found):
        raise InputError(f"the generator '{name}' is not a function of a class name.")
    return Generator(name, found)


def _function(name: str) -> Any:
    place, _, function = name.rpartition(":")
    module = module_in_file(Path(place)) if place.endswith(".py") else installed_module(place)
    return getattr(module, function)


def _on_one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


@dataclass(frozen=True)
class DiffusionPictures:
    """A generator that never ends; each picture has a seed of its own."""

    pipeline: Any
    """A diffusers text-to-image pipeline."""
    prompt: str = "a photo of a {name}"

    def __call__(self, name: str) -> Iterator[Image.Image]:
        """The pictures of a class, always the same in the same order."""
        return self.starting_at(name, 0)

    def starting_at(self, name: str, first: int) -> Iterator[Image.Image]:
        """The pictures from a number on; those before it are not made."""
        for index in itertools.count(first):
            generator = torch.Generator().manual_seed(seed_from("diffusion", name, index))
            yield self.pipeline(prompt=self.prompt.format(name=name), generator=generator).images[0]


def open_diffusion(model: str) -> DiffusionPictures:
    """A model by its name on the hub or its folder, on the GPU if there is one."""
    try:
        from diffusers import AutoPipelineForText2Image  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise InputError("pictures from a diffusion model need: pip install 'incseg[generate]'.") from None
    try:
        pipeline = AutoPipelineForText2Image.from_pretrained(model)  # type: ignore[no-untyped-call,unused-ignore]
    except (OSError, ValueError) as error:
        raise InputError(f"the diffusion model '{model}' cannot be opened: {' '.join(str(error).split())}") from None
    pipeline.set_progress_bar_config(disable=True)
    return DiffusionPictures(pipeline.to("cuda" if torch.cuda.is_available() else "cpu"))
