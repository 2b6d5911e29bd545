"""Libraries that only some formats need."""

import importlib.util

from incseg.errors import InputError


def require(module: str, extra: str, what: str) -> None:
    """Refuse to read a format whose library is not installed."""
    if importlib.util.find_spec(module) is None:
        raise InputError(f"reading {what} needs {module}: pip install 'incseg[{extra}]'.")
