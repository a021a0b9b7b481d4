"""Where data lies on disk: the data folder, what is in it, and archives, which are unpacked with care."""

import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from propfair.data.base import Source
from propfair.errors import DataError

MAX_UNPACKED_BYTES = 4 << 30  # the largest data set here, TinyImageNet, has 0.5 GB
MAX_MEMBERS = 500_000


def data_folder(folder: Path | None = None) -> Path:
    """The data folder: the one given, else the variable PROPFAIR_DATA, else a cache folder in the home directory."""
    if folder is not None:
        return Path(folder).expanduser()
    named = os.environ.get("PROPFAIR_DATA")
    return Path(named).expanduser() if named else cache_folder()


def cache_folder() -> Path:
    """Where propfair may write what it can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "propfair"


def writable_folder(folder: Path) -> Path:
    """`folder` if it can be written to, else the cache folder: a shared data folder is often read-only."""
    return folder if os.access(folder, os.W_OK) else cache_folder()


def find(source: type[Source], folder: Path | None, *others: str) -> Path:
    """The official file or folder of a data set, unpacked from its archive if need be; or one of the `others` names."""
    home = data_folder(folder)
    remote = source.remotes[0]
    for place in dict.fromkeys((home, writable_folder(home))):
        for name in (remote.unpacks_to or remote.name, *others):
            if (place / name).exists():
                return place / name
    if remote.unpacks_to and (home / remote.name).is_file():
        return unpack(home / remote.name, writable_folder(home), remote.unpacks_to)
    raise missing(source, home)


def missing(source: type[Source], home: Path) -> DataError:
    """The error for data that is not there: the command, or what to fetch from where and where to put it."""
    wanted = "; ".join(f"{remote.url} as {home / remote.name} ({remote.checksum})" for remote in source.remotes)
    return DataError(
        f"data set {source.name!r} is not in {home}. Run `propfair data get {source.name}`, set --data-dir or "
        f"PROPFAIR_DATA to the folder that holds it, or without network here fetch elsewhere: {wanted}."
    )


def unpack(archive: Path, into: Path, top: str) -> Path:
    """Unpack a tar or zip file whose members all lie under `top/`; `into/top` appears whole or not at all.

    Refused: absolute paths, `..`, links and devices, more than 4 GB or 500,000 members, other top folders.
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
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise DataError(f"{archive} is damaged or cut short ({error}). Delete it and download it again.") from error
    except (OSError, RuntimeError, ValueError) as error:  # a full disk; an encrypted zip; a header that makes no sense
        raise DataError(f"{archive} can't be unpacked into {into}: {error}") from error
    return into / top


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
            raise DataError(f"{archive} is refused: member {member.name!r} points outside of the archive")
        if not (member.is_file or member.is_folder):
            raise DataError(f"{archive} is refused: member {member.name!r} is a link or a device")
        total += member.size
        if total > MAX_UNPACKED_BYTES or count >= MAX_MEMBERS:
            raise DataError(
                f"{archive} is refused: it unpacks to more than {MAX_UNPACKED_BYTES >> 30} GB "
                f"or {MAX_MEMBERS:,} members"
            )
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
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
                is_file = plain and not info.is_dir()
                content = opened.open(info) if is_file and info.file_size <= MAX_UNPACKED_BYTES else None
                yield _Member(info.filename, info.file_size, is_file, plain and info.is_dir(), content)
        return
    with tarfile.open(archive) as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isreg() else None
            yield _Member(entry.name, entry.size, entry.isreg(), entry.isdir(), content)
