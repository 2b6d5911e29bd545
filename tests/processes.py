"""Real processes that start cheaply: each is a copy of a server that has imported everything once.

Tests that use it belong to one xdist group, so that there is one server: ``pytestmark = PROCESSES``.
"""

import contextlib
import multiprocessing
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import run

PROCESSES = pytest.mark.xdist_group("processes")
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["incseg.cli", "incseg.engine.assembly", "command_line", "samples"])
PATIENCE = 120  # seconds


@dataclass(frozen=True)
class Ended:
    """How the processes of a command ended, and what each of them said."""

    codes: list[int | None]
    out: list[str]
    errors: list[str]


def start(
    folder: Path, *arguments: str | Path, devices: int = 1, before: Callable[[], None] | None = None
) -> "Running":
    """Begin ``incseg ARGUMENTS`` in as many processes as it has devices; ``before`` is called first in each of them."""
    words = [*map(str, arguments), *(["--engine.devices", str(devices)] if devices > 1 else [])]
    port = _free_port() if devices > 1 else None
    processes = [
        SERVER.Process(target=_join_run, args=(rank, port, words, folder / f"said-{rank}", before))
        for rank in range(devices)
    ]
    for process in processes:
        process.start()
    return Running(folder, processes)


@dataclass(frozen=True)
class Running:
    """The processes of a command."""

    folder: Path
    processes: Sequence[ForkServerProcess]

    def wait(self) -> Ended:
        """Until all have ended."""
        for process in self.processes:
            process.join(timeout=PATIENCE)
        said = [
            [(self.folder / f"said-{rank}.{kind}").read_text() for rank in range(len(self.processes))]
            for kind in ("out", "err")
        ]
        return Ended([process.exitcode for process in self.processes], *said)


def spawn(worker: Callable[[int, str], None], folder: Path, number: int) -> None:
    """Call ``worker(rank, folder)`` in so many processes; one that fails fails the test."""
    processes = [SERVER.Process(target=worker, args=(rank, str(folder))) for rank in range(number)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=PATIENCE)
    assert [process.exitcode for process in processes] == [0] * number


def _join_run(rank: int, port: int | None, words: list[str], said: Path, before: Callable[[], None] | None) -> None:
    if port is not None:
        os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    if before is not None:
        before()
    streams: Any = [said.with_suffix(f".{kind}").open("w") for kind in ("out", "err")]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        code = run(*words)
    for stream in streams:
        stream.close()
    os._exit(code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
