"""Archives: downloaded, resumed where a connection broke off, checked and unpacked.

Checksums are torchvision's. Its ``download_url`` starts a file of gigabytes from the beginning whenever a connection
breaks; ours continues it. Its ``extract_archive`` reports no progress, and of a zip file it renames members that would
land outside the folder and unpacks links as files; ours refuses such archives as a whole.
"""

import gzip
import http.client
import lzma
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from incseg.datasets.source import ReportProgress
from incseg.errors import InputError

BLOCK = 1 << 20
ATTEMPTS = 5  # in a row without a new byte, before giving up
PAUSE = 1.0  # seconds between such attempts
TIMEOUT = 30  # seconds without a byte
DAMAGES = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
# More than any archive that is prepared here has: Cityscapes is 11 GB, ADE20K 45 000 files, and images hardly shrink.
MOST_BYTES, MOST_FILES, MOST_RATIO = 50 * 10**9, 200_000, 100
ENCRYPTED = 1  # a bit of a member's flags
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
HARMLESS = 10**8  # bytes: below this, how well an archive was compressed does not matter


@dataclass(frozen=True)
class Archive:
    """A file to download, with its published checksum; ``size`` is shown to the user."""

    url: str
    md5: str
    size: str

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rsplit("/", 1)[-1]

    def is_in(self, file: Path) -> bool:
        """Whether a file is this archive, whole."""
        from torchvision.datasets.utils import check_integrity  # noqa: PLC0415 - it takes seconds to import

        return bool(check_integrity(file, self.md5))


def fetch(archive: Archive, folder: Path, report_progress: ReportProgress) -> Path:
    """The path of an archive whose checksum is right: the file in the folder, or else downloaded to it."""
    path = folder / archive.name
    expected = f"have the checksum of {archive.url} (md5 {archive.md5})"
    if path.is_file():
        if not archive.is_in(path):
            raise InputError(f"{path} does not {expected}: delete it, and run the same command again to download it.")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    _download(archive, partial, report_progress)
    if not archive.is_in(partial):
        partial.unlink()
        raise InputError(f"what arrived for {path} did not {expected}: run the same command to download it again.")
    return partial.replace(path)


def _download(archive: Archive, partial: Path, report_progress: ReportProgress) -> None:
    """Append to what earlier attempts have downloaded until the file is complete."""
    failures, reason = 0, ""
    while failures < ATTEMPTS:
        before = _size(partial)
        try:
            if _continue_download(archive.url, partial, report_progress):
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
        f"{archive.url} cannot be downloaded ({reason}): is this machine online? Run the same command again to "
        f"continue after the {_size(partial)} bytes that are here. {_by_hand(archive, partial)}"
    )


def _by_hand(archive: Archive, partial: Path) -> str:
    return (
        f"Or download that file ({archive.size}) on another machine, put it at {partial.with_suffix('')}, and run the "
        "same command again."
    )


def _continue_download(url: str, partial: Path, report_progress: ReportProgress) -> bool:
    """One request for the missing bytes; returns whether the file is complete now."""
    have = _size(partial)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True  # the server has no byte after those we have
        raise
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0  # the server ignored the range and sends the whole file
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else 0
        with partial.open("ab" if have else "wb") as file:
            while block := response.read(BLOCK):
                file.write(block)
                have += len(block)
                report_progress(have, total)
    return not total or have >= total


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def unpack(path: Path, folder: Path, report_progress: ReportProgress) -> None:
    """Unpack a .zip or .tar archive into a folder, beside the files that are there already.

    An archive is refused if a member is damaged, encrypted, a device, would land outside the folder, or is a link to
    outside, and if more would come out of it than can be meant. Files are moved to their places only after all members
    were unpacked.
    """
    temporary = folder / f".{path.name}.unpacking"
    shutil.rmtree(temporary, ignore_errors=True)  # left by an interrupted attempt
    temporary.mkdir(parents=True)
    try:
        with path.open("rb") as file:
            (_unzip if zipfile.is_zipfile(file) else _untar)(file, temporary, report_progress)
        for file_inside in (inside for inside in temporary.rglob("*") if inside.is_file()):
            target = folder / file_inside.relative_to(temporary)
            target.parent.mkdir(parents=True, exist_ok=True)
            file_inside.replace(target)
    except DAMAGES as error:
        reason = "it is no archive" if isinstance(error, tarfile.ReadError) else " ".join(str(error).split())
        raise InputError(f"{path} cannot be unpacked ({reason}): delete it and download it again.") from None
    finally:
        shutil.rmtree(temporary)


def _untar(file: BufferedReader, folder: Path, report_progress: ReportProgress) -> None:
    total = Path(file.name).stat().st_size
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        files = unpacked = 0
        for member in archive:
            files, unpacked = files + 1, unpacked + member.size
            _refuse_bomb(Path(file.name), files, unpacked)
            archive.extract(member, folder, filter="data")
            report_progress(file.tell(), total)


def _unzip(file: BufferedReader, folder: Path, report_progress: ReportProgress) -> None:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        total, done = sum(member.file_size for member in members), 0
        _refuse_bomb(Path(file.name), len(members), total)
        for member in members:
            _refuse_unreadable(member)
            outside = not (folder / member.filename).resolve().is_relative_to(folder.resolve())
            if outside or stat.S_ISLNK(member.external_attr >> 16):
                raise zipfile.BadZipFile(f"'{member.filename}' would lie outside the folder or is a link")
            archive.extract(member, folder)
            done += member.file_size
            report_progress(done, total)


def _refuse_bomb(path: Path, files: int, unpacked: int) -> None:
    """Refuse what would fill the disk. Python never unpacks more of a member than its header claims."""
    packed = path.stat().st_size
    if files > MOST_FILES or unpacked > MOST_BYTES or unpacked > max(HARMLESS, MOST_RATIO * packed):
        raise InputError(
            f"{path} is not unpacked: {files} files, {unpacked / 1e9:.1f} GB, would come out of {packed / 1e6:.1f} MB. "
            f"At most {MOST_FILES} files, {MOST_BYTES / 1e9:.0f} GB and {MOST_RATIO} times its own size are accepted."
        )


def _refuse_unreadable(member: zipfile.ZipInfo) -> None:
    if member.flag_bits & ENCRYPTED:
        raise zipfile.BadZipFile(f"'{member.filename}' is encrypted")
    if member.compress_type not in METHODS:
        raise zipfile.BadZipFile(f"'{member.filename}' is compressed by a method that Python does not have")
