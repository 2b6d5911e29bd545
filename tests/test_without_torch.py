"""What comes back from a copy of the process."""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from incseg.errors import DamagedError
from incseg.without_torch import _in_a_copy


def refuse() -> None:
    raise DamagedError("no")


MODULE = """
import nothing_at_all.inside as absent
from nothing_at_all import Base

assert absent.Same is absent.Same

class Derived(Base[int], absent.deeper.Other):
    @absent.decorated
    @absent.decorated_with(1)
    def method(self, value: Base | None = absent.value) -> absent.deeper.Name:
        pass
"""


def print_and_use() -> str:
    os.write(1, b"not seen")
    names: dict[str, Any] = {}
    exec(MODULE, names)
    return str(names["Derived"].method.__name__)


def test_an_answer_and_a_refusal_come_back(capfd: pytest.CaptureFixture[str]) -> None:
    assert _in_a_copy(print_and_use, ["nothing_at_all"]) == ("method",)
    assert capfd.readouterr() == ("", "")
    assert "nothing_at_all" not in sys.modules
    refusal = _in_a_copy(refuse, [])
    assert isinstance(refusal, DamagedError)
    assert str(refusal) == "no"


@pytest.mark.parametrize("find", [lambda: 1 / 0, lambda: lambda: 3, lambda: sys.exit(2)])
def test_anything_else_is_left_to_the_process_that_goes_on(find: Callable[[], object]) -> None:
    assert _in_a_copy(find, []) is None


def test_an_answer_comes_back_where_the_ends_of_processes_are_ignored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as a parent may have left it
    try:
        assert _in_a_copy(lambda: 3, []) == (3,)
    finally:
        signal.signal(signal.SIGCHLD, before)
