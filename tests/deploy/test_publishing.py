"""The Hub is a folder here: what is pushed is what is fetched, and nothing else asks for the network."""

import re
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from huggingface_hub import errors

import incseg
from command_line import run
from incseg.deploy.model import Model
from incseg.errors import InputError
from incseg.hub import ADDRESS, fetched
from incseg.run_folder import model_name

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Repositories by name; asks are recorded."""
    asked: dict[str, Any] = {"private": {}, "fetched": []}

    class Api:
        def __init__(self, **_: object): ...

        def create_repo(self, repository: str, *, private: bool, exist_ok: bool) -> str:
            assert exist_ok
            asked["private"][repository] = private
            return f"https://huggingface.co/{repository}"

        def upload_folder(
            self,
            *,
            repo_id: str,
            folder_path: Path,
            commit_message: str,  # noqa: ARG002
            delete_patterns: list[str],
        ) -> None:
            assert delete_patterns == ["memory.safetensors"], "statistics of a model that was there before"
            shutil.copytree(folder_path, tmp_path / f"models--{repo_id.replace('/', '--')}" / "snapshots" / "main")

    def download(repository: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked["fetched"].append((repository, revision))
        assert not any(pattern == "*" or "bin" in pattern or "pt" in pattern for pattern in allow_patterns)
        place = tmp_path / f"models--{repository.replace('/', '--')}" / "snapshots" / (revision or "main")
        if not place.is_dir():
            raise errors.HFValidationError("no such repository")
        return str(place)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def test_what_is_pushed_can_be_used(
    tiny_run: Path, hub: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("push", tiny_run, "me/shapes", "--license", "apache-2.0", "--private") == 0
    assert "incseg predict hf://me/shapes IMAGES" in capsys.readouterr().out
    assert hub["private"] == {"me/shapes": True}
    here, there = incseg.load(tiny_run, device="cpu"), incseg.load("hf://me/shapes", device="cpu")
    assert there.classes == here.classes
    for name, tensor in here.segmenter.state_dict().items():
        assert torch.equal(tensor, there.segmenter.state_dict()[name])
    assert there.path is not None
    assert model_name(there.path) == "shapes", "not the number of a commit"
    card = (there.path.parent / "README.md").read_text(encoding="utf-8")
    header = yaml.safe_load(card.split("---")[1])
    assert header["license"] == "apache-2.0"
    assert (header["library_name"], header["pipeline_tag"]) == ("incseg", "image-segmentation")
    assert "semantic-segmentation" in header["tags"]
    assert "incseg predict hf://me/shapes" in card
    assert 'incseg.load("hf://me/shapes")' in card
    image = tmp_path / "a.png"
    here.predict(torch.zeros(40, 40, 3, dtype=torch.uint8).numpy()).index().save(image)
    assert run("predict", "hf://me/shapes", image, "--out", tmp_path / "out") == 0
    assert (tmp_path / "out" / "a.classes.png").is_file()
    assert hub["fetched"][-1] == ("me/shapes", None)


def test_an_address_that_leads_nowhere_is_explained(
    tiny_run: Path, hub: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for address, message in [
        ("hf://me", "write hf://user/name"),
        ("hf://me/nothing@v1", "no model 'me/nothing' with the revision 'v1'"),
    ]:
        assert run("predict", address, "x.png") == 2
        assert message in capsys.readouterr().err
    assert hub["fetched"] == [("me/nothing", "v1")]
    assert run("push", tiny_run, "nobody") == 2
    assert "write user/name" in capsys.readouterr().err


def test_only_an_address_uses_the_network(tiny_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a path must not lead to the network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refused)
    monkeypatch.setattr("socket.socket.connect", refused)
    folder = tiny_model.save_pretrained(tmp_path / "me" / "shapes")
    monkeypatch.chdir(tmp_path)
    assert incseg.load("me/shapes", device="cpu").classes == tiny_model.classes
    assert fetched(folder) == folder
    damaged = bytearray((folder / "model.safetensors").read_bytes())
    damaged[-1] ^= 1
    (folder / "model.safetensors").write_bytes(damaged)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    with pytest.raises(InputError, match="damaged"):
        incseg.load("hf://me/shapes")


def test_the_page_says_how() -> None:
    assert "incseg push runs/mine me/shapes" in PAGE
    assert all(ADDRESS.fullmatch(address) for address in re.findall(r"`(hf://[^`…]+)`", PAGE))


def test_a_hub_that_cannot_be_reached_is_one_sentence(
    tiny_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise RuntimeError("Name or service not known\nand much more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", unreachable)
    for words in (("predict", "hf://me/shapes", "x.png"), ("push", tiny_run, "me/shapes")):
        assert run(*words) == 1
        said = capsys.readouterr().err
        assert "Name or service not known" in said
        assert said.count("\n") == 1
