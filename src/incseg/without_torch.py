"""Answers that need our own modules, but nothing of PyTorch, whose import takes seconds: found without it.

Methods and networks are declared in modules that import PyTorch. Which settings a method has, whether two can be
summed, which encoders exist follows from these declarations alone. So they are imported in a copy of this process in
which every name of PyTorch stands for nothing, and the very code that would refuse later refuses there, in the same
words.
"""

import gc
import importlib.abc
import os
import pickle
import sys
import warnings
from abc import ABCMeta
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, TypeVar

from incseg.errors import InputError
from incseg.registry import METHODS

ABSENT = ("torch", "torchvision", "huggingface_hub", "wandb")  # the last two because timm imports them
Answer = TypeVar("Answer")


def without_torch(find: Callable[[], Answer]) -> Answer:
    """What a function returns or refuses. Where it cannot do so without PyTorch, PyTorch is imported and it runs here.

    It must change nothing, as it runs in another process; what it returns is pickled. Methods of other packages are
    never imported without PyTorch, since what they do with it is not known.
    """
    if "torch" in sys.modules or not hasattr(os, "fork") or entry_points(group=METHODS):
        return find()
    outcome = _in_a_copy(find, ABSENT)
    if isinstance(outcome, InputError):
        raise outcome
    return find() if outcome is None else outcome[0]


def _in_a_copy(find: Callable[[], Answer], absent: Sequence[str]) -> tuple[Answer] | InputError | None:
    """What a function returns, as the one item of a tuple, or refuses, in a copy of this process; None: neither."""
    here, there = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # threads, of which some Pythons warn, are not used in the copy
        copy = os.fork()
    if copy == 0:
        with suppress(BaseException), os.fdopen(there, "wb") as pipe:  # whatever it is, it will happen again here
            pipe.write(pickle.dumps(_outcome(find, absent)))
        os._exit(0)
    os.close(there)
    with os.fdopen(here, "rb") as pipe:
        written = pipe.read()
    with suppress(ChildProcessError):  # where SIGCHLD is ignored, the system has seen to it
        os.waitpid(copy, 0)
    return pickle.loads(written) if written else None


def _outcome(find: Callable[[], Answer], absent: Sequence[str]) -> tuple[Answer] | InputError:
    gc.disable()  # looking for garbage among thousands of new classes takes longer than the copy lives
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    sys.meta_path.insert(0, _Finder(absent))
    try:
        return (find(),)
    except InputError as refusal:
        return refusal


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module of absent packages."""

    def __init__(self, absent: Sequence[str]) -> None:
        self.absent = absent

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        """Called by ``import``."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.absent else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module that has every name."""
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to do."""


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> "_AnyName":
        self.__dict__[name] = made = _stand_in(name)  # once: thousands of classes are derived from nn.Module
        return made


class _AnyName(ABCMeta):
    """The type of a stand-in. A stand-in is a class, since others are derived from it or named in annotations."""

    def __getattr__(cls, name: str) -> "_AnyName":
        return _stand_in(name)


class _StandIn(metaclass=_AnyName):
    def __new__(cls, *given: Any, **_: Any) -> Any:
        """Called on a function alone it may be a decorator, which leaves it as it is."""
        return given[0] if len(given) == 1 and callable(given[0]) else cls

    def __class_getitem__(cls, _: object) -> "_AnyName":
        return cls


def _stand_in(name: str) -> _AnyName:
    if name.startswith("__"):  # Python asks for these, and then does without
        raise AttributeError(name)
    return _AnyName(name, (_StandIn,), {})
