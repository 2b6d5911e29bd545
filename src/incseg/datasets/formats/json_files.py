"""JSON written by others: read whole, and checked field by field with sentences that name the file."""

import json
from pathlib import Path
from typing import Any

from incseg.errors import InputError
from incseg.files import read_text


def read_json(path: Path) -> Any:
    """The content of a JSON file; a byte order mark does no harm."""
    try:
        return json.loads(read_text(path).removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}); is it complete?"
        ) from None


def head_of(path: Path, length: int = 4096) -> str:
    """The beginning of a text file, enough to recognise most formats; what is no text gives nothing."""
    try:
        with path.open("rb") as file:
            return file.read(length).decode("utf-8", errors="replace")
    except OSError:
        return ""


def field_of(entry: Any, name: str, where: object) -> Any:
    """A field that must be there."""
    if not isinstance(entry, dict) or name not in entry:
        raise InputError(f"{where} has no '{name}'.")
    return entry[name]
