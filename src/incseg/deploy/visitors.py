"""What strangers may ask of ``incseg serve``: how large, how often, how long; and that nothing of theirs is kept."""

import asyncio
import json
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Timer
from typing import Any, TypeVar

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
    uploading: float = 120.0
    """Seconds in which an upload must be complete."""
    kept: float = 120.0
    """Seconds after which pictures made from an upload are deleted, as a browser fetches them after the answer; an
    upload itself is deleted when its answer is given."""
    _folder: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="incseg-serve-", ignore_cleanup_errors=True)
    )
    _asked: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    _expected: Counter[str] = field(default_factory=Counter)
    """How many visitors are to ask for what is in an uploaded file."""
    _timer: Timer | None = None
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
        except FileNotFoundError:
            raise InputError("this image is no longer here, as its answer was given: upload it again.") from None
        except UnidentifiedImageError:
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

    def expect(self, uploads: Sequence[str]) -> None:
        """Note files that were uploaded; equal images of several visitors are one file."""
        with self._lock:
            self._expected.update(uploads)
        self._clear_later()

    def delete(self, upload: Path) -> None:
        """Delete an upload of this page, unless another visitor who sent the same image has no answer yet."""
        with self._lock:
            self._expected -= Counter([str(upload)])
            is_expected = self._expected[str(upload)] > 0
        if not is_expected and self.folder.resolve() in upload.resolve().parents:
            with suppress(OSError):
                remove(upload)

    def clear(self) -> None:
        """Delete what no browser needs any more."""
        for path in self.folder.rglob("*"):
            with suppress(OSError):  # another request may have deleted it
                if path.is_file() and time.time() - path.stat().st_mtime >= self.kept:
                    remove(path)
                    self._expected.pop(str(path), None)

    def _clear_later(self) -> None:
        """See to it that files are deleted in time also if nobody else comes."""

        def clear() -> None:
            self._timer = None
            self.clear()
            if any(path.is_file() for path in self.folder.rglob("*")):
                self._clear_later()

        with self._lock:
            if self._timer is None:
                self._timer = Timer(self.kept + 1, clear)
                self._timer.daemon = True
                self._timer.start()

    def close(self) -> None:
        """Delete everything."""
        if self._timer is not None:
            self._timer.cancel()
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._folder.cleanup()


class UploadLimit:
    """Between the web server and the page (ASGI): gives up on a request whose body does not come in time, and notes
    what was uploaded."""

    def __init__(self, app: Callable[..., Any], visitors: Visitors):
        self.app, self.visitors = app, visitors

    async def __call__(self, scope: Any, receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        """Pass a request on; once its body is complete, the page may take its time."""
        deadline = time.monotonic() + self.visitors.uploading
        is_complete = is_late = has_answered = False

        async def receive_in_time() -> Any:
            nonlocal is_complete, is_late
            if is_complete or scope["type"] != "http":
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                is_late = is_complete = True
                return {"type": "http.disconnect"}
            is_complete = not message.get("more_body", False)
            return message

        async def send_if_in_time(message: Any) -> None:
            nonlocal has_answered
            if not is_late:
                has_answered = True
                if scope["type"] == "http" and scope["path"].endswith("/upload"):
                    self.visitors.expect(_uploaded(message))
                await send(message)

        try:
            await self.app(scope, receive_in_time, send_if_in_time)
        except Exception:
            if not is_late:
                raise
        if is_late and not has_answered:
            headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 408, "headers": headers})
            await send({"type": "http.response.body", "body": b"this upload took too long."})


def _uploaded(message: Any) -> list[str]:
    """The files that an answer to an upload names; none in an answer that refuses it."""
    try:
        named = json.loads(message.get("body", b""))
    except ValueError:
        return []
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
