"""Reads the pickles of CIFAR without running them.

A pickle is a program. This reader knows only the instructions that build strings, numbers, tuples, lists, dicts and
plain arrays, and refuses all others, so a hostile file can do nothing but be refused. Large strings stay on disk until
they are read straight into the memory where they belong.
"""

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from propfair.errors import DataError

LARGE = 1 << 20  # bytes from which a string is left on disk


class Blob(NamedTuple):
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


class _Name(NamedTuple):
    module: str
    attribute: str


class _Type(NamedTuple):
    code: str


_RECONSTRUCT = {_Name("numpy.core.multiarray", "_reconstruct"), _Name("numpy._core.multiarray", "_reconstruct")}
_KNOWN_NAMES = _RECONSTRUCT | {_Name("numpy", "ndarray"), _Name("numpy", "dtype")}
_MARK = object()


def read_pickle(path: Path) -> dict[str, Any]:
    """The dict that a pickle file holds, with text keys; arrays come as `StoredArray`."""
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

    def run(self) -> Any:
        while True:
            code = self.file.read(1)
            if not code:
                raise DataError("the file ends early: it is damaged or cut short")
            if code == b".":
                return self.stack.pop()
            step = _STEPS.get(code)
            if step is None:
                raise DataError(f"refused: the pickle uses instruction {code!r}, which no official file has")
            step(self)

    def number(self, layout: str) -> int:
        (value,) = struct.unpack(layout, self.file.read(struct.calcsize(layout)))
        return int(value)

    def content(self, layout: str) -> bytes | Blob:
        size = self.number(layout)
        start = self.file.tell()
        if size < 0 or start + size > self.size:
            raise DataError("the file ends early: it is damaged or cut short")
        if size < LARGE:
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

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise TypeError("append to something that is not a list")
        target.extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise TypeError("set an item of something that is not a dict")
        target.update(zip(items[::2], items[1::2], strict=True))

    def name(self, module: str, attribute: str) -> None:
        name = _Name(module, attribute)
        if name not in _KNOWN_NAMES:
            raise DataError(f"refused: the pickle asks for {module}.{attribute}; only plain arrays are read")
        self.stack.append(name)

    def line(self) -> str:
        return self.file.readline(256).rstrip(b"\n").decode()

    def call(self) -> None:
        function, arguments = self.take(2)
        if function in _RECONSTRUCT and arguments[0] == _Name("numpy", "ndarray"):
            self.stack.append(StoredArray())
        elif function == _Name("numpy", "dtype"):
            code = arguments[0]
            self.stack.append(_Type(code.decode() if isinstance(code, bytes) else str(code)))
        else:
            raise DataError("refused: the pickle calls something that is not an array")

    def build(self) -> None:
        target, state = self.take(2)
        if isinstance(target, _Type):
            pass  # the byte order, which means nothing for single bytes
        elif isinstance(target, StoredArray):
            _, shape, kind, fortran, content = state
            if kind != _Type("u1") or fortran or not isinstance(content, bytes | Blob):
                raise DataError(f"refused: an array of {kind}; only rows of bytes (u1) are read")
            size = content.size if isinstance(content, Blob) else len(content)
            if any(not isinstance(n, int) or n < 0 for n in shape) or int(np.prod(shape, dtype=object)) != size:
                raise DataError(f"an array of shape {shape} can't have {size} bytes: the file is damaged")
            target.shape, target.content = tuple(shape), content
        else:
            raise DataError("refused: the pickle sets the state of something that is not an array")
        self.stack.append(target)

    def remember(self, place: int) -> None:
        self.memo[place] = self.stack[-1]


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
    b"t": lambda r: r.stack.append(tuple(r.marked())),
    b"\x85": lambda r: r.stack.append(tuple(r.take(1))),
    b"\x86": lambda r: r.stack.append(tuple(r.take(2))),
    b"\x87": lambda r: r.stack.append(tuple(r.take(3))),
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
