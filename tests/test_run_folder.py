"""The names of a run's files, and which file a person means by MODEL."""

import ast
from pathlib import Path

import pytest

from incseg.errors import InputError
from incseg.results import Run
from incseg.run_folder import RunFolder, model_file

SOURCE = Path(__file__).parents[1] / "src" / "incseg"


def test_the_names_that_users_rely_on() -> None:
    run = RunFolder(Path("run"))
    names = [run.config, run.result, run.metrics, run.report, run.model(2), run.predictions(2), run.model_card]
    assert [path.as_posix() for path in names] == [
        "run/config.yaml", "run/result.json", "run/metrics.jsonl", "run/report.html", "run/step-2/model.safetensors",
        "run/step-2/predictions", "run/MODEL_CARD.md",
    ]  # fmt: skip


@pytest.mark.parametrize("package", ["engine", "models", "deploy", "report", "study", "paper", "bench"])
def test_no_other_file_spells_them(package: str) -> None:
    names = {"config.yaml", "result.json", "metrics.jsonl", "scores.json", "memory.safetensors", "model.safetensors",
             "checkpoint.pt", "cost.json", "loggers.json", "MODEL_CARD.md", "report.html"}  # fmt: skip
    for path in (SOURCE / package).rglob("*.py"):
        spelt = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        assert not spelt & names, f"{path.relative_to(SOURCE)} spells a name that run_folder.py has"


def test_a_step_is_finished_when_its_scores_are_written(tiny_run: Path) -> None:
    run = RunFolder(tiny_run)
    assert run.finished_steps == [0, 1]
    assert run.model(2).is_file()
    assert not run.is_finished(2)
    assert RunFolder(tiny_run / "nowhere").finished_steps == []


def test_weights_are_in_a_checkpoint_or_a_finished_step(tiny_run: Path, tmp_path: Path) -> None:
    assert RunFolder(tiny_run).has_weights
    fresh = RunFolder(tmp_path / "fresh")
    assert not fresh.has_weights
    fresh.path.mkdir()
    fresh.checkpoint.touch()
    assert fresh.has_weights


def test_a_model_is_a_run_a_step_or_a_file(tiny_run: Path) -> None:
    run = RunFolder(tiny_run)
    assert model_file(tiny_run) == run.model(1)
    assert model_file(tiny_run, 0) == model_file(run.step(0)) == model_file(run.model(0)) == run.model(0)
    for path, step, message in [
        (tiny_run / "nowhere", None, "there is no model"),
        (tiny_run, 2, "no finished step 2: choose from 0, 1"),
        (run.step(1), 0, "only of a run's folder"),
    ]:
        with pytest.raises(InputError, match=message):
            model_file(path, step)


def test_a_model_file_knows_its_run(tiny_run: Path, tmp_path: Path) -> None:
    run = RunFolder(tiny_run)
    assert RunFolder.holding(run.model(1)) is None, "without a configuration it is no run"
    run.config.touch()
    assert RunFolder.holding(run.model(1)) == (run, 1)
    assert RunFolder.holding(tmp_path / "mine.safetensors") is None


def test_a_result_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no result\.json"):
        Run.read(tmp_path)
    head = '{"protocol": "voc/15-5", "method": "ft", "seed": 1, "settings": {}, "classes": ["bg", "cat"], "steps": '
    foreign = (f"{head}[]}}", f"{head}[{{}}]}}", f"{head}[3]}}", "[" * 100_000)
    for text in ('{"steps": []}', '{"method": "mib", "seed": 1}', "[1]", "5", "no JSON", *foreign):
        RunFolder(tmp_path).result.write_text(text)
        with pytest.raises(InputError, match="not a result of incseg"):
            Run.read(tmp_path)
