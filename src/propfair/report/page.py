"""The page: one HTML file with its styles, its scripts, the plotting library and the data inside."""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from propfair.errors import MissingExtraError

_SCRIPTS = ("dom.js", "data.js", "theme.js", "chart.js", "figures.js", "tables.js", "app.js")
# In a script element, "<" could end the element or open a comment; the two separators end a line in old JavaScript.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def render(document: Mapping[str, Any], *, live_interval: float | None = None) -> str:
    """The page of a document. It asks nothing of the network; its policy forbids it.

    Args:
        document: from `make_document`.
        live_interval: seconds between questions to the server that serves the page; None for a page that stands alone.
    """
    content = dict(document)
    if live_interval is not None:
        content["live"] = {"interval": round(1000 * live_interval)}
    library, digest = _library()
    script = "".join(_asset(name) for name in _SCRIPTS)
    parts = {
        "@@POLICY@@": policy(script, digest, live=live_interval is not None),
        "@@TITLE@@": html.escape(str(document["title"])),
        "@@STYLE@@": _asset("page.css"),
        "@@SCRIPT@@": script,
        "@@LIBRARY@@": library,
        "@@DATA@@": embed(content),
    }
    pieces = []
    rest = _asset("page.html")
    for marker in sorted(parts, key=rest.index):
        before, _, rest = rest.partition(marker)
        pieces += [before, parts[marker]]
    return "".join([*pieces, rest])


def embed(content: Mapping[str, Any]) -> str:
    """JSON that can stand inside a script element, whatever text it holds."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_ESCAPES)


def policy(script: str, library_digest: str, *, live: bool) -> str:
    """What the page may do: run its own two scripts, and talk to nobody but, when live, its own server."""
    server = "'self'" if live else "'none'"
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{own}' 'sha256-{library_digest}'; style-src 'unsafe-inline'; "
        f"img-src data: blob:; connect-src {server}; base-uri 'none'; form-action 'none'"
    )


@cache
def _library() -> tuple[str, str]:
    """Plotly's script, packed, and the SHA-256 of its text."""
    try:
        script = resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    except (ModuleNotFoundError, FileNotFoundError):
        raise MissingExtraError("the report", "report") from None
    packed = gzip.compress(script, 6, mtime=0)
    return base64.b64encode(packed).decode(), base64.b64encode(hashlib.sha256(script).digest()).decode()


@cache
def _asset(name: str) -> str:
    return resources.files("propfair.report").joinpath("assets", name).read_text(encoding="utf-8")
