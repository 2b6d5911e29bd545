"""Loggers watch a run: they see its numbers and pictures, and change nothing."""

import importlib
import importlib.util
import io
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import IMAGES, EventAccumulator

from incseg.config import EngineConfig, RunConfig, load_recipe
from incseg.console import Console
from incseg.engine import loggers
from incseg.engine.admission import LOGGERS
from incseg.engine.assembly import train
from incseg.engine.evaluator import side_by_side
from incseg.engine.journal import Journal
from incseg.errors import InputError
from incseg.run_folder import RunFolder

MakeConfig = Callable[..., RunConfig]
HEADER = {
    "protocol": "folder/2-2/overlapped",
    "method": "ft",
    "seed": 1,
    "settings": {"a.b": 1},
    "environment": {"torch": "2"},
}


def needs(package: str) -> pytest.MarkDecorator:
    absent = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(absent, reason=f"{package} is not installed: pip install 'incseg[{package}]'")


def with_loggers(make: MakeConfig, *names: str) -> RunConfig:
    return make("ft", engine={"accelerator": "cpu", "log_every": 1, "pictures": 1, "loggers": names})


def outcome(run: Path) -> list[bytes]:
    files = ("result.json", "metrics.jsonl", "step-0/model.safetensors", "step-1/model.safetensors")
    return [(run / file).read_bytes() for file in files]


@pytest.fixture(scope="module")
def plain_run(quick_config: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("plain")
    train(with_loggers(quick_config), run)
    assert not (run / "tensorboard").exists()
    return run


def test_tensorboard_gets_losses_scores_and_pictures(quick_config: MakeConfig, plain_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(with_loggers(quick_config, "tensorboard"), run)
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={IMAGES: 0}).Reload()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    logged = [line["segmentation"] for line in lines if line["step"] == "step 1"]
    assert [event.value for event in events.Scalars("step 1/segmentation")] == pytest.approx(logged)
    assert [event.value for event in events.Scalars("miou/all")] == pytest.approx(
        [step["miou"]["all"] for step in result["steps"]]
    )
    (name,) = [path.name.removesuffix(".image.jpg") for path in (run / "step-0" / "predictions").glob("*.image.jpg")]
    shown = events.Images(f"predictions/{name}")
    assert [event.step for event in shown] == [0, 1]
    picture = np.asarray(Image.open(io.BytesIO(shown[1].encoded_image_string)))
    truth = np.asarray(Image.open(run / "step-1" / "predictions" / f"{name}.truth.png").convert("RGB"))
    assert picture.shape == (64, 3 * 64, 3)
    assert np.array_equal(picture[:, 64:128], truth)
    assert outcome(run) == outcome(plain_run)


def test_a_shared_first_step_is_in_tensorboard_once(quick_config: MakeConfig, plain_run: Path, tmp_path: Path) -> None:
    for _ in range(2):  # the second time there is nothing left to do
        result = train(with_loggers(quick_config, "tensorboard"), tmp_path / "run", first_step=plain_run)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={IMAGES: 0}).Reload()
    assert [event.value for event in events.Scalars("miou/all")] == pytest.approx(
        [step["miou"]["all"] for step in result["steps"]]
    )
    (tag,) = events.Tags()["images"]
    assert [event.step for event in events.Images(tag)] == [0, 1]


