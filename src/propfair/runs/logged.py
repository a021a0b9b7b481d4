"""The file of logged numbers beside the checkpoints, which must not go on with numbers that were damaged meanwhile."""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from propfair.errors import PropFairError
from propfair.files import check_readable, check_replaceable

_CHUNK = 1 << 20  # bytes


class LoggedFile:
    """How far a file that only grows counts: each checkpoint says how long it was, and the checksum of that.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size, self._sum = 0, hashlib.sha256()

    def mark(self) -> dict[str, Any]:
        """How far it counts now, as JSON values. Only what is new since the last time is read."""
        with contextlib.suppress(OSError, PropFairError):  # a log that is not there is worth less than the training
            check_readable(self._path)
            with self._path.open("rb") as file:
                file.seek(self._size)
                while piece := file.read(_CHUNK):
                    self._sum.update(piece)
                    self._size += len(piece)
        return {"size": self._size, "sha256": self._sum.hexdigest()}

    def go_on(self, mark: Mapping[str, Any], number: int) -> list[str]:
        """Cut off what lies behind the mark of a checkpoint, or put the file aside if it is damaged; warnings.

        Args:
            mark: of the checkpoint.
            number: the round of the checkpoint.
        """
        size, path = mark.get("size"), self._path
        if not isinstance(size, int) or not size:
            return []
        try:
            check_replaceable(path)  # neither a pipe nor a link
            with path.open("rb") as file:
                if _digest(file, size) == mark.get("sha256"):
                    os.truncate(path, size)
                    return []
            aside = path.with_name(f"{path.name}.damaged")
            check_replaceable(aside)
            path.replace(aside)
            said = f"{path} is damaged: its checksum is wrong. It was put aside as {aside.name}"
        except FileNotFoundError:
            said = f"{path} is missing"
        except OSError as error:
            said = f"{path} can't be read: {error.strerror or error}"
        return [f"{said}; the rounds up to {number} are left out of the new one, the records have them"]


def _digest(file: Any, size: int) -> str:
    """Of the first bytes of a file."""
    total, left = hashlib.sha256(), size
    while left > 0 and (piece := file.read(min(left, _CHUNK))):
        total.update(piece)
        left -= len(piece)
    return total.hexdigest()
