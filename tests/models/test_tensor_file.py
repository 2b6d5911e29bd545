from pathlib import Path

import pytest
import torch

from incseg.errors import DamagedError
from incseg.models.tensor_file import read_tensors, write_tensors

TENSORS = {
    "a": torch.arange(3.0),
    "b": torch.tensor(7),
    "c": torch.zeros(0, 2),
    "d": torch.ones(1, dtype=torch.bfloat16),
}


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "memory.safetensors"
    write_tensors(path, TENSORS, {"classes": ["background", "hén"]})
    data = path.read_bytes()
    for place in range(0, 8 * len(data), 37):
        index, bit = divmod(place, 8)
        path.write_bytes(data[:index] + bytes([data[index] ^ 1 << bit]) + data[index + 1 :])
        try:
            description, tensors = read_tensors(path)
        except DamagedError as error:
            assert str(path) in str(error)  # noqa: PT017 - not every flip is damage
        else:  # white space in the header, or the name of the metadata: then nobody can say what the tensors are
            assert description in (None, {"classes": ["background", "hén"]})
            assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize("content", [b"", b"no", b"\xff" * 50, b"\x08" + b"\0" * 7 + b"{}      "])
def test_what_is_cut_off_or_foreign_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    if content.endswith(b"{}      "):  # a file of tensors, but of none
        assert read_tensors(tmp_path / "x.safetensors") == (None, {})
        return
    with pytest.raises(DamagedError, match="not a readable safetensors"):
        read_tensors(tmp_path / "x.safetensors")


def test_the_same_tensors_are_the_same_bytes_with_ordinary_permissions(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_tensors(tmp_path / name, TENSORS, {"classes": ["a"], "history": [{"x": 1}]})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    (tmp_path / "usual").touch()
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "usual").stat().st_mode
