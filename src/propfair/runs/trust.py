"""Settings can ask for more than numbers: for code to be imported, and for connections to other machines.

What a user says on the command line or from Python is done. What a file or a folder asks for may be a stranger's wish:
it is shown and refused, unless this user started that run here or has said `--trust`. Both leave a note in the user's
state folder (XDG_STATE_HOME, else ~/.local/state), outside of everything that can be sent around.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from propfair.errors import ConfigError
from propfair.files import write_text

_PATHS = frozenset({"device", "folder", "path", "saved", "start"})  # "cuda:1", and a colon in a path asks for nothing
_LOCAL_LOGS = frozenset({"tensorboard", "mlflow", "wandb"})  # stay on this machine unless an option says otherwise
_LOCAL_OPTIONS = frozenset({"experiment", "project"})
_AGREED: set[Path] = set()  # in this process


class Wish(NamedTuple):
    """Something that settings ask for.

    Attributes:
        what: in words.
        where: its key, and the settings beside it, which may decide what comes of it.
    """

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what} ({self.where})"


def wishes(content: Mapping[str, Any]) -> list[Wish]:
    """What settings ask for beyond propfair itself.

    >>> for wish in wishes({"model": {"name": "os:system", "command": "id"}, "log": ["mlflow:uri=http://there"]}):
    ...     print(wish)
    import 'os:system' (model.name with {"command": "id"})
    log to 'mlflow:uri=http://there' (log)
    """
    return [
        Wish(what, f"{key}{beside}") for key, text, beside in _texts(content) if (what := _wish(key, text)) is not None
    ]


def check_trust(
    content: Mapping[str, Any], origin: Path, *, said: Mapping[str, Any] | None = None, trust: bool = False
) -> None:
    """Refuse settings that ask for more than the user has agreed to.

    Args:
        content: the settings of a file or a folder.
        origin: that file or folder.
        said: the settings that the user has said, which need no agreement.
        trust: the user agrees to everything that `origin` asks for, from now on.
    """
    known = {wish.what for wish in wishes(said or {})}
    open_ = [wish for wish in wishes(content) if wish.what not in known]
    if trust:
        remember(origin, open_)
    elif open_ and _note(origin, open_) not in _AGREED and not _note(origin, open_).exists():
        raise ConfigError(
            f"{origin} asks propfair to {'; to '.join(map(str, open_))}. That runs code or opens a connection, and "
            "this user has not started it here. If you know where it comes from, say --trust (from Python: trust=True)."
        )


def remember(origin: Path, agreed: list[Wish]) -> None:
    """Note that the user agrees to what a file or a folder asks for."""
    if agreed:
        note = _note(origin, agreed)
        _AGREED.add(note)
        with contextlib.suppress(OSError):  # without a home it is forgotten when this process ends
            note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            said = {"origin": str(origin.resolve()), "asks": [str(wish) for wish in agreed]}
            write_text(note, json.dumps(said, indent=1) + "\n")


def state_folder() -> Path:
    """Where propfair keeps what belongs to the user and not to a run."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "propfair"


def _note(origin: Path, agreed: list[Wish]) -> Path:
    said = json.dumps([str(origin.resolve()), sorted(map(str, agreed))])
    return state_folder() / "trusted" / f"{hashlib.sha256(said.encode(errors='replace')).hexdigest()[:32]}.json"


def _wish(key: str, text: str) -> str | None:
    """What one text asks for; None: nothing. In doubt, it asks."""
    last = key.rpartition(".")[2]
    name, _, options = text.partition(":")
    if last == "log":
        local = name in _LOCAL_LOGS and all(
            option.partition("=")[0].strip() in _LOCAL_OPTIONS for option in options.split(",") if option
        )
        return None if local else f"log to {text!r}"
    if last == "address":
        return f"join the cluster at {text!r}" if text else None
    if last == "contestants":  # NAME:KEY=VALUE,...
        return f"use {text!r}" if ":" in options or (options and "=" not in options) else None
    return f"import {text!r}" if ":" in text and last not in _PATHS else None


def _texts(content: Any, key: str = "", beside: str = "") -> Iterator[tuple[str, str, str]]:
    """Every text in nested settings, keys included: its dotted key, itself, and what stands beside it."""
    if isinstance(content, Mapping):
        for name, value in content.items():
            if ":" in str(name):
                yield key or "a key", str(name), _with(value if isinstance(value, Mapping) else {})
            others = {other: said for other, said in content.items() if other != name} if key else {}
            yield from _texts(value, f"{key}.{name}" if key else str(name), _with(others))
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _texts(value, key, beside)
    elif content is not None and not isinstance(content, bool | int | float):
        yield key, str(content), beside


def _with(settings: Mapping[str, Any]) -> str:
    return f" with {json.dumps(settings, sort_keys=True, default=str)}" if settings else ""
