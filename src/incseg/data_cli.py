"""``incseg data``: one typed function per command; nothing else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from incseg.files import replacing

OptionalPath = Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")]


def split(
    protocol: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PROTOCOL")],
    data_root: OptionalPath = None,
    splits: OptionalPath = None,
    out: OptionalPath = None,
    settings: tyro.conf.Suppress[dict[str, Any] | None] = None,
) -> None:
    """Show which images each step of a protocol learns from.

    Settings of the data are written as for 'incseg train', for example --data.class-order b.

    Examples: incseg data split voc/15-1/disjoint --data-root DATA/VOC2012 --out 15-1.json;
    incseg data split ade20k/100-50-b/disjoint --data-root DATA --splits MiB/data/ade/100-50b

    Args:
        protocol: a protocol or a recipe, as for 'incseg train'.
        data_root: folder of the dataset.
        splits: folder of published lists (train-0.npy or train-0.txt, …) to use instead of the protocol's rule.
        out: a .json file to write the images of every step to, by name and by index.
        settings: the dotted settings, which main() reads.
    """
    from incseg.config import load_recipe, merge
    from incseg.engine.build import build_curriculum

    data = {name: value for name, value in (("root", data_root), ("splits", splits)) if value is not None}
    config = load_recipe(protocol, merge(settings or {}, {"data": data}))
    described = build_curriculum(config, Console(stderr=True)).describe()
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for step in described["steps"]:
        console.print(f"step {step['step']}: {len(step['images'])} images, classes {', '.join(step['classes'])}")
    if out is not None:
        with replacing(out) as temporary:
            temporary.write_text(json.dumps(described, indent=1, ensure_ascii=False), encoding="utf-8")


COMMANDS: dict[str, Callable[..., None]] = {"split": split}
