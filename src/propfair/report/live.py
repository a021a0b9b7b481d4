"""The page while runs go on: a small server that reads, and can do nothing else.

On this machine alone it answers to its own name only. On an address that others reach, it answers to those who know the
token in the address that `propfair watch` prints.
"""

import hashlib
import hmac
import math
import os
import re
import secrets
import socket
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from propfair.errors import ConfigError
from propfair.report.document import make_document
from propfair.report.page import embed, render
from propfair.runs.reading import Problem, read_runs

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EVERYWHERE = ("", "0.0.0.0", "::")
_SECONDS = 10.0  # for a client to say what it wants
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
                self._document, self._seen = self._make(), seen
            return self._document, self._seen

    def _make(self) -> dict[str, Any]:
        """A run that the page can't show is named on it and left out; the others are shown."""
        runs, problems = read_runs(self._places)
        try:
            return make_document(runs, problems, self._title)
        except Exception:
            shown = []
            for run in runs:
                try:
                    make_document([run], [])
                    shown.append(run)
                except Exception as error:
                    problems.append(Problem(Path(run.where), f"it can't be shown: {type(error).__name__}: {error}"))
            return make_document(shown, problems, self._title)

    def _signature(self) -> str:
        """Names, sizes and times of all files that a run is read from."""
        digest = hashlib.sha256()
        for place in self._places:
            for path in sorted([*place.rglob("*.json"), *place.rglob("*.parquet"), *place.rglob("config.toml")]):
                try:
                    found = path.stat()
                except OSError:  # a checkpoint that was pruned just now, a link to nowhere
                    continue
                digest.update(os.fsencode(path))
                digest.update(f"\0{found.st_mtime_ns}\0{found.st_size}\n".encode())
        return digest.hexdigest()[:32]


class LiveServer(ThreadingHTTPServer):
    """The server, and the address that shows its page."""

    daemon_threads = True

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler], token: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), handler)
        name = _own_address(self.address_family) if host in _EVERYWHERE else host
        shown = f"[{name}]" if ":" in name else name
        self.url = f"http://{shown}:{self.server_port}/{f'{token}/' if token else ''}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever hangs up in the middle of an answer is no news."""


def make_server(live: LiveDocument, host: str, port: int, interval: float) -> LiveServer:
    """A server of the page (/) and of its data (/data.json); GET and HEAD alone.

    Args:
        live: what it serves.
        host: to listen on; on another address than this machine's own, the page is found only with a token.
        port: to listen on; 0 for any free one.
        interval: seconds between the page's questions.
    """
    if not (math.isfinite(interval) and interval > 0):
        raise ConfigError(f"--interval must be seconds, more than 0; got {interval}")
    token = "" if host in _LOOPBACK else secrets.token_urlsafe(16)
    home = f"/{token}/" if token else "/"

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "propfair", ""
        protocol_version = "HTTP/1.1"
        timeout = _SECONDS

        def do_GET(self) -> None:
            if not self._for_us():
                self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"this server answers to its own name only\n")
                return
            path = self.path.partition("?")[0]
            if not hmac.compare_digest(path.encode()[: len(home)], home.encode()):
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"the page is at the address that was printed\n")
                return
            match path[len(home) :]:
                case "":
                    document, _ = live.read()
                    page = render(document, live_interval=interval).encode(errors="replace")
                    self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page)
                case "data.json":
                    document, tag = live.read()
                    if self.headers.get("If-None-Match") == f'"{tag}"':
                        self._answer(HTTPStatus.NOT_MODIFIED, "application/json", b"", tag)
                    else:
                        body = embed(document).encode(errors="replace")
                        self._answer(HTTPStatus.OK, "application/json", body, tag)
                case _:
                    self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here but / and /data.json\n")

        do_HEAD = do_GET

        def _for_us(self) -> bool:
            """Refuse names that a hostile page has pointed at this address (DNS rebinding); it can't know a token."""
            name = re.sub(r":\d+$", "", self.headers.get("Host", "")).strip("[]").lower()
            return bool(token) or name in {*_LOOPBACK, host.lower()}

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
        return LiveServer(host, port, Handler, token)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"can't listen on {host}:{port}: {reason}. Choose another --port, or --port 0 for any."
        ) from None


def _own_address(family: int) -> str:
    """The address by which others reach this machine, as far as it knows; nothing is sent to find out."""
    target = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"  # for documentation: nobody's
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
