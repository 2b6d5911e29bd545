"""Archives: fetched in as many goes as it takes, checked, and unpacked so that nothing lands elsewhere."""

import gzip
import hashlib
import http.client
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from incseg.errors import InputError

Progress = Callable[[int, int], None]  # (bytes done, of)
BLOCK = 1 << 20
ATTEMPTS = 5  # in a row that bring nothing, before giving up
PAUSE = 1.0  # seconds between such attempts
TIMEOUT = 30  # seconds without a byte
FAULTS = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError)


@dataclass(frozen=True)
class Archive:
    """A file of the web with the checksum its readers agree on; ``size`` is for the person who has to wait."""

    url: str
    md5: str
    size: str

    @property
    def name(self) -> str:
        """What the file is called."""
        return self.url.rsplit("/", 1)[-1]


def fetch(archive: Archive, folder: Path, progress: Progress) -> Path:
    """The archive in a folder: as it lies there, or downloaded, in several goes if need be; its checksum is right."""
    path = folder / archive.name
    expected = f"have the checksum of {archive.url} (md5 {archive.md5})"
    if path.is_file():
        if md5_of(path, progress) != archive.md5:
            raise InputError(f"{path} does not {expected}: delete it, and run the same command again to fetch it.")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    _download(archive, partial, progress)
    if md5_of(partial, progress) != archive.md5:
        partial.unlink()
        raise InputError(f"what arrived for {path} did not {expected}: run the same command again to fetch it anew.")
    return partial.replace(path)


def _download(archive: Archive, partial: Path, progress: Progress) -> None:
    """Append to what an earlier go has left, until all is there."""
    failures, reason = 0, ""
    while failures < ATTEMPTS:
        before = _size(partial)
        try:
            if _go_on(archive.url, partial, progress):
                return
            reason = "the connection broke off"
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                sentence = f"{archive.url} answers {error.code} {error.reason}. {_by_hand(archive, partial)}"
                raise InputError(sentence) from None
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        if _size(partial) > before:
            failures = 0
        else:
            failures += 1
            time.sleep(PAUSE)
    raise InputError(
        f"{archive.url} cannot be fetched ({reason}): is this machine online? Run the same command again to go on "
        f"after the {_size(partial)} bytes that are here. {_by_hand(archive, partial)}"
    )


def _by_hand(archive: Archive, partial: Path) -> str:
    return (
        f"Or fetch that file ({archive.size}) on another machine, put it at {partial.with_suffix('')}, and run the "
        "same command again."
    )


def _go_on(url: str, partial: Path, progress: Progress) -> bool:
    """One request for what is still missing; whether that was all of it."""
    have = _size(partial)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True  # there is nothing after what we have
        raise
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0  # a server that cannot go on in the middle starts anew
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else 0
        with partial.open("ab" if have else "wb") as file:
            while block := response.read(BLOCK):
                file.write(block)
                have += len(block)
                progress(have, total)
    return not total or have >= total


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def md5_of(path: Path, progress: Progress) -> str:
    """The checksum datasets are published with."""
    digest, total, done = hashlib.md5(usedforsecurity=False), path.stat().st_size, 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            done += len(block)
            progress(done, total)
    return digest.hexdigest()


def unpack(path: Path, folder: Path, progress: Progress) -> None:
    """Put what a .zip or .tar archive holds into a folder, beside what is there; an archive with a fault is refused.

    A fault is a member that would land outside, leads there, is a device, or is damaged. Nothing is put into place
    before all was unpacked.
    """
    temporary = folder / f".{path.name}.unpacking"
    shutil.rmtree(temporary, ignore_errors=True)  # what an interrupted go has left
    temporary.mkdir(parents=True)
    try:
        with path.open("rb") as file:
            (_unzip if zipfile.is_zipfile(file) else _untar)(file, temporary, progress)
        for file_inside in (inside for inside in temporary.rglob("*") if inside.is_file()):
            target = folder / file_inside.relative_to(temporary)
            target.parent.mkdir(parents=True, exist_ok=True)
            file_inside.replace(target)
    except FAULTS as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be unpacked ({reason}): delete it and get it again.") from None
    finally:
        shutil.rmtree(temporary)


def _untar(file: BufferedReader, folder: Path, progress: Progress) -> None:
    total = Path(file.name).stat().st_size
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            archive.extract(member, folder, filter="data")
            progress(file.tell(), total)


def _unzip(file: BufferedReader, folder: Path, progress: Progress) -> None:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        total, done = sum(member.file_size for member in members), 0
        for member in members:
            outside = not (folder / member.filename).resolve().is_relative_to(folder.resolve())
            if outside or stat.S_ISLNK(member.external_attr >> 16):
                raise zipfile.BadZipFile(f"'{member.filename}' would lie outside the folder or is a link")
            archive.extract(member, folder)
            done += member.file_size
            progress(done, total)
