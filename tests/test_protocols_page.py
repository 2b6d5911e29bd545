"""Every command of docs/protocols.md is executed, on small trees of the right shape."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from incseg import cli
from incseg.config import published_images
from incseg.datasets.cityscapes import LABEL_IDS
from samples import write_ade20k, write_cityscapes

PAGE = (Path(__file__).parents[1] / "docs" / "protocols.md").read_text()
CHEAP = ["--optim.epochs", "1", "--optim.batch-size", "2", "--data.crop-size", "32", "--data.workers", "0",
         "--engine.accelerator", "cpu", "--model.encoder", "test_resnet", "--model.weights", "none"]  # fmt: skip


def commands() -> list[list[str]]:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line]


def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, voc_tiny: Path) -> None:
    monkeypatch.chdir(tmp_path)
    everything = {f"ADE_{i}": list(range(151)) for i in range(4)}
    write_ade20k(tmp_path / "ADE", everything, everything)
    streets = {f"{city}_0_{i}": list(LABEL_IDS.values()) for city in ("ulm", "zurich") for i in range(4)}
    val = {name.replace("zurich", "munster").replace("ulm", "lindau"): ids for name, ids in streets.items()}
    write_cityscapes(tmp_path / "CITYSCAPES", streets, val)
    lists = tmp_path / "MiB/data/ade/100-50"
    lists.mkdir(parents=True)
    for step in (0, 1):
        np.save(lists / f"train-{step}.npy", np.arange(4))
    (tmp_path / "DATA").symlink_to(voc_tiny)
    executed = []
    for words in commands():
        assert words[0] == "incseg"
        if words[1:3] == ["data", "prepare"]:  # tests/prepare has a web of its own for that
            continue
        assert cli.main(words[1:] + (CHEAP if words[1] == "train" else [])) == 0, shlex.join(words)
        executed.append(words[1])
    assert executed.count("train") == 4
    assert executed.count("data") == 9


def test_the_defaults_are_those_of_the_table() -> None:
    """What the page calls our default is what the recipes say."""
    from incseg.config import load_recipe

    rows = {row.split("|")[1].strip(): [cell.strip(" *") for cell in row.split("|")[2:6]] for row in PAGE.splitlines()
            if row.startswith(("| UCD and PLOP on", "| UCD on Cityscapes"))}  # fmt: skip
    for title, recipe in (("UCD and PLOP on VOC", "voc/15-5"), ("UCD and PLOP on ADE20K", "ade20k/100-50"),
                          ("UCD on Cityscapes", "cityscapes/13-6")):  # fmt: skip
        data = load_recipe(recipe).data
        ours = [data.void, data.scored_void, data.future, data.background]
        assert [a for a, b in zip(ours, rows[title], strict=True) if b != "–"] == [b for b in rows[title] if b != "–"]


def test_the_published_numbers_of_images_are_those_that_ship_with_the_recipes() -> None:
    rows = re.findall(r"^\| (1[059]-\d+) \| ([\d, ]+) \| ([\d, ]+) \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 5
    for task, *columns in rows:
        for setting, numbers in zip(("disjoint", "overlapped"), columns, strict=True):
            published = published_images(f"voc/{task}/{setting}", None)
            assert published in ([int(number) for number in numbers.split(",")], None)
            assert (published is None) == (setting == "overlapped" and task.startswith("10-"))
    for name in ("ade20k/100-50", "ade20k/100-10", "ade20k/50-50"):
        for order in ("a", "b"):
            numbers = published_images(f"{name}/disjoint", (order,))
            assert numbers
            assert ", ".join(map(str, numbers)) in " ".join(PAGE.split())
