"""Fetches official files: checksum first, then they count as data."""

import os
from pathlib import Path
from typing import Any

from propfair.data.base import SOURCES, Remote
from propfair.data.files import data_folder
from propfair.errors import ConfigError, DataError, MissingExtraError


def get(name: str, folder: Path | None = None, *, progress: bool = True) -> list[Path]:
    """Download the official files of data set `name` into the data folder, unless they are there.

    A file gets its name only after its checksum is right, so a broken download is never taken for data.

    Args:
        name: of the data set.
        folder: the data folder, None for the default one.
        progress: show a bar on a terminal.
    """
    source = SOURCES.get(name)
    if not source.remotes:
        raise ConfigError(f"data set {name!r} needs no download: it is {source.home}")
    home = data_folder(folder)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"the data folder {home} can't be made: {error}") from error
    if not os.access(home, os.W_OK):
        raise DataError(f"the data folder {home} is read-only. Choose another one with --data-dir or PROPFAIR_DATA.")
    return [
        home / remote.unpacks_to
        if remote.unpacks_to and (home / remote.unpacks_to).is_dir()
        else _fetch(remote, home, progress)
        for remote in source.remotes
    ]


def _fetch(remote: Remote, home: Path, progress: bool) -> Path:
    try:
        import pooch
    except ImportError:
        raise MissingExtraError("downloading", "data") from None
    pooch.get_logger().setLevel("WARNING")
    bar = _Bar(remote.name) if progress else None
    target = home / remote.name
    try:
        pooch.retrieve(
            remote.url,
            known_hash=remote.checksum,
            fname=target.name,
            path=target.parent,
            downloader=pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16),
        )
    except (OSError, ValueError) as error:  # no network, or the checksum is wrong
        raise DataError(
            f"download failed: {error}. Fetch {remote.url} elsewhere and put it into {target.parent} "
            f"as {target.name} ({remote.checksum})."
        ) from error
    finally:
        if bar is not None:
            bar.close()
    return target


class _Bar:
    """The progress bar that pooch asks for, drawn by rich on the terminal's error stream."""

    def __init__(self, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()]
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task(label, total=None)
        self._progress.start()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[self._task].total

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size or None)

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()
