"""What strangers may ask of ``incseg serve``: how large, how often, how long; and that nothing of theirs is kept."""

import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TypeVar

from PIL import Image, UnidentifiedImageError

from incseg.errors import InputError
from incseg.files import remove

Result = TypeVar("Result")
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF")
REMEMBERED = 10_000  # addresses: a stranger with many cannot fill the memory


@dataclass
class Visitors:
    """The limits of a page, and the folder in which it keeps uploads and pictures as long as a browser needs them."""

    most_pixels: int = 25_000_000
    per_minute: int = 60
    """Images from one address."""
    waiting: int = 20
    """Requests at the same time; the page refuses more."""
    seconds: float = 60.0
    """For one image, including its wait for the images before."""
    kept: float = 120.0
    """Seconds after which an upload and pictures made from it are deleted: a browser fetches them after the answer."""
    _folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="incseg-serve-", ignore_cleanup_errors=True)
    )
    _asked: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    _lock: Lock = field(default_factory=Lock)
    _worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=1))

    @property
    def folder(self) -> Path:
        """Where uploads lie; it is deleted with all it holds when the page is closed."""
        return Path(self._folder.name)

    def admit(self, address: str) -> None:
        """Refuse an address that asks too often."""
        now = time.monotonic()
        with self._lock:
            if len(self._asked) > REMEMBERED:
                self._asked.clear()
            times = self._asked[address]
            while times and now - times[0] > 60:
                times.popleft()
            if len(times) >= self.per_minute:
                raise InputError(
                    f"at most {self.per_minute} images a minute are taken from one address: wait a little."
                )
            times.append(now)

    def check_upload(self, file: Path) -> None:
        """Refuse what is not an upload of this page, or by its header no image or too large, before it is decoded."""
        if self.folder.resolve() not in file.resolve().parents:
            raise InputError("this page takes images that were uploaded to it, not paths.")
        try:
            with Image.open(file, formats=FORMATS) as image:
                self.check_size(image)
        except (UnidentifiedImageError, FileNotFoundError):
            accepted = ", ".join(FORMATS)
            raise InputError(f"this file is not an image, or of a kind that cannot be read: use {accepted}.") from None

    def check_size(self, image: Image.Image) -> None:
        """Refuse an image with too many pixels."""
        if image.width * image.height > self.most_pixels:
            raise InputError(
                f"this image is {image.width}×{image.height}: this page takes at most "
                f"{self.most_pixels / 1_000_000:g} million pixels; use 'incseg predict' for larger images."
            )

    def in_time(self, work: Callable[[], Result]) -> Result:
        """Do one thing after another, and give up on one that takes too long."""
        future = self._worker.submit(work)
        try:
            return future.result(timeout=self.seconds)
        except TimeoutError:
            future.cancel()  # if it has not begun
            raise InputError(
                f"this took longer than {self.seconds:g} seconds: try a smaller image, or use 'incseg predict'."
            ) from None
        finally:
            self.clear()

    def clear(self) -> None:
        """Delete what no browser needs any more."""
        for path in self.folder.rglob("*"):
            with suppress(OSError):  # another request may have deleted it
                if path.is_file() and time.time() - path.stat().st_mtime >= self.kept:
                    remove(path)

    def close(self) -> None:
        """Delete everything."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._folder.cleanup()
