"""Every file of a run carries its own checksum and the version of its format, so that damage is noticed.

A checksum inside the file cannot be out of step with it, whatever moment a run is killed at, and it travels when the
file is copied. CRC-32 finds every flipped bit; it guards against accidents, not against forgery. Files of versions that
wrote no checksum have neither key and are read as they are.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from incseg.errors import DamagedError

FORMAT = 1  # raise it when a reader of the version before would misread a file
KEYS = ("format", "checksum")
COMMENT = "# checksum "  # how a text file begins


def checksum(data: bytes) -> str:
    """CRC-32 in hexadecimal."""
    return f"{zlib.crc32(data):08x}"


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that are to be written as JSON, with the version of the format and a checksum of it all."""
    content = {**values, "format": FORMAT}
    return {**content, "checksum": checksum(_canonical(content))}


def unsealed(values: object, where: Path | str) -> dict[str, Any]:
    """What was given to :func:`sealed`, after a look at the checksum."""
    if not isinstance(values, dict):
        raise DamagedError(f"{where} is damaged: it does not hold what incseg writes there.")
    if not any(key in values for key in KEYS):
        return values
    content = {key: value for key, value in values.items() if key != "checksum"}
    if isinstance(version := values.get("format"), int) and version > FORMAT:
        raise DamagedError(f"{where} was written by a newer version of incseg (format {version}): update incseg.")
    if values.get("checksum") != checksum(_canonical(content)):
        raise DamagedError(f"{where} is damaged: its content does not match its checksum.")
    return {key: value for key, value in content.items() if key != "format"}


def sealed_text(text: str) -> str:
    """Text after a line that holds its checksum, as a comment of YAML; first, so that a text cut off still has it."""
    return f"{COMMENT}{checksum(text.encode())}\n{text}"


def require_intact_text(text: str, where: Path | str) -> None:
    """Refuse a text that is not what :func:`sealed_text` made; one without a checksum is older."""
    seal, _, body = text.partition("\n")
    if seal.startswith(COMMENT) and seal != f"{COMMENT}{checksum(body.encode())}":
        raise DamagedError(
            f"{where} was changed or is damaged: its content does not match its checksum; put the original back, or "
            "delete it and train again with the original command, which writes it anew."
        )


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
