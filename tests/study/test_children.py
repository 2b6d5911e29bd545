"""Commands in processes of their own: what they say, how they end, and that none is left behind."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from incseg.errors import TrainingError
from incseg.study import children
from incseg.study.children import Children
from processes import PATIENCE, PROCESSES, SERVER

pytestmark = PROCESSES


def command(folder: Path, program: str) -> list[str]:
    """A command of ours that runs this program, as a plugin, before it does anything else."""
    plugin = folder / "program.py"
    plugin.write_text(f"import os, signal, sys, time\n{program}")
    return ["list", "methods", "--plugin", str(plugin)]


def test_a_command_is_told_its_environment_and_speaks_to_its_log(tmp_path: Path) -> None:
    words = command(
        tmp_path, "print(os.environ['WORD'], sys.argv[1:], flush=True); os.system('echo a program too >&2')"
    )
    (tmp_path / "log").write_text("said before\n")
    with Children().heard() as started:
        process = started.start(words, tmp_path / "log", {"WORD": "hello"})
        process.join(PATIENCE)
    assert process.exitcode == 0
    said = (tmp_path / "log").read_text()
    assert said.startswith(f"said before\nhello {words}\na program too\n")
    assert "mib" in said
    assert "WORD" not in os.environ


@pytest.mark.skipif(sys.platform != "linux", reason="only there processes are copied")
def test_copies_use_their_own_number_of_threads_say_goodbye_and_leave_no_file_open(tmp_path: Path) -> None:
    words = command(
        tmp_path,
        "import atexit, torch; atexit.register(print, 'goodbye')\nprint(torch.get_num_threads()); raise SystemExit",
    )
    numbers = (3, 1, 2)
    open_files = []
    with Children().heard() as started:
        for number in numbers:
            started.start(words, tmp_path / "log", {"OMP_NUM_THREADS": str(number)}).join(PATIENCE)
            open_files.append(len(list(Path("/proc/self/fd").iterdir())))
    assert open_files[1] == open_files[2]
    said = [line for line in (tmp_path / "log").read_text().splitlines() if line in ("goodbye", *map(str, numbers))]
    assert said == ["3", "goodbye", "1", "goodbye", "2", "goodbye"]


def test_a_child_that_ends_while_it_is_told_to_stop_is_no_error() -> None:
    def gone(*_: int) -> None:
        raise ProcessLookupError

    started = Children()
    started._running = [cast(BaseProcess, SimpleNamespace(pid=1, exitcode=None))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "kill", gone)
        started._pass_on(signal.SIGTERM, None)
    assert started.asked_to_stop


def _where_cuda_has_begun(*given: Any) -> None:
    children._cuda_has_begun = lambda: True
    children._run(*given)


def test_a_copy_that_could_not_use_cuda_begins_anew(tmp_path: Path) -> None:
    words = command(tmp_path, "print(sys.orig_argv[1:], flush=True); os._exit(3)")
    process = SERVER.Process(target=_where_cuda_has_begun, args=(words, tmp_path / "log", {}, False))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 3
    assert (tmp_path / "log").read_text() == f"{['-P', '-m', 'incseg', *words]}\n"


def test_the_exit_code_is_that_of_the_command(tmp_path: Path) -> None:
    with Children().heard() as started:
        process = started.start(["list", "nothing"], tmp_path / "log", {})
        process.join(PATIENCE)
    assert process.exitcode == 2
    assert "nothing" in (tmp_path / "log").read_text()


def test_a_child_is_asked_to_stop_when_its_parent_is(tmp_path: Path) -> None:
    """The child tells its parent, which this process stands for, to stop; the answer comes back to the child."""
    words = command(
        tmp_path,
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(75))\n"
        f"os.kill({os.getpid()}, signal.SIGTERM); signal.pause()",
    )
    with Children().heard() as started:
        process = started.start(words, tmp_path / "log", {})
        process.join(PATIENCE)
        assert process.exitcode == 75
    assert started.asked_to_stop


def test_no_child_outlives_what_it_was_started_for(tmp_path: Path) -> None:
    with pytest.raises(TrainingError), Children().heard() as started:  # noqa: PT012 - the child is the test
        process = started.start(command(tmp_path, "time.sleep(60)"), tmp_path / "log", {})
        raise TrainingError("another one failed")
    assert process.exitcode == -signal.SIGTERM


def is_gone(process: int) -> bool:
    """Whether a process has ended, though perhaps nobody has asked for its exit code."""
    try:
        return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="only there processes are copied")
def test_what_is_copied_leaves_signals_to_the_copies_imports_nothing_from_the_working_folder_and_ends_with_its_study(
    tmp_path: Path,
) -> None:
    (working := tmp_path / "working").mkdir()
    (working / "tyro.py").write_text("raise SystemExit('a module of the working folder was imported')")
    words = command(tmp_path, "print(os.getpid(), os.getppid(), flush=True); time.sleep(60)")
    study = tmp_path / "study.py"
    study.write_text(f"""
if __name__ == "__main__":
    from pathlib import Path
    from incseg.study import children
    from incseg.study.children import Children
    children.IMPORTED = ("incseg.study.copied", "incseg.cli")  # others take seconds
    running, stopped = Children(), Children()
    process = running.start({words}, Path("log"), {{}})
    stopped.asked_to_stop = True
    late = stopped.start({words}, Path("late"), {{}})
    late.join()
    print(late.exitcode, flush=True)
    process.join()
""")
    running = subprocess.Popen([sys.executable, study], cwd=working, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == f"{-signal.SIGTERM}\n", "asked to stop while it begins, it does"
    log, deadline = working / "log", time.monotonic() + PATIENCE
    while not (log.exists() and log.read_text().endswith("\n")) and time.monotonic() < deadline:
        time.sleep(0.05)
    child, copied = map(int, log.read_text().split())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(copied, number)
    time.sleep(0.1)
    assert (is_gone(copied), is_gone(child)) == (False, False)
    running.kill()
    running.wait()
    while not (is_gone(copied) and is_gone(child)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (is_gone(copied), is_gone(child)) == (True, True)


@pytest.mark.skipif(sys.platform != "linux", reason="only there processes are copied")
def test_only_what_is_copied_leaves_signals_to_others() -> None:
    program = (
        "import signal, incseg.study.copied\n"
        "assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()\n"
        "signal.raise_signal(signal.SIGTERM)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGTERM
