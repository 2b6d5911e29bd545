"""Words of a command line become arguments of the types that the settings are declared with."""

from pathlib import Path
from typing import Any

import pytest

from incseg.cli.arguments import read_arguments
from incseg.cli.studies import reproduce
from incseg.cli.train import train
from incseg.config import load_recipe


def settings_of(*words: str) -> Any:
    return read_arguments(train, ["shapes/4-2", *words], "incseg train")["settings"]


def test_only_what_was_written_is_there() -> None:
    assert settings_of() == {}
    assert settings_of("--optim.epochs", "3", "--data.crop-size=64", "--optim.batch_size", "8") == {
        "optim": {"epochs": 3, "batch_size": 8},
        "data": {"crop_size": 64},
    }


@pytest.mark.parametrize("name", ["2012", "2024-01-01", "15_5", "1e3", "true", "null", "0x10", "12:30"])
def test_a_folder_named_like_something_else_stays_text(name: str) -> None:
    given = settings_of("--data.root", name, "--data.splits", name, "--model.weights", name, "--recall.images", name)
    assert given["data"] == {"root": Path(name).resolve(), "splits": Path(name).resolve()}
    assert given["model"] == {"weights": name}
    assert given["recall"] == {"images": Path(name)}


def test_classes_named_like_numbers_stay_text() -> None:
    assert settings_of("--data.class-order", "1, 2024-01-01,15_5")["data"]["class_order"] == ("1", "2024-01-01", "15_5")


def test_numbers_truth_values_lists_and_none() -> None:
    given = settings_of(
        "--optim.learning-rate", "1e-3", "--engine.deterministic", "true", "--engine.loggers", "wandb,mlflow",
        "--engine.checkpoint-every", "none", "--data.class-order", "none",
    )  # fmt: skip
    assert given["optim"]["learning_rate"] == 0.001
    assert given["engine"] == {"deterministic": True, "loggers": ("wandb", "mlflow"), "checkpoint_every": None}
    assert given["data"] == {"class_order": None}
    assert settings_of("--engine.loggers", "none") == {"engine": {"loggers": ()}}


def test_settings_of_methods_have_the_types_of_their_signatures() -> None:
    given = settings_of(
        "--ucd.temperature", "1", "--ucd.uncertainty", "false", "--mib.kd-weight=5", "--lwf-mc.kd-weight", "2",
        "--ilt+.kd-weight", "3", "--recall.generator", "none", "--ucd.student", "old",
    )  # fmt: skip
    assert given == {
        "ucd": {"temperature": 1.0, "uncertainty": False, "student": "old"},
        "mib": {"kd_weight": 5.0},
        "lwf-mc": {"kd_weight": 2.0},
        "ilt+": {"kd_weight": 3.0},
        "recall": {"generator": None},
    }
    assert isinstance(given["ucd"]["temperature"], float)


def test_hyphens_and_underscores_are_the_same_in_the_name_of_a_method() -> None:
    assert settings_of("--lwf_mc.kd_weight", "3") == {"lwf-mc": {"kd_weight": 3.0}}


def test_a_choice_among_numbers_is_read_as_a_number() -> None:
    assert settings_of("--analytic.stride", "8") == {"analytic": {"stride": 8}}


def test_the_last_of_two_values_counts() -> None:
    assert settings_of("--optim.epochs", "3", "--optim.epochs", "4") == {"optim": {"epochs": 4}}


def test_what_is_written_goes_over_the_recipe_and_leaves_its_others() -> None:
    config = load_recipe("shapes/4-2", settings_of("--optim.epochs", "3"))
    assert (config.optim.epochs, config.optim.learning_rate) == (3, 0.1)


def test_settings_may_stand_before_between_and_after() -> None:
    words = ["--ucd.temperature", "0.1", "voc-main", "--optim.epochs", "3", "--rows", "mib", "ft", "--dry-run"]
    given = read_arguments(reproduce, words, "incseg reproduce")
    assert (given["table"], given["rows"], given["dry_run"]) == ("voc-main", ("mib", "ft"), True)
    assert given["settings"] == {"ucd": {"temperature": 0.1}, "optim": {"epochs": 3}}
