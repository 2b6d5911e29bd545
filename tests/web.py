"""A web server for the tests: it can go on in the middle of a file, and break off wherever it is told to."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Web:
    """Files by name, and how the server behaves."""

    files: dict[str, bytes]
    breaks_after: int | None = None
    """Bytes after which every answer breaks off."""
    knows_ranges: bool = True
    requests: list[str] = field(default_factory=list)
    """The ranges asked for, in order; empty for whole files."""
    address: str = ""

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        content = self.files.get(handler.path.strip("/"))
        asked = handler.headers.get("Range", "")
        self.requests.append(asked)
        if content is None:
            handler.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.knows_ranges else 0
        if start and start >= len(content):
            handler.send_error(416)
            return
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start:][: self.breaks_after])


@contextmanager
def serving(web: Web) -> Iterator[Web]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            web.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        web.address = f"http://127.0.0.1:{server.server_port}"
        yield web
        server.shutdown()
