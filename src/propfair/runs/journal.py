"""The records of a run while it goes on: one file that only grows, whatever the number of rounds.

A row has 20 bytes: round, client, a number for what was measured, the value. A checkpoint appends its rows and one more
that ends them and carries their checksum, then says in its own file how far the journal counts (`Mark`). What lies
behind that belongs to a checkpoint that was never finished, and is cut off when the run goes on.
"""

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from propfair.errors import WriteError
from propfair.files import check_memory, check_readable, check_replaceable, wait_for_disk
from propfair.runs.columns import of_numbers, of_texts
from propfair.runs.records import CLIENT_SCHEMA, ROUND_SCHEMA, ROW, WHOLE_ROUND, Names

Rows = NDArray[np.void]
_NAME = re.compile(r"journal-\d+(-\d+)?")
_END = -2  # in the place of a client: the end of what one checkpoint wrote
_CHUNK = 1 << 20  # rows that are in memory at a time, and in a row group of a Parquet file


class DamagedError(ValueError):
    """A file is proven not to hold what was written."""


@dataclass(frozen=True)
class Mark:
    """How far a journal counts.

    Attributes:
        file: its name.
        rows: how many rows count.
        sha256: of these rows.
        names: what the numbers in them stand for.
    """

    file: str
    rows: int
    sha256: str
    names: Names

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        names = {"clients": [list(pair) for pair in self.names.clients], "rounds": list(self.names.rounds)}
        return {"file": self.file, "rows": self.rows, "sha256": self.sha256, "names": names}

    @classmethod
    def of(cls, content: dict[str, Any]) -> "Mark":
        """The inverse of `as_dict`; a `ValueError` for what no journal says, such as the name of another file."""
        pairs, rounds = content["names"]["clients"], content["names"]["rounds"]
        file, rows = content["file"], content["rows"]
        if not all(isinstance(text, str) for text in (*(text for pair in pairs for text in pair), *rounds)):
            raise ValueError("names must be texts")
        if not _NAME.fullmatch(file) or type(rows) is not int or rows < 0:
            raise ValueError(f"{file!r} with {rows!r} rows is no journal")
        return cls(file, rows, content["sha256"], Names(((split, metric) for split, metric in pairs), rounds))


class Journal:
    """Appends the rows of a run.

    Args:
        path: the file; made if it is not there.
        mark: where to go on; what lies behind it is cut off, once what lies before it is proven whole. None: at the
            beginning.
        names: those that are known at the beginning.
    """

    def __init__(self, path: Path, mark: Mark | None = None, names: Names | None = None) -> None:
        self.path = path
        self.names = (mark.names if mark else names or Names()).copy()
        self._sum = check_rows(path.parent, mark) if mark else hashlib.sha256()
        self._rows = mark.rows if mark else 0
        try:
            check_replaceable(path)  # a link could lead to anybody's file
            with path.open("ab") as file:
                file.truncate(self._rows * ROW.itemsize)
        except OSError as error:
            raise WriteError(path, error.strerror or str(error), error.errno) from error

    @property
    def mark(self) -> Mark:
        """How far it counts."""
        return Mark(self.path.name, self._rows, self._sum.hexdigest(), self.names.copy())

    def append(self, rows: Rows) -> Mark:
        """Write rows and their end to the disk. They count once the mark is written somewhere."""
        end = np.array([(rows["round"].max(initial=0), _END, _checksum(rows), len(rows))], ROW)
        try:
            with self.path.open("r+b") as file:  # never made anew: the folder may be gone
                file.seek(self._rows * ROW.itemsize)
                file.write(rows.tobytes())
                file.write(end.tobytes())
                file.flush()
                wait_for_disk(file.fileno())
        except OSError as error:
            raise WriteError(self.path, error.strerror or str(error), error.errno) from error
        self._rows += len(rows) + 1
        self._sum.update(rows.tobytes())
        self._sum.update(end.tobytes())
        return self.mark


def check_rows(folder: Path, mark: Mark) -> "hashlib._Hash":
    """The running checksum at a mark; a `DamagedError` unless all rows before it are what was written."""
    total = hashlib.sha256()
    for content in _contents(folder / mark.file, mark.rows):
        total.update(content)
    if total.hexdigest() != mark.sha256:
        raise DamagedError(f"{folder / mark.file} is damaged: its checksum is wrong")
    return total


