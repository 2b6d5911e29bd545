"""Records are found again by what was run; the pages that are made from them are tested in tests/report."""

import json
from pathlib import Path

import pytest

from incseg.config import from_yaml, result_settings
from incseg.results import Run
from incseg.run_folder import read_json, write_json
from incseg.study.record import find_record, write_record
from made_up import write_result


def test_a_run_is_recorded_where_one_with_its_settings_is(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "run", "voc/15-5/overlapped", "mib", lambda *_: 0.5, seed=42)
    path = write_record(Run.read(folder), tmp_path)
    config = from_yaml(folder / "config.yaml")
    assert find_record(config, tmp_path) == path
    assert find_record(config.model_copy(update={"seed": 43}), tmp_path) is None
    other = config.optim.model_copy(update={"epochs": config.optim.epochs + 1})
    assert find_record(config.model_copy(update={"optim": other}), tmp_path) is None


@pytest.mark.parametrize(
    "place", ["weights.safetensors", "below/weights.safetensors", "/elsewhere/weights.safetensors"]
)
def test_where_a_file_lies_is_no_difference(place: str, tmp_path: Path) -> None:
    folder = write_result(tmp_path / "run", "voc/15-5/overlapped", "mib", lambda *_: 0.5, seed=42)
    config = from_yaml(folder / "config.yaml")
    found = []
    for weights in ("weights.safetensors", place):
        given = config.model_copy(update={"model": config.model.model_copy(update={"weights": weights})})
        (folder / "config.yaml").write_text(given.model_dump_json())  # JSON is YAML
        result = read_json(folder / "result.json")
        write_json(folder / "result.json", {**result, "settings": result_settings(given)})
        found.append(find_record(given, tmp_path) or write_record(Run.read(folder), tmp_path))
    assert found[0] == found[1]
    assert find_record(config, tmp_path) is None


def test_a_setting_that_a_record_does_not_know_yet_must_be_at_its_default(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "run", "voc/15-5/overlapped", "mib", lambda *_: 0.5, seed=42)
    path = write_record(Run.read(folder), tmp_path)
    record = json.loads(path.read_text())
    del record["settings"]["data.sampling"]
    path.write_text(json.dumps(record))
    config = from_yaml(folder / "config.yaml")
    assert find_record(config, tmp_path) == path
    balanced = config.data.model_copy(update={"sampling": "balanced"})
    assert find_record(config.model_copy(update={"data": balanced}), tmp_path) is None


def test_a_method_s_setting_that_a_record_does_not_name_had_the_method_s_default(tmp_path: Path) -> None:
    """Whatever the recipe says by now: VOC's chose no context when the first records were written."""
    folder = write_result(tmp_path / "run", "voc/15-5/overlapped", "analytic", lambda *_: 0.5, seed=42)
    path = write_record(Run.read(folder), tmp_path)
    record, config = json.loads(path.read_text()), from_yaml(folder / "config.yaml")
    assert config.settings["analytic"]["context"] == 31
    assert find_record(config, tmp_path) == path
    record["settings"] = {
        name: value for name, value in record["settings"].items() if not name.startswith("settings.analytic.")
    }
    path.write_text(json.dumps(record))
    assert find_record(config, tmp_path) is None
    plain = config.model_copy(update={"settings": {"analytic": {"context": 0, "crops": 0, "mirrored": True}}})
    assert find_record(plain, tmp_path) == path
