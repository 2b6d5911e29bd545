"""What is written and shown during training: ``metrics.jsonl``, the chosen loggers, and the console."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from incseg.console import Console, progress_of
from incseg.engine.display import Status, display_for
from incseg.engine.evaluator import side_by_side
from incseg.engine.loggers import RunLogger, open_loggers
from incseg.files import append_line
from incseg.run_folder import RunFolder, metrics_line, read_metrics, write_metrics

PATIENCE = 5.0  # seconds that work besides training may take before a log says how far it is


class Journal:
    """One per run. Only the first process writes, and only inside ``with``."""

    def __init__(
        self,
        folder: RunFolder,
        header: Mapping[str, Any],
        *,
        last_step: int,
        loggers: Sequence[str] = (),
        active: bool = True,
        console: Console | None = None,
    ):
        self.active, self.console = active, console or Console()
        self._folder, self._header, self._chosen = folder, header, loggers
        self._metrics = folder.metrics
        self._loggers: dict[str, RunLogger] = {}
        self._open = False
        self._status = Status(header["method"], last_step)
        self._display = display_for(self.console)

    def __enter__(self) -> "Journal":
        if self.active:
            self._loggers = open_loggers(self._chosen, self._folder, self._header)
            self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_step()
        self._tell(lambda logger: logger.close())
        self._open = False

    def say(self, text: str) -> None:
        """Print a line."""
        if self.active:
            self.console.say(text)

    def mention(self, text: str) -> None:
        """Print a line on how the work goes."""
        if self.active:
            self.console.mention(text)

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """Show how far work of a step besides training has come: yields ``advance(done, of)``."""
        if not self.active:
            yield lambda done, of: None  # noqa: ARG005 - the first process speaks
            return
        with progress_of(f"{self._status.title} · {title}", self.console, patience=PATIENCE) as advance:
            yield advance

    def begin_step(self, step: int, iterations: int, per_epoch: int, start: int) -> None:
        """Show that a step begins; a resumed one drops what was logged after its checkpoint."""
        if not self.active:
            return
        self._rewind(f"step {step}", start)
        status = self._status
        status.step, status.iterations, status.per_epoch, status.done = step, iterations, per_epoch, start
        status.losses = {}
        self._display.begin(status)

    def advance(self, iteration: int) -> None:
        """Show that an iteration is done."""
        if self.active:
            self._status.done = iteration
            self._display.update(self._status)

    def log(self, step: str, iteration: int, epoch: int, values: Mapping[str, float]) -> None:
        """Log loss terms and learning rate of an iteration."""
        if not self._open:
            return
        line = {"step": step, "iteration": iteration, "epoch": epoch, **values}
        append_line(self._metrics, metrics_line(line))
        self._tell(lambda logger: logger.log(step, iteration, values))
        self._status.losses = {name: value for name, value in values.items() if name != "learning_rate"}

    def score(self, index: int, scores: Mapping[str, float | None]) -> None:
        """Log the scores of a finished step, and print the means."""
        names = {"old": "old", "new": "new", "all": "all w/o bg", "all_with_background": "all+bg"}
        shown = [f"{word} {100 * v:.1f}" for name, word in names.items() if (v := scores.get(name)) is not None]
        missing = "has no mean IoU: not all of its classes are labelled in validation images"
        found = f"scored: mIoU {', '.join(shown)}" if shown else missing
        self.mention(f"{self._status.title} · step {index} {found}")
        self.pass_on_score(index, scores)

    def pass_on_score(self, index: int, scores: Mapping[str, float | None]) -> None:
        """Log the scores of a step that another run has trained and scored."""
        self.remember_score(index, scores)
        there = {name: value for name, value in scores.items() if value is not None}
        self._tell(lambda logger: logger.log("miou", index, there))

    def remember_score(self, index: int, scores: Mapping[str, float | None]) -> None:
        """Keep the score of a finished step, to show it while the next one is trained."""
        if (value := scores["all"]) is not None:
            self._status.scored = f"mIoU w/o bg {100 * value:.1f} after step {index}"

    def show_pictures(self, index: int, folder: Path) -> None:
        """Pass the pictures of a step on to the loggers."""
        pictures = list(side_by_side(folder)) if self._loggers else []
        self._tell(lambda logger: logger.show(index, pictures))

    def end_step(self) -> None:
        """Stop showing progress."""
        self._display.end()

    def _tell(self, act: Callable[[RunLogger], None]) -> None:
        """Call every logger; one that fails, because its server is gone for example, must not stop the training."""
        for name, logger in list(self._loggers.items()):
            try:
                act(logger)
            except Exception as error:
                del self._loggers[name]
                self.say(f"the logger '{name}' failed and is left out from here on ({type(error).__name__}: {error})")

    def _rewind(self, step: str, iteration: int) -> None:
        """Keep the lines up to the checkpoint, without a last one that a crash cut short."""
        if not self._metrics.exists():
            return
        entries = read_metrics(self._metrics)[0]
        kept = [entry for entry in entries if entry["step"] != step or entry["iteration"] <= iteration]
        write_metrics(self._metrics, kept)