@needs("wandb")
def test_wandb_offline_gets_the_run_and_takes_it_up_again(
    quick_config: MakeConfig, plain_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module("wandb").teardown()  # it remembers the mode of the first run of a process
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = tmp_path / "run"
    interrupt(with_loggers(quick_config, "wandb"), run)
    identity = json.loads((run / "loggers.json").read_text())["wandb"]
    train(with_loggers(quick_config, "wandb"), run)
    assert json.loads((run / "loggers.json").read_text())["wandb"] == identity
    files = list((run / "wandb").glob("offline-run-*/*.wandb"))
    assert [file.name for file in files] == [f"run-{identity}.wandb"] * 2
    written = b"".join(file.read_bytes() for file in files)
    for text in (b"step 0/segmentation", b"step 1/segmentation", b"miou/all", b"folder/2-2/overlapped ft seed 42"):
        assert text in written
    assert len(list((run / "wandb").glob("offline-run-*/files/media/images/predictions/*.png"))) == 2
    assert outcome(run) == outcome(plain_run)


@needs("mlflow")
def test_mlflow_gets_the_run_and_takes_it_up_again(
    quick_config: MakeConfig, plain_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run, database = tmp_path / "run", tmp_path / "run" / "mlflow" / "mlflow.db"
    interrupt(with_loggers(quick_config, "mlflow"), run)
    result = train(with_loggers(quick_config, "mlflow"), run)
    tables = sqlite3.connect(database)
    ((identity, name, status),) = tables.execute("select run_uuid, name, status from runs").fetchall()
    assert (name, status) == ("folder/2-2/overlapped ft seed 42", "FINISHED")
    assert json.loads((run / "loggers.json").read_text())["mlflow"] == identity
    scores = tables.execute("select value from metrics where key = 'miou/all' order by step").fetchall()
    assert [value for (value,) in scores] == pytest.approx([step["miou"]["all"] for step in result["steps"]])
    assert dict(tables.execute("select key, value from params").fetchall())["optim.epochs"] == "2"
    pictures = [path for path in (run / "mlflow").rglob("step-*.png") if identity in str(path)]
    assert sorted(path.name for path in pictures) == ["step-0.png", "step-1.png"]
    assert outcome(run) == outcome(plain_run)

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")  # now a store that several runs share
    loggers.open_loggers(["mlflow"], RunFolder(tmp_path / "other"), HEADER)["mlflow"].close()
    assert not (tmp_path / "other" / "mlflow").exists()
    assert len(tables.execute("select run_uuid from runs").fetchall()) == 2


class Stopped(BaseException):
    pass


def interrupt(config: RunConfig, run: Path) -> None:
    """Train, and be killed in the second step."""
    original = Journal.log

    def log(self: Journal, step: str, iteration: int, *rest: Any) -> None:
        if (step, iteration) == ("step 1", 2):
            raise Stopped
        original(self, step, iteration, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "log", log)
        with pytest.raises(Stopped):
            train(config, run)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_named_before_anything_starts(
    name: str, quick_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None if package == name else original(package))
    with pytest.raises(InputError, match=rf"the logger '{name}' needs {name}.*pip install 'incseg\[{name}\]'"):
        train(with_loggers(quick_config, "tensorboard", name), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@needs("wandb")
def test_wandb_that_cannot_start_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "not a key")
    importlib.import_module("wandb").teardown()  # it remembers the mode of the first run of a process
    with pytest.raises(InputError, match=r"W&B cannot start .* WANDB_MODE=offline"):
        loggers.open_loggers(["wandb"], RunFolder(tmp_path), HEADER)


@needs("mlflow")
def test_mlflow_that_cannot_start_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "carrier-pigeon://roof")
    with pytest.raises(InputError, match=r"MLflow cannot start .* check MLFLOW_TRACKING_URI"):
        loggers.open_loggers(["mlflow"], RunFolder(tmp_path), HEADER)


class Broken:
    def __init__(self, *_: object) -> None: ...

    def log(self, *_: object) -> None:
        raise ConnectionError("the server is gone")

    def show(self, *_: object) -> None:
        raise AssertionError("it had failed before")

    close = show


def test_a_logger_that_fails_does_not_cost_the_training(
    quick_config: MakeConfig, plain_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loggers.KINDS, "mlflow", Broken)
    monkeypatch.setitem(LOGGERS, "mlflow", ())
    console = Console(file=io.StringIO(), force_terminal=False, width=200)
    train(with_loggers(quick_config, "mlflow"), tmp_path / "run", console=console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert (
        said.count("the logger 'mlflow' failed and is left out from here on (ConnectionError: the server is gone)") == 1
    )
    assert outcome(tmp_path / "run") == outcome(plain_run)


def test_other_processes_log_nothing(tmp_path: Path) -> None:
    with Journal(RunFolder(tmp_path / "run"), HEADER, last_step=1, loggers=["tensorboard"], active=False) as journal:
        journal.begin_step(0, iterations=2, per_epoch=1, start=0)
        journal.log("step 0", 1, 1, {"segmentation": 1.0})
        journal.advance(1)
        journal.show_pictures(0, tmp_path)
    assert not (tmp_path / "run").exists()


def test_the_choice_of_loggers_is_written_with_commas_and_is_no_other_experiment(
    quick_config: MakeConfig, tmp_path: Path
) -> None:
    config = load_recipe("shapes/4-2", {"engine": {"loggers": "tensorboard, wandb"}})
    assert config.engine.loggers == ("tensorboard", "wandb")
    assert load_recipe("shapes/4-2", {"engine": {"loggers": "none"}}).engine.loggers == ()
    with pytest.raises(InputError, match=r"engine\.loggers.* cannot be 'wandbb'.*'tensorboard', 'wandb' or 'mlflow'"):
        load_recipe("shapes/4-2", {"engine": {"loggers": "wandbb"}})
    train(with_loggers(quick_config), tmp_path)
    train(with_loggers(quick_config, "tensorboard"), tmp_path)  # not refused as another run


def test_every_name_of_the_setting_is_a_logger() -> None:
    (names, _) = get_args(EngineConfig.model_fields["loggers"].annotation)
    assert set(get_args(names)) == set(loggers.KINDS) == set(LOGGERS)


def test_pictures_side_by_side_are_image_truth_prediction(plain_run: Path) -> None:
    ((name, picture),) = side_by_side(plain_run / "step-1" / "predictions")
    folder = plain_run / "step-1" / "predictions"
    parts = [
        Image.open(folder / f"{name}.{end}").convert("RGB") for end in ("image.jpg", "truth.png", "prediction.png")
    ]
    assert np.array_equal(picture, np.concatenate([np.asarray(part) for part in parts], axis=1))
