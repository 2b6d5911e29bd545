"""The exceptions that speak to the person at the keyboard."""

import difflib
from collections.abc import Callable, Iterable

Note = Callable[[str], None]  # hears, in a sentence, of a file that cannot be read and is left out


class InputError(Exception):
    """What was given cannot be used; the message says what is accepted and what to do. Exit code 2, no traceback."""


class DamagedError(InputError):
    """A file is not what was written: bits flipped, cut short, or something else put in its place."""


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """Asked to stop before the end, by a signal or a time limit; the same command resumes."""

    EXIT_CODE = 75  # "try again later" in sysexits.h


class TrainingError(Exception):
    """Training cannot continue; the message says why and what may help. Exit code 1, no traceback."""


class LocalError(TrainingError):
    """One of several processes cannot continue, for a reason of its own: it says so itself, whichever it is."""


class IncompleteError(Exception):
    """Some of what was asked for could not be done, the rest is; the message says what. Exit code 1, no traceback."""


def refuse(sentence: str) -> None:
    """The :data:`Note` that leaves nothing out."""
    raise InputError(sentence)


def closest(given: str, accepted: Iterable[str]) -> str:
    """A hint for a misspelt name: ``" Did you mean 'mib'?"``, or nothing when nothing is close."""
    matches = difflib.get_close_matches(given, list(accepted), n=1)
    return f" Did you mean '{matches[0]}'?" if matches else ""
