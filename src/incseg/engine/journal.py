"""What is written while learning: ``metrics.jsonl``, TensorBoard, and the terminal."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

from incseg.files import replacing


class Journal:
    """One per run; silent on all processes but the first."""

    def __init__(self, folder: Path, title: str, *, active: bool = True, console: Console | None = None):
        self.active, self.title = active, title
        self.console = console or Console()
        self._folder, self._metrics = folder, folder / "metrics.jsonl"
        self._tensorboard: SummaryWriter | None = None
        self._bar: Progress | None = None

    def __enter__(self) -> "Journal":
        if self.active:
            self._tensorboard = SummaryWriter(str(self._folder / "tensorboard"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_step()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def say(self, text: str) -> None:
        """A line for the person watching."""
        if self.active:
            self.console.print(text, highlight=False)

    def begin_step(self, name: str, iterations: int, start: int) -> None:
        """Open the progress bar; on resuming, drop what was logged after the checkpoint."""
        if not self.active:
            return
        self._rewind(name, start)
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[losses]}"),
                console=self.console,
            )
            self._task = self._bar.add_task(f"{self.title} · {name}", total=iterations, completed=start, losses="")
            self._bar.start()
        else:
            self.say(f"{self.title} · {name}: iteration {start} of {iterations}")

    def advance(self, iteration: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(self._task, completed=iteration)

    def log(self, step: str, iteration: int, epoch: int, values: Mapping[str, float]) -> None:
        """Record loss terms and learning rate of an iteration."""
        if self._tensorboard is None:
            return
        line = {"step": step, "iteration": iteration, "epoch": epoch, **values}
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        for name, value in values.items():
            self._tensorboard.add_scalar(f"{step}/{name}", value, iteration)
        if self._bar is not None:
            shown = "  ".join(f"{name} {value:.3f}" for name, value in values.items() if name != "learning_rate")
            self._bar.update(self._task, losses=f"epoch {epoch}  {shown}")

    def score(self, index: int, scores: Mapping[str, float | None]) -> None:
        """Record the scores of a completed step, and say the ones a person waits for."""
        shown = [f"{name} {100 * value:.1f}" for name in ("old", "new", "all") if (value := scores[name]) is not None]
        self.say(f"{self.title} · step {index} scored: mIoU {', '.join(shown)}")
        if self._tensorboard is not None:
            for name, value in scores.items():
                if value is not None:
                    self._tensorboard.add_scalar(f"miou/{name}", value, index)

    def end_step(self) -> None:
        """Close the progress bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _rewind(self, step: str, iteration: int) -> None:
        """Keep the lines before the checkpoint; a last line cut short by a crash is not one."""
        if not self._metrics.exists():
            return
        lines = self._metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        entries = [(line, json.loads(line)) for line in lines if line.endswith("}\n")]
        kept = [line for line, entry in entries if entry["step"] != step or entry["iteration"] <= iteration]
        with replacing(self._metrics) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")
