"""Any single flipped bit of a file is noticed, or changes nothing."""

import json
from pathlib import Path

import pytest

from incseg.checksums import FORMAT, require_intact_text, sealed, sealed_text, unsealed
from incseg.errors import DamagedError
from incseg.run_folder import metrics_line, read_json, read_metrics, write_json

VALUES = {"classes": ["background", "hén"], "miou": {"all": 0.1, "old": None}, "step": 3}


def flipped(data: bytes) -> list[bytes]:
    """The data with one of its bits flipped: one in every byte, another each time."""
    places = ((index, 1 << (3 * index % 8)) for index in range(len(data)))
    return [data[:index] + bytes([data[index] ^ bit]) + data[index + 1 :] for index, bit in places]


def test_any_flipped_bit_of_a_json_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "scores.json"
    write_json(path, VALUES)
    assert read_json(path) == VALUES
    for data in flipped(path.read_bytes()):
        path.write_bytes(data)
        try:
            assert read_json(path) == VALUES  # white space may change
        except DamagedError as error:
            assert str(path) in str(error)  # noqa: PT017 - not every flip is damage


def test_a_damaged_line_of_the_metrics_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    entries = [{"step": "step 0", "iteration": i, "segmentation": 0.5} for i in range(3)]
    first, second, third = (f"{metrics_line(entry)}\n".encode() for entry in entries)
    path.write_bytes(first + second + third + b'{"cut sho')
    assert read_metrics(path) == (entries, 0)
    for data in flipped(second[:-1]):
        path.write_bytes(first + data + b"\n" + third)
        found, damaged = read_metrics(path)
        assert [entry for entry in found if entry != entries[1]] == [entries[0], entries[2]]
        assert damaged or entries[1] in found
    assert read_metrics(tmp_path / "none.jsonl") == ([], 0)


def test_files_of_before_have_no_checksum_and_those_of_a_newer_version_are_refused() -> None:
    assert unsealed(VALUES, "x") == VALUES
    newer = sealed(VALUES) | {"format": FORMAT + 1}
    with pytest.raises(DamagedError, match="x was written by a newer version"):
        unsealed(newer, "x")
    with pytest.raises(DamagedError, match="x is damaged"):
        unsealed([1], "x")
    for key in ("format", "checksum"):
        with pytest.raises(DamagedError, match="x is damaged"):
            unsealed({name: value for name, value in sealed(VALUES).items() if name != key}, "x")


def test_a_changed_configuration_is_noticed() -> None:
    text = sealed_text("protocol: shapes/4-2\nseed: 1\n")
    require_intact_text(text, "config.yaml")
    require_intact_text("seed: 1\n", "config.yaml")  # of a version that wrote no checksum
    with pytest.raises(DamagedError, match=r"config\.yaml was changed or is damaged"):
        require_intact_text(text.replace("seed: 1", "seed: 2"), "config.yaml")
    assert json.dumps(sealed({})) == json.dumps(sealed({}))
