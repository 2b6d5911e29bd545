"""Commands in processes of their own, which begin at once: each is a copy of one that has imported everything.

That one is the fork server of Python's ``multiprocessing``. It does nothing but import, so that neither a thread nor
CUDA, which no copy could use, has begun in it. Elsewhere than on Linux a process that has loaded PyTorch cannot be
copied safely; there every command imports what it needs by itself.
"""

import atexit
import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from incseg.engine.cores import THREADS
from incseg.system_signals import REQUESTS_TO_STOP, known_signals

IS_LINUX = sys.platform == "linux"
IMPORTED = ("incseg.study.copied", "incseg.cli", "incseg.engine.assembly", "incseg.report.page")
COPIED_FOR = "INCSEG_COPIED_FOR"  # environment: the process whose commands are copies of its child


def import_ahead(environment: Mapping[str, str]) -> None:
    """Begin the process that will be copied, unless it is there: it imports while this one plans what to run."""
    if IS_LINUX:
        from multiprocessing.forkserver import ensure_running  # noqa: PLC0415 - Windows has none

        multiprocessing.set_forkserver_preload(list(IMPORTED))
        with _environment(environment):
            ensure_running()


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    """Inside, processes begin with this too, and import nothing from the working folder, which may be anyone's."""
    more = {**more, "PYTHONSAFEPATH": "1", COPIED_FOR: str(os.getpid())}
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Children:
    """Processes that are asked to stop when this one is, and do not outlive it."""

    def __init__(self) -> None:
        self.asked_to_stop = False
        self._running: list[BaseProcess] = []

    def start(self, words: Sequence[str], log: Path | None, environment: Mapping[str, str]) -> BaseProcess:
        """Begin ``incseg WORDS``; what it says goes to a file, or where all goes that this process says."""
        context = multiprocessing.get_context("forkserver") if IS_LINUX else multiprocessing.get_context("spawn")
        errors_only = sys.stdout is sys.stderr
        process = context.Process(target=_run, args=(words, log, environment, errors_only))
        import_ahead(environment)
        with _environment(environment):
            process.start()
        self._running = [*self._alive, process]  # what has ended is let go of, with its open files
        if self.asked_to_stop:  # while it began
            process.terminate()
        return process

    @contextmanager
    def heard(self) -> Iterator["Children"]:
        """Inside, requests to stop go to the children, whose exit codes say that they heard them."""
        listens = threading.current_thread() is threading.main_thread()
        known = known_signals("SIGTERM", "SIGUSR1") if listens else []
        before = {number: signal.signal(number, self._pass_on) for number in known}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for process in self._alive:
                process.terminate()
            for process in self._running:
                process.join()

    @property
    def _alive(self) -> list[BaseProcess]:
        return [process for process in self._running if process.exitcode is None]

    def _pass_on(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.asked_to_stop = True
        for process in self._alive:
            assert process.pid is not None, "it has begun"
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(process.pid, number)


def _run(words: Sequence[str], log: Path | None, environment: Mapping[str, str], errors_only: bool) -> None:
    """In the new process: what ``python -m incseg WORDS`` does."""
    os.environ.update(environment)
    _use_threads(environment.get(THREADS, ""))
    if IS_LINUX:
        stop_with_parent(signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS_TO_STOP)
    if log is not None:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    elif errors_only:
        os.dup2(2, 1)
    if _cuda_has_begun():
        os.execv(sys.executable, [sys.executable, "-P", "-m", "incseg", *words])
    sys.argv = ["incseg", *words]
    try:
        runpy.run_module("incseg", run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # multiprocessing ends its processes without


def _use_threads(number: str) -> None:
    """Let PyTorch use so many; a copy of a process that has imported it would use as many as that one."""
    torch = sys.modules.get("torch")
    if torch is not None and number.isdecimal():  # OpenMP takes lists too, but those are never changed on the way
        torch.set_num_threads(int(number))


def _cuda_has_begun() -> bool:
    """Whether this is a copy that cannot use CUDA: where NVIDIA's library is missing, importing asks CUDA itself."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda._is_in_bad_fork()


def stop_with_parent(number: signal.Signals) -> None:
    """Let Linux send a signal to this process when its parent is gone, even if that was killed."""
    ctypes.CDLL(None).prctl(1, number)  # 1: PR_SET_PDEATHSIG
