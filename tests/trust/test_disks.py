"""Disks that are full, read-only or gone: one line, and what was written before is whole."""

import contextlib
import errno
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from propfair.runs.config import make_config
from propfair.runs.launch import run
from tests.cli.inside import Outcome, call
from tests.runs.killed import SETTINGS, content, tiny
from tests.trust.test_corruption import SWEEP

RUN = [*SETTINGS, "schedule.rounds=4", "schedule.checkpoint_every=1", "algorithm=fedavg"]
COMMANDS = [
    ["run", *RUN, "-o", "out"],
    ["compare", "fedavg", "propfair", *RUN, "-o", "out"],
    ["finetune", "one", "--with", "propfair", "-o", "out"],
    ["report", "one", "-o", "out.html"],
    ["figure", "curves", "one", "-o", "out.pdf"],
    ["keep", "one", "-o", "out.parquet"],
    ["certify", "one", "two", "-o", "out.png"],
    ["partition", "digits", "--picture", "out.png", "--save", "out.safetensors"],
    ["example", "nash", "--picture", "out.png"],
    ["sweep", "sweep.toml", "-w", "0", "-o", "out"],
]


def is_one_line(done: Outcome) -> bool:
    return done.is_clean and done.code in (1, 2) and "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("runs")
    for name, seed in (("one", 0), ("two", 1)):
        run(make_config({}, [*RUN, f"seed={seed}"]), home / name)
    (home / "sweep.toml").write_text(SWEEP)
    return home


@contextlib.contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """Whoever writes more to a file is told so by the system, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def read_only() -> Iterator[None]:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with mock.patch.object(tempfile, "mkstemp", refuse), mock.patch.object(Path, "mkdir", refuse):
        yield


@pytest.mark.parametrize("limit", [0, 1000], ids=["nothing", "1000 bytes"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_full_disk(runs: Path, tmp_path: Path, command: list[str], limit: int) -> None:
    shutil.copytree(runs, tmp_path / "home")
    before = {path for path in (tmp_path / "home").rglob("*") if path.name.startswith(".")}
    with no_file_over(limit):
        done = call(*command, cwd=tmp_path / "home")
    assert is_one_line(done), done
    assert {path for path in (tmp_path / "home").rglob("*") if path.name.startswith(".")} == before, "no leftovers"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_read_only_disk(runs: Path, tmp_path: Path, command: list[str]) -> None:
    shutil.copytree(runs, tmp_path / "home")
    with read_only():
        done = call(*command, cwd=tmp_path / "home")
    assert is_one_line(done), done


def failing(number: int, fail: Callable[[], None]) -> Callable[[int], None]:
    """A sync to disk that fails the given time, and from then on."""
    left, sync = number, os.fsync

    def count(file: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            fail()
        sync(file)

    return count


def no_space() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole") / "out"
    run(tiny("schedule.checkpoint_every=1", "algorithm=fedavg", rounds=4), folder)
    return content(folder)


@pytest.mark.parametrize(
    "number",
    [
        0,
        2,
        5,
        8,
        11,
        14,
        17,
        20,
        *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 6, 7, 9, 10, 12, 13, 15, 16)),
    ],
)
def test_a_disk_that_fills_up_keeps_the_last_good_state(tmp_path: Path, whole: dict[str, bytes], number: int) -> None:
    with mock.patch.object(os, "fsync", failing(number, no_space)):
        done = call("run", *RUN, "-o", "out", cwd=tmp_path)
    assert is_one_line(done), done
    assert "No space left" in done.stderr
    if (tmp_path / "out").exists():
        again = call("resume", "out", cwd=tmp_path)
        assert again.code == 0, again
        assert content(tmp_path / "out") == whole
    assert not [path for path in tmp_path.rglob(".*") if path.name != "."]


@pytest.mark.parametrize("number", [4, 9, 13, 17])
def test_a_folder_that_vanishes(tmp_path: Path, number: int) -> None:
    vanish = failing(number, lambda: shutil.rmtree(tmp_path / "out", ignore_errors=True))
    with mock.patch.object(os, "fsync", vanish):
        done = call("run", *RUN, "-o", "out", cwd=tmp_path)
    assert is_one_line(done), done
    assert "out" in done.stderr
