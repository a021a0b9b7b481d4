"""Where data lies on disk: the data folder, and what is in it."""

import hashlib
import os
from pathlib import Path

from propfair.data.archives import unpack
from propfair.data.base import Source
from propfair.errors import DataError
from propfair.files import check_readable


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
        check_official(home / remote.name, remote.checksum, f"unpack it yourself to {home / remote.unpacks_to}")
        return unpack(home / remote.name, writable_folder(home), remote.unpacks_to)
    raise missing(source, home)


def missing(source: type[Source], home: Path) -> DataError:
    """The error for data that is not there: the command, or what to fetch from where and where to put it."""
    wanted = "; ".join(f"{remote.url} as {home / remote.name} ({remote.checksum})" for remote in source.remotes)
    return DataError(
        f"data set {source.name!r} is not in {home}. Run `propfair data get {source.name}`, set --data-dir or "
        f"PROPFAIR_DATA to the folder that holds it, or without network here fetch elsewhere: {wanted}."
    )


def check_official(path: Path, checksum: str, otherwise: str) -> None:
    """A `DataError` unless the file has the official checksum, "md5:..." or "sha256:...".

    A checksum belongs to a download. It is asked of files that pass for one, by the name of the archive or by holding
    as much as the official file does. A part of a data set in the official format is the user's own and is read as it
    is.

    Args:
        path: the file.
        checksum: the official one.
        otherwise: what to do if the file is meant to be another one, for the error.
    """
    check_readable(path)
    kind, _, wanted = checksum.partition(":")
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
    except OSError as error:
        raise DataError(f"{path} can't be read: {error}") from error
    if found != wanted:
        raise DataError(
            f"{path} is damaged or altered: its checksum is {kind}:{found}, that of the official file {checksum}. "
            f"Fetch it again; if it is meant to be other data, {otherwise}."
        )
