"""What the files of a dataset contain, as a SHA-256 each, recorded by ``incseg data check --full``.

The record lies in the user's cache, one per folder of data. It is used as long as size and time of a file are those it
was made for; a run that begins or resumes then knows contents without reading anything.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import platformdirs

from incseg.checksums import sealed, unsealed
from incseg.errors import DamagedError
from incseg.files import replacing

Record = Mapping[str, str]  # path → "SIZE TIME SHA-256"


def stamp(path: Path) -> str:
    """Size and time of a file."""
    facts = path.stat()
    return f"{facts.st_size} {facts.st_mtime_ns}"


def content_of(path: Path) -> str:
    """Size, time and SHA-256 of a file."""
    with path.open("rb") as file:
        return f"{stamp(path)} {hashlib.file_digest(file, 'sha256').hexdigest()}"


def recorded(root: Path | None) -> Record:
    """What is known of the files of a folder; nothing where they were never read, or the record is damaged."""
    if root is None:
        return {}
    try:
        return dict(unsealed(json.loads(_record_of(root).read_text(encoding="utf-8")), root)["files"])
    except (OSError, ValueError, DamagedError, KeyError, TypeError):
        return {}


def record(root: Path, contents: Record) -> None:
    """Replace what is known of the files of a folder."""
    with replacing(_record_of(root)) as temporary:
        temporary.write_text(json.dumps(sealed({"files": dict(contents)})), encoding="utf-8")


def with_content(path: Path, known: Record) -> str:
    """Size and time of a file, with its SHA-256 where that was recorded for this size and time."""
    seen, found = stamp(path), known.get(str(path.absolute()), "")
    return found if found.startswith(f"{seen} ") else seen


def is_same(one: str, other: str) -> bool:
    """Whether two stamps are of the same data: by content where both know it, else by size and time."""
    first, second = one.split(), other.split()
    return first[2:] == second[2:] if len(first) == len(second) == 3 else first[:2] == second[:2]


def contents_of(paths: Iterable[Path]) -> dict[str, str]:
    """Of every file that can be read, what :func:`record` takes."""
    found = {}
    for path in paths:
        with suppress(OSError):
            found[str(path.absolute())] = content_of(path)
    return found


def _record_of(root: Path) -> Path:
    name = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:32]
    return Path(platformdirs.user_cache_dir("incseg")) / "contents" / f"{name}.json"
