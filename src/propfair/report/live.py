"""The page while runs go on: a small server that reads, and can do nothing else."""

import hashlib
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from propfair.errors import ConfigError
from propfair.report.document import make_document
from propfair.report.page import embed, render
from propfair.runs.reading import read_runs

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class LiveDocument:
    """The document of some places, made again only when a file below them has changed."""

    def __init__(self, places: Sequence[Path], title: str | None = None) -> None:
        self._places, self._title = tuple(places), title
        self._lock = threading.Lock()
        self._seen = ""
        self._document: dict[str, Any] = {}

    def read(self) -> tuple[dict[str, Any], str]:
        """The document, and a tag that changes when it does."""
        with self._lock:
            seen = self._signature()
            if seen != self._seen:
                runs, problems = read_runs(self._places)
                self._document, self._seen = make_document(runs, problems, self._title), seen
            return self._document, self._seen

    def _signature(self) -> str:
        """Names, sizes and times of all files that a run is read from."""
        digest = hashlib.sha256()
        for place in self._places:
            for path in sorted([*place.rglob("*.json"), *place.rglob("*.parquet")]):
                try:
                    found = path.stat()
                except FileNotFoundError:  # a checkpoint that was pruned just now
                    continue
                digest.update(f"{path}\0{found.st_mtime_ns}\0{found.st_size}\n".encode())
        return digest.hexdigest()[:32]


def make_server(live: LiveDocument, host: str, port: int, interval: float) -> ThreadingHTTPServer:
    """A server of the page (/) and of its data (/data.json); GET and HEAD alone.

    Args:
        live: what it serves.
        host: to listen on.
        port: to listen on; 0 for any free one.
        interval: seconds between the page's questions.
    """

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "propfair", ""
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if not self._for_us():
                self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"this server answers to its own name only\n")
                return
            path = self.path.partition("?")[0]
            if path == "/":
                document, _ = live.read()
                page = render(document, live_interval=interval).encode()
                self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page)
            elif path == "/data.json":
                document, tag = live.read()
                if self.headers.get("If-None-Match") == f'"{tag}"':
                    self._answer(HTTPStatus.NOT_MODIFIED, "application/json", b"", tag)
                else:
                    self._answer(HTTPStatus.OK, "application/json", embed(document).encode(), tag)
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here but / and /data.json\n")

        do_HEAD = do_GET

        def _for_us(self) -> bool:
            """Refuse names that a hostile page has pointed at this address (DNS rebinding)."""
            name = self.headers.get("Host", "").rsplit(":", 1)[0].strip("[]").lower()
            return name in {*_LOOPBACK, host.lower()}

        def _answer(self, status: HTTPStatus, kind: str, body: bytes, tag: str | None = None) -> None:
            self.send_response(status)
            for header, value in _HEADERS.items():
                self.send_header(header, value)
            if tag is not None:
                self.send_header("ETag", f'"{tag}"')
            if status != HTTPStatus.NOT_MODIFIED:
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name the base class uses
            """A watcher does not fill the terminal."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise ConfigError(
            f"can't listen on {host}:{port}: {error.strerror or error}. Choose another --port, or --port 0 for any."
        ) from None
    server.daemon_threads = True
    return server
