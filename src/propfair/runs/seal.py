"""Checksums that tell a damaged or edited file of a run from the one that was written."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from propfair.errors import DataError
from propfair.files import check_readable, check_size

KEY = "sha256"  # of a sealed JSON object: the digest of all its other keys


def digest_file(path: Path) -> str:
    """The SHA-256 of a file."""
    check_readable(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its own digest in it."""
    plain = {key: value for key, value in content.items() if key != KEY}
    return {**plain, KEY: _digest(plain)}


def is_sealed(content: Mapping[str, Any]) -> bool:
    """Whether a JSON object has a digest, and the right one."""
    return bool(content.get(KEY) == sealed(content)[KEY])


def check_digest(path: Path, wanted: str | list[str], way_out: str = "") -> None:
    """A `DataError` that names the file unless it has this digest, or one of these."""
    try:
        check_size(path)  # else a file of holes would be read for hours
        found = digest_file(path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}") from None
    if found not in (wanted if isinstance(wanted, list) else [wanted]):
        raise DataError(f"{path} is damaged or was edited: its checksum is wrong. {way_out}".rstrip())


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