def read_rows(folder: Path, mark: Mark) -> Iterator[Rows]:
    """The rows before a mark, in pieces; see `check_rows`."""
    for content in _contents(folder / mark.file, mark.rows):
        rows = np.frombuffer(content, ROW)
        rows = rows[rows["client"] != _END]
        known = np.where(rows["client"] == WHOLE_ROUND, len(mark.names.rounds), len(mark.names.clients))
        if ((rows["client"] < WHOLE_ROUND) | (rows["name"] < 0) | (rows["name"] >= known)).any():
            raise DamagedError(f"{folder / mark.file} is damaged: it has rows that stand for nothing")
        yield rows


def salvage(folder: Path, mark: Mark) -> Rows:
    """The rows of those checkpoints that are whole in a damaged journal; none if it is gone."""
    path = folder / mark.file
    try:
        check_readable(path)
        length = min(path.stat().st_size, mark.rows * ROW.itemsize)
        check_memory(path, length)
        with path.open("rb") as file:
            content = file.read(length)
    except FileNotFoundError:
        content = b""
    rows = np.frombuffer(content[: len(content) // ROW.itemsize * ROW.itemsize], ROW)
    whole = []
    for end in np.flatnonzero(rows["client"] == _END).tolist():
        length = rows["value"][end]
        if 0 <= length <= end and _checksum(piece := rows[end - int(length) : end]) == rows["name"][end]:
            whole.append(piece)
    return np.concatenate(whole) if whole else np.empty(0, ROW)


def client_tables(run: str, names: Names, pieces: Iterable[Rows]) -> Iterator[pa.Table]:
    """The table of clients, in pieces that do not depend on when checkpoints were written."""
    splits, metrics = (_Column.of([pair[place] for pair in names.clients]) for place in (0, 1))
    for rows in _regrouped(rows[rows["client"] >= 0] for rows in pieces):
        yield pa.table(
            {
                "run": _same(run, len(rows)),
                "round": of_numbers(rows["round"], pa.int32()),
                "client": of_numbers(rows["client"], pa.int32()),
                "split": splits.encoded(rows["name"]),
                "metric": metrics.encoded(rows["name"]),
                "value": of_numbers(rows["value"], pa.float64()),
            },
            schema=CLIENT_SCHEMA,
        )


def round_tables(run: str, names: Names, pieces: Iterable[Rows]) -> Iterator[pa.Table]:
    """The table of whole rounds, likewise."""
    metrics = _Column.of(list(names.rounds))
    for rows in _regrouped(rows[rows["client"] == WHOLE_ROUND] for rows in pieces):
        yield pa.table(
            {
                "run": _same(run, len(rows)),
                "round": of_numbers(rows["round"], pa.int32()),
                "metric": metrics.encoded(rows["name"]),
                "value": of_numbers(rows["value"], pa.float64()),
            },
            schema=ROUND_SCHEMA,
        )


class _Column(NamedTuple):
    """Texts by number, each different one stored once."""

    code: NDArray[np.int32]  # of each number
    texts: pa.Array

    @classmethod
    def of(cls, texts: Sequence[str]) -> "_Column":
        known = {text: code for code, text in enumerate(dict.fromkeys(texts))}
        return cls(np.array([known[text] for text in texts], dtype=np.int32), of_texts(list(known)))

    def encoded(self, numbers: NDArray[np.int32]) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(of_numbers(self.code[numbers], pa.int32()), self.texts)


def _same(text: str, length: int) -> pa.DictionaryArray:
    return _Column.of([text]).encoded(np.zeros(length, np.int32))


def _regrouped(pieces: Iterable[Rows]) -> Iterator[Rows]:
    """The same rows in pieces of one size; the last one may be shorter, and is there even if it is empty."""
    waiting: list[Rows] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(map(len, waiting)) >= _CHUNK:
            joined = np.concatenate(waiting)
            whole = len(joined) // _CHUNK * _CHUNK
            for start in range(0, whole, _CHUNK):
                yield joined[start : start + _CHUNK]
            waiting = [joined[whole:]]
    yield np.concatenate([np.empty(0, ROW), *waiting])


def _contents(path: Path, count: int) -> Iterator[bytes]:
    """The first `count` rows of a file; a file that has fewer is damaged."""
    check_readable(path)
    with path.open("rb") as file:
        for start in range(0, count, _CHUNK):
            wanted = min(_CHUNK, count - start) * ROW.itemsize
            content = file.read(wanted)
            if len(content) < wanted:
                raise DamagedError(f"{path} is damaged: it ends early")
            yield content


def _checksum(rows: Rows) -> int:
    return int(np.uint32(zlib.crc32(rows.tobytes())).view(np.int32))
