"""Being asked to stop: by a scheduler's signal, or because the time given to a run is over.

Between two iterations a stop waits for a checkpoint; anywhere else it ends the run at once, like Ctrl-C, since files
are replaced whole and the last checkpoint is there.
"""

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from incseg.errors import Stopped
from incseg.system_signals import known_signals

TIME_IS_OVER = "the end of --engine.max-time"
REASONS = {  # by the name of the signal: Windows has only the first
    "SIGTERM": "a request to stop (SIGTERM)",
    "SIGUSR1": "a request to stop (SIGUSR1)",
    "SIGALRM": TIME_IS_OVER,
}


class StopRequests:
    """Whether this process was asked to stop; use it inside :meth:`heard`."""

    def __init__(self) -> None:
        self.reason = ""
        self._waits = False

    @contextmanager
    def heard(self, max_time: float | None = None) -> Iterator[None]:
        """Listen; ``max_time`` in seconds from now on. Only a program's main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.reason, self._waits = "", False
        before = {number: signal.signal(number, self._hear) for number in known_signals(*REASONS)}
        try:
            with self._limited(max_time):
                try:
                    yield
                finally:
                    self._waits = True  # a request that comes now may not keep the handlers from being put back
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self.reason:
            self.obey()

    @contextmanager
    def _limited(self, max_time: float | None) -> Iterator[None]:
        """Stop when the time is over: by an alarm, or where the system has none, as Windows, by a thread."""
        if max_time is None:
            yield
        elif hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, max_time)
            try:
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        else:
            timer = threading.Timer(max_time, self._end_time)
            timer.daemon = True
            timer.start()
            try:
                yield
            finally:
                timer.cancel()

    def _end_time(self) -> None:
        self.reason = TIME_IS_OVER
        _thread.interrupt_main(signal.SIGTERM)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, a request is only noted: whoever asks for it calls :meth:`obey` when all is saved."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
        if self.reason:
            self.obey()

    def obey(self) -> None:
        """End the run."""
        raise Stopped(f"stopped after {self.reason}; run the same command again to resume from the last checkpoint.")

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.reason = self.reason or REASONS[signal.Signals(number).name]
        if not self._waits:
            self.obey()
