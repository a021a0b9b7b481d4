"""Reads the pickles of CIFAR without running them.

A pickle is a program. This reader knows only the instructions that build strings, numbers, tuples, lists, dicts and
plain arrays, and refuses all others, so a hostile file can do nothing but be refused. Large strings stay on disk until
they are read straight into the memory where they belong.

What may stand in what is written down too: plain values in a list; those, lists and arrays in a dict; short tuples at
most two deep. So nothing nests, refers to itself or doubles, and the work is in proportion to the file. The number of
instructions and the bytes kept in memory have bounds of their own.
"""

import io
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from propfair.errors import DataError
from propfair.files import check_readable

LARGE = 1 << 20  # bytes from which a string is left on disk
MAX_INSTRUCTIONS = 1_000_000  # the largest official file, that of CIFAR-100, has 200,000
MAX_TEXT_BYTES = 1 << 26  # of all strings that are kept in memory together
MAX_TUPLE = 16  # items; numpy writes 8


@dataclass(frozen=True)
class Blob:
    """A large string that was not read: where it is in the file."""

    offset: int
    size: int


class StoredArray:
    """An array of the pickle: its shape and type, and the bytes, in memory or still on disk."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self.dtype = np.dtype(np.uint8)
        self.content: bytes | Blob = b""

    def read(self, file: BinaryIO, out: NDArray[Any]) -> None:
        """Copy the array into `out`, which has its shape and type."""
        assert out.shape == self.shape
        assert out.dtype == self.dtype
        target = out.reshape(-1).data
        if isinstance(self.content, Blob):
            file.seek(self.content.offset)
            if file.readinto(target) != self.content.size:  # type: ignore[attr-defined]
                raise DataError("the file ends early")
        else:
            target[:] = self.content


@dataclass(frozen=True)
class _Name:
    module: str
    attribute: str


@dataclass(frozen=True)
class _Type:
    code: str


_RECONSTRUCT = {_Name("numpy.core.multiarray", "_reconstruct"), _Name("numpy._core.multiarray", "_reconstruct")}
_KNOWN_NAMES = _RECONSTRUCT | {_Name("numpy", "ndarray"), _Name("numpy", "dtype")}
_MARK = object()
_Plain = (int, bytes, str, Blob, type(None))  # bool is an int


def read_pickle(path: Path) -> dict[str, Any]:
    """The dict that a pickle file holds, with text keys; arrays come as `StoredArray`."""
    check_readable(path)
    try:
        with path.open("rb") as file:
            value = _Reader(file).run()
        if not isinstance(value, dict):
            raise DataError(f"it must hold a dict, and holds a {type(value).__name__}")
        return {key.decode() if isinstance(key, bytes) else str(key): item for key, item in value.items()}
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except OSError as error:
        raise DataError(f"{path} can't be read: {error}") from error
    except (struct.error, LookupError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path} is damaged or not a pickle of the official distribution ({error!r})") from error


class _Reader:
    def __init__(self, file: io.BufferedReader) -> None:
        self.file = file
        self.size = file.seek(0, io.SEEK_END)
        file.seek(0)
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.text_left = MAX_TEXT_BYTES

    def run(self) -> Any:
        for _ in range(MAX_INSTRUCTIONS):
            code = self.file.read(1)
            if not code:
                raise DataError("the file ends early: it is damaged or cut short")
            if code == b".":
                return self.stack.pop()
            step = _STEPS.get(code)
            if step is None:
                raise DataError(f"refused: the pickle uses instruction {code!r}, which no official file has")
            step(self)
        raise DataError(f"refused: the pickle has more than {MAX_INSTRUCTIONS:,} instructions")

    def number(self, layout: str) -> int:
        (value,) = struct.unpack(layout, self.file.read(struct.calcsize(layout)))
        return int(value)

    def content(self, layout: str) -> bytes | Blob:
        size = self.number(layout)
        start = self.file.tell()
        if size < 0 or start + size > self.size:
            raise DataError("the file ends early: it is damaged or cut short")
        if size < LARGE:
            self.text_left -= size
            if self.text_left < 0:
                raise DataError(f"refused: the pickle has more than {MAX_TEXT_BYTES >> 20} MB of text")
            return self.file.read(size)
        self.file.seek(size, io.SEEK_CUR)
        return Blob(start, size)

    def text(self, layout: str) -> str:
        content = self.content(layout)
        if isinstance(content, Blob):
            raise DataError("refused: a text of more than 1 MB")
        return content.decode()

    def marked(self) -> list[Any]:
        items: list[Any] = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def take(self, count: int) -> list[Any]:
        if count > len(self.stack):
            raise IndexError("stack underflow")
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def pack(self, items: Sequence[Any]) -> None:
        """Push a tuple: of plain values, names and types, and of tuples of plain values."""
        deep = [item for item in items if isinstance(item, tuple)]
        if (
            len(items) > MAX_TUPLE
            or not _all(items, *_Plain, _Name, _Type, tuple)
            or not all(_all(item, *_Plain) for item in deep)
        ):
            raise DataError("refused: a tuple that no array has")
        self.stack.append(tuple(items))

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError("append to something that is not a list")
        if not _all(items, *_Plain):
            raise DataError("refused: a list of something other than numbers and texts")
        target.extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise TypeError("set an item of something that is not a dict")
        if not _all(items[::2], bytes, str) or not _all(items[1::2], *_Plain, list, StoredArray):
            raise DataError("refused: a dict of something other than named numbers, texts, lists and arrays")
        target.update(zip(items[::2], items[1::2], strict=True))

    def name(self, module: Any, attribute: Any) -> None:
        if not isinstance(module, str) or not isinstance(attribute, str):
            raise TypeError("a name that is not a text")
        name = _Name(module, attribute)
        if name not in _KNOWN_NAMES:
            raise DataError(f"refused: the pickle asks for {module:.80}.{attribute:.80}; only plain arrays are read")
        self.stack.append(name)

    def line(self) -> str:
        return self.file.readline(256).rstrip(b"\n").decode()

    def call(self) -> None:
        function, arguments = self.take(2)
        what = arguments[0] if isinstance(arguments, tuple) and arguments else None
        if not isinstance(function, _Name):
            raise DataError("refused: the pickle calls something that is not an array")
        if function in _RECONSTRUCT and what == _Name("numpy", "ndarray"):
            self.stack.append(StoredArray())
        elif function == _Name("numpy", "dtype") and isinstance(what, bytes | str):
            self.stack.append(_Type(what.decode() if isinstance(what, bytes) else what))
        else:
            raise DataError("refused: the pickle calls something that is not an array")

    def build(self) -> None:
        target, state = self.take(2)
        if isinstance(target, _Type):
            pass  # the byte order, which means nothing for single bytes
        elif isinstance(target, StoredArray):
            _, shape, kind, fortran, content = state
            if kind != _Type("u1") or fortran or not isinstance(content, bytes | Blob):
                raise DataError("refused: an array of another type; only rows of bytes (u1) are read")
            size = content.size if isinstance(content, Blob) else len(content)
            if not isinstance(shape, tuple) or any(not isinstance(n, int) or n < 0 for n in shape):
                raise DataError("an array without a shape: the file is damaged")
            if int(np.prod(shape, dtype=object)) != size:
                raise DataError(f"an array of shape {shape} can't have {size} bytes: the file is damaged")
            target.shape, target.content = shape, content
        else:
            raise DataError("refused: the pickle sets the state of something that is not an array")
        self.stack.append(target)

    def remember(self, place: int) -> None:
        self.memo[place] = self.stack[-1]


def _all(items: Sequence[Any], *kinds: type) -> bool:
    return all(isinstance(item, kinds) for item in items)


_Step = Callable[[_Reader], object]
_STEPS: dict[bytes, _Step] = {
    b"\x80": lambda r: r.number("<B"),  # protocol
    b"\x95": lambda r: r.number("<Q"),  # frame
    b"(": lambda r: r.stack.append(_MARK),
    b"N": lambda r: r.stack.append(None),
    b"\x88": lambda r: r.stack.append(True),
    b"\x89": lambda r: r.stack.append(False),
    b"K": lambda r: r.stack.append(r.number("<B")),
    b"M": lambda r: r.stack.append(r.number("<H")),
    b"J": lambda r: r.stack.append(r.number("<i")),
    b"U": lambda r: r.stack.append(r.content("<B")),  # str of Python 2
    b"T": lambda r: r.stack.append(r.content("<i")),
    b"C": lambda r: r.stack.append(r.content("<B")),  # bytes of Python 3
    b"B": lambda r: r.stack.append(r.content("<I")),
    b"\x8c": lambda r: r.stack.append(r.text("<B")),
    b"X": lambda r: r.stack.append(r.text("<I")),
    b"}": lambda r: r.stack.append({}),
    b"]": lambda r: r.stack.append([]),
    b")": lambda r: r.stack.append(()),
    b"t": lambda r: r.pack(r.marked()),
    b"\x85": lambda r: r.pack(r.take(1)),
    b"\x86": lambda r: r.pack(r.take(2)),
    b"\x87": lambda r: r.pack(r.take(3)),
    b"a": lambda r: r.extend(r.take(1)),
    b"e": lambda r: r.extend(r.marked()),
    b"s": lambda r: r.update(r.take(2)),
    b"u": lambda r: r.update(r.marked()),
    b"q": lambda r: r.remember(r.number("<B")),
    b"r": lambda r: r.remember(r.number("<I")),
    b"\x94": lambda r: r.remember(len(r.memo)),
    b"h": lambda r: r.stack.append(r.memo[r.number("<B")]),
    b"j": lambda r: r.stack.append(r.memo[r.number("<I")]),
    b"c": lambda r: r.name(r.line(), r.line()),
    b"\x93": lambda r: r.name(*r.take(2)),
    b"R": lambda r: r.call(),
    b"b": lambda r: r.build(),
}
