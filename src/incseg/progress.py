"""Saying how far a long task has come: a bar in a terminal, a few plain lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

LINES = 10  # a log gets about that many


@contextmanager
def progress_of(title: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """Yields ``advance(done, of)``; ``of`` is 0 while unknown."""
    if console.is_terminal:
        with Progress(console=console) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, of: bar.update(task, completed=done, total=of or None)
        return
    said = -1

    def advance(done: int, of: int) -> None:
        nonlocal said
        tenths = LINES * done // of if of else 0
        if tenths > said:
            said = tenths
            console.print(f"{title}: {100 * done // of if of else 0} %", highlight=False, markup=False, soft_wrap=True)

    yield advance
