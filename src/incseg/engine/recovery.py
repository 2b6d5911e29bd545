"""What a run finds in its folder: leftovers of a killed process are cleared, and damaged files are named and set aside.

After that everything in the folder is intact, and the rest of the engine need not ask: a checkpoint that was set aside
leaves the one before it, and a finished step with a damaged file is no finished step, so it is learnt again.
"""

from collections.abc import Callable
from pathlib import Path

from incseg.engine.checkpoint import Checkpoint, FinishedStep
from incseg.errors import InputError
from incseg.files import clear_unfinished
from incseg.models.storage import load_model
from incseg.run_folder import RunFolder, read_json, read_metrics, write_metrics

Say = Callable[[str], None]


def recover(folder: RunFolder, say: Say) -> None:
    """Leave nothing but intact files in the folder of a run; nobody else may write in it."""
    steps = [path for path in folder.path.glob("step-*") if path.is_dir()]
    for place in (folder.path, *steps):
        clear_unfinished(place, ours=True)
    for path in (folder.checkpoint, folder.checkpoint_before):
        _set_aside_if(Checkpoint.read, path, say, "resuming from the checkpoint before it, if there is one")
    for path in (folder.result, folder.data, folder.loggers):
        _set_aside_if(read_json, path, say, "it is written again")
    for index in folder.finished_steps:
        _recover_step(folder, index, say)
    _recover_metrics(folder.metrics, say)


def _recover_step(folder: RunFolder, index: int, say: Say) -> None:
    """A step is finished if its scores, its model and its memory are intact."""
    try:
        FinishedStep.load(folder, index)
        load_model(folder.model(index))
    except (InputError, OSError) as error:
        say(f"{_sentence(error)}; step {index} is learnt again from the model before it.")
        _set_aside(folder.scores(index))


def _set_aside_if(read: Callable[[Path], object], path: Path, say: Say, consequence: str) -> None:
    try:
        if path.exists():
            read(path)
    except (InputError, OSError) as error:
        _set_aside(path)
        say(f"{_sentence(error)}; {consequence}. The damaged file is kept as {path.name}.damaged.")


def _set_aside(path: Path) -> None:
    path.replace(path.with_name(f"{path.name}.damaged"))


def _recover_metrics(path: Path, say: Say) -> None:
    entries, damaged = read_metrics(path)
    if damaged:
        say(f"{path} is damaged: {damaged} of its lines cannot be read and are dropped; training is not affected.")
        write_metrics(path, entries)


def _sentence(error: Exception) -> str:
    return str(error).rstrip(".")
