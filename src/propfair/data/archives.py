"""Archives from outside, unpacked with care: nothing escapes, nothing is half unpacked, nothing takes all memory."""

import gzip
import io
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, NamedTuple, cast

from propfair.errors import DataError

MAX_UNPACKED_BYTES = 4 << 30  # the largest data set here, TinyImageNet, has 0.5 GB
MAX_MEMBERS = 500_000
MAX_HEADER_BYTES = 1 << 20  # what one member of a tar file may say about itself
MAX_DIRECTORY_BYTES = 1 << 27  # the list of members of a zip file
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others allocate what the file tells them to


def unpack(archive: Path, into: Path, top: str) -> Path:
    """Unpack a tar or zip file whose members all lie under `top/`; `into/top` appears whole or not at all.

    Refused: absolute paths, `..`, links and devices, more than 4 GB or 500,000 members, headers over 1 MB, other top
    folders.
    """
    try:
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into, prefix=".unpacking-") as scratch:
            _unpack_members(archive, Path(scratch))
            if not (Path(scratch) / top).is_dir():
                raise DataError(f"{archive} does not hold a folder {top}/: it is not the official archive")
            try:
                (Path(scratch) / top).rename(into / top)
            except OSError:
                if not (into / top).is_dir():  # else another process was faster
                    raise
    except DataError:
        raise
    except _RefusedError as error:
        raise DataError(f"{archive} is refused: {error}") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError) as error:
        raise DataError(f"{archive} is damaged or cut short ({error}). Delete it and download it again.") from error
    except (OSError, RuntimeError, ValueError) as error:  # a full disk; an encrypted zip; a header that makes no sense
        raise DataError(f"{archive} can't be unpacked into {into}: {error}") from error
    return into / top


class _RefusedError(Exception):
    """Why an archive is not unpacked."""


class _Member(NamedTuple):
    name: str
    size: int
    is_file: bool
    is_folder: bool
    content: IO[bytes] | None


def _unpack_members(archive: Path, scratch: Path) -> None:
    total = 0
    for count, member in enumerate(_members(archive)):
        path = PurePosixPath(member.name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in member.name[:2]:
            raise _RefusedError(f"member {member.name!r} points outside of the archive")
        if not (member.is_file or member.is_folder):
            raise _RefusedError(f"member {member.name!r} is a link or a device")
        total += member.size
        if member.size < 0:
            raise _RefusedError(f"member {member.name!r} claims {member.size} bytes")
        if total > MAX_UNPACKED_BYTES or count >= MAX_MEMBERS:
            raise _RefusedError(f"it unpacks to more than {MAX_UNPACKED_BYTES >> 30} GB or {MAX_MEMBERS:,} members")
        target = scratch / path
        if member.is_folder:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        assert member.content is not None
        with member.content as content, target.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        if target.stat().st_size != member.size:
            raise EOFError(f"{member.name} ends early")


def _members(archive: Path) -> Iterator[_Member]:
    with archive.open("rb") as file:
        if zipfile.is_zipfile(file):
            yield from _zip_members(_Metered(file))
            return
        file.seek(0)
        is_packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        with gzip.open(file) if is_packed else file as plain:
            yield from _tar_members(_Metered(cast("BinaryIO", plain)))


def _zip_members(file: "_Metered") -> Iterator[_Member]:
    file.left = MAX_DIRECTORY_BYTES
    with zipfile.ZipFile(cast("BinaryIO", file)) as opened:
        for info in opened.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
            is_file = plain and not info.is_dir()
            if info.compress_type not in _COMPRESSIONS:
                raise _RefusedError(f"member {info.filename!r} is compressed in a way that no official one is")
            file.left = info.compress_size + MAX_HEADER_BYTES
            content = opened.open(info) if is_file and info.file_size <= MAX_UNPACKED_BYTES else None
            yield _Member(info.filename, info.file_size, is_file, plain and info.is_dir(), content)


def _tar_members(file: "_Metered") -> Iterator[_Member]:
    file.left = MAX_HEADER_BYTES
    with tarfile.open(fileobj=cast("BinaryIO", file), mode="r:") as tar:
        for entry in tar:
            file.left = max(entry.size, 0) + MAX_HEADER_BYTES
            content = tar.extractfile(entry) if entry.isreg() and entry.size <= MAX_UNPACKED_BYTES else None
            yield _Member(entry.name, entry.size, entry.isreg(), entry.isdir(), content)
            file.left = MAX_HEADER_BYTES


class _Metered:
    """A file that gives only so many bytes: `tarfile` and `zipfile` take as much into memory as a header says."""

    def __init__(self, file: BinaryIO) -> None:
        self.left = 0
        self._file = file

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size if 0 <= size <= self.left else self.left + 1)
        self.left -= len(content)
        if self.left < 0:
            raise _RefusedError("it says more about its members than any official archive")
        return content

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True
