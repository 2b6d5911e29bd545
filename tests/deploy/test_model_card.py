import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from incseg.console import Table
from incseg.deploy.model import Model
from incseg.deploy.model_card import escaped, model_card, write_card

HOSTILE = ("a|b", "<script>alert(1)</script>", "[link](javascript:x)", "```\n---\n# heading", "**bold** & `code` \\|")


@pytest.fixture
def model(tiny_model: Model) -> Model:
    """Two classes from elsewhere, then one more, with names that mean something in Markdown, HTML and YAML."""
    classes = ("background", *HOSTILE[:4])
    history: list[dict[str, Any]] = [{"new_classes": [HOSTILE[2]], "method": "mib+ucd", "data": "shapes"},
               {"new_classes": [HOSTILE[3]], "method": "plop", "data": "my: data", "training_images": 8,
                "miou": {"old": 0.5, "new": 0.25, "all": 0.4375}, "iou": {"a|b": 0.75, HOSTILE[3]: None}}]  # fmt: skip
    return Model(tiny_model.segmenter, classes, history)


def cells(line: str) -> list[str]:
    """The cells of a row of a Markdown table, as they are shown."""
    inner = re.split(r"(?<!\\)(?:\\\\)*\|", line.strip())[1:-1]
    return [re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", cell.strip()) for cell in inner]


def test_the_header_is_what_the_hub_reads(model: Model, tmp_path: Path) -> None:
    write_card(model, tmp_path / "my model")
    card = ModelCard.load(tmp_path / "my model" / "MODEL_CARD.md")
    data = card.data.to_dict()
    assert (data["library_name"], data["pipeline_tag"]) == ("incseg", "image-segmentation")
    assert data["metrics"] == ["mean_iou"]
    assert "class-incremental-learning" in data["tags"]
    found = {result.metric_name: result.metric_value for result in card.data.eval_results or []}
    assert found == {"mIoU of old classes": 0.5, "mIoU of new classes": 0.25}, "one class was not measured"
    assert {result.dataset_name for result in card.data.eval_results or []} == {"my: data"}


def test_the_mean_of_all_classes_is_told_where_all_were_measured(model: Model, tmp_path: Path) -> None:
    model.history[-1]["iou"].update({"background": None, HOSTILE[3]: 0.125})
    header = yaml.safe_load(model_card(model, tmp_path).split("---\n")[1])
    metrics = header["model-index"][0]["results"][0]["metrics"]
    assert "mIoU of all classes" in {metric["name"] for metric in metrics}


def test_a_model_without_scores_has_a_card_without_results(tiny_model: Model, tmp_path: Path) -> None:
    header = yaml.safe_load(model_card(tiny_model, tmp_path).split("---\n")[1])
    assert "model-index" not in header
    assert header["library_name"] == "incseg"


def test_names_are_shown_literally_whatever_they_contain(model: Model, tmp_path: Path) -> None:
    comparison = Table("title", ["class", "before", "after"], [[HOSTILE[4], "1.0", "2.0"]], note=HOSTILE[1])
    text = model_card(model, tmp_path / "<b>run</b>", comparison)
    body, facts = text.split("\n---\n", 1)[1].split("```json\n")
    assert json.loads(facts.removesuffix("```\n"))["classes"] == list(model.classes)
    assert not re.search(r"(?<!\\)<(script|b)\b", body.split("## How to use it")[0])
    rows = [cells(line) for line in body.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {3, 6, 9}
    shown = [cell for row in rows for cell in row]
    for name in HOSTILE[:3]:
        assert name in shown
    assert "``` --- # heading" in shown  # a name with line breaks stays in its cell
    assert HOSTILE[4] in shown
    assert [line for line in body.splitlines() if line.startswith("#")][1:] == [
        "## How it was trained", "## What it recognises",
        "## Before and after the last step, on the same images (IoU, %)",
        "## How to use it", "## The same facts as JSON",
    ]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_every_special_character_is_escaped(name: str) -> None:
    assert not re.search(r"(?<!\\)(?:\\\\)*[`*_\[\]<>|&]", escaped(name))


@pytest.mark.parametrize("name", ["https://evil.example", "www.evil.example", "a@evil.example", "ftp://x"])
def test_no_name_becomes_a_link_by_itself(name: str) -> None:
    assert not re.search(r"\w://|www\.|\w@", escaped(name))
    assert escaped(name).replace("\\", "") == name


def test_commands_quote_the_folder(tiny_model: Model, tmp_path: Path) -> None:
    text = model_card(tiny_model, tmp_path / 'my "model"')
    assert f"incseg predict '{tmp_path}/my \"model\"' IMAGES" in text
    assert f'incseg.load("{tmp_path}/my \\"model\\"")' in text
