"""Files that come and go whole: writing leaves either the old file or the new one, whatever happens in between.

Only plain files are replaced and only plain files are read. A device, a pipe or a link that stands where a file should
be is left alone: replacing it would break something else, following it would write to a place that nobody named, and
opening a pipe waits for ever.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

from safetensors import SafetensorError

from propfair.errors import ConfigError, DataError, WriteError

PICTURES = ("png", "pdf", "svg")
_MAX_TEXT_BYTES = 1 << 30  # a file with holes in it has any size, and takes no room on a disk

# What goes on while the disk is waited for, in a thread that holds up others.
while_waiting: ContextVar[Callable[[], contextlib.AbstractContextManager[None]]] = ContextVar(
    "while_waiting", default=contextlib.nullcontext
)

_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; what is written there takes its place when the block ends well.

    Whatever keeps the file from being written is a `WriteError` that names `path`.
    """
    temporary = None
    try:
        check_replaceable(path)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")  # the name has room for more
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb") as file:
            wait_for_disk(file.fileno())
        give_usual_mode(temporary, 0o666)
        temporary.replace(path)
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(path, error.strerror or str(error), error.errno) from error
    except SafetensorError as error:  # its own class for everything, a full disk included
        raise WriteError(path, str(error)) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):  # the disk may have become read-only
                temporary.unlink()


def wait_for_disk(handle: int) -> None:
    """Until what was written to an open file is there, whatever happens to the machine."""
    with while_waiting.get()():
        os.fsync(handle)


def check_replaceable(path: Path) -> None:
    """A `WriteError` if something other than a plain file stands at `path`."""
    try:
        kind = _kind(path.lstat().st_mode)
    except FileNotFoundError:
        return
    except ValueError as error:  # a name with a zero in it
        raise WriteError(path, str(error)) from None
    if kind:
        raise WriteError(path, f"it is {kind}, and only plain files are replaced. Choose another name.")


def check_readable(path: Path) -> None:
    """A `DataError` if `path` is there and no plain file or link to one: opening a pipe would wait for ever."""
    with contextlib.suppress(OSError):  # what is missing or forbidden is for the reader to tell
        kind = _kind(path.stat().st_mode)
        if kind:
            raise DataError(f"{path} is {kind}, not a file")


def read_text(path: Path) -> str:
    """The text of a file that describes something; one that is too large for that is a `DataError`."""
    check_readable(path)
    if path.stat().st_size > _MAX_TEXT_BYTES:
        raise DataError(f"{path} is refused: it has more than {_MAX_TEXT_BYTES >> 30} GB")
    return path.read_text(encoding="utf-8")


def check_memory(path: Path, num_bytes: int, share: float = 0.5) -> None:
    """A `DataError` if what a file holds takes more than a share of this machine's memory.

    A small file can unpack to any amount, and one with holes in it have any size.
    """
    if not hasattr(os, "sysconf"):
        return
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > share * have:
        raise DataError(
            f"{path} is refused: it would take {num_bytes / 2**30:.1f} GB, more than {share:.0%} of this machine's "
            f"memory ({have / 2**30:.1f} GB)"
        )


def check_size(path: Path) -> None:
    """The same for a file that is read as it is, and may need all of the memory."""
    check_memory(path, path.stat().st_size, share=1.0)


def give_usual_mode(path: Path, mode: int) -> None:
    """`tempfile` makes everything private; a result is for whoever the user's umask lets read it."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(mode & ~umask)


def picture_format(path: Path) -> str:
    """The format of a picture, by the ending of its name; without one it is a PNG."""
    found = path.suffix.lstrip(".").lower() or "png"
    if found not in PICTURES:
        endings = ", ".join(f".{name}" for name in PICTURES)
        raise ConfigError(f"a picture ends in {endings}; got {path.name!r}")
    return found


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _kind(mode: int) -> str:
    """What stands there, in words; empty for a plain file."""
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "")
