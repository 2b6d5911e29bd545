"""Pictures of a class from a text-to-image diffusion model (an optional extra: ``incseg[generate]``)."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from incseg.errors import InputError
from incseg.seeding import seed_from


@dataclass(frozen=True)
class DiffusionPictures:
    """A generator of pictures: class name → endless pictures, each from a seed of its own."""

    pipeline: Any
    """A diffusers text-to-image pipeline."""
    prompt: str = "a photo of a {name}"

    def __call__(self, name: str) -> Iterator[Image.Image]:
        """The pictures of a class, always the same in the same order."""
        return self.starting_at(name, 0)

    def starting_at(self, name: str, first: int) -> Iterator[Image.Image]:
        """The same without those before a number: none is made in vain."""
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
