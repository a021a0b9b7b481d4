"""A server that is left behind by its SuperLink ends, and the next one waits for the folder and says for whom."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")

from propfair.errors import ConfigError
from propfair.flower import client_app, orphans
from propfair.runs.reading import read_run
from tests.flower.grid import LocalGrid, network, own_data
from tests.flower.test_recording import MortalGrid, Stopped, strategy
from tests.flower.test_strategy import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HOLDS = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.flock(f, 2); print('held', flush=True); sys.stdin.read()"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes, each of which prints a line when it is ready, and ends with its standard input."""
    processes: list[subprocess.Popen[str]] = []

    def started(code: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-ISc", code, *arguments]
        made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(made)
        assert made.stdout is not None
        made.stdout.readline()
        return made

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def dead_but_not_waited_for(process: "subprocess.Popen[str]") -> None:
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


WAITS = "import sys; print('there', flush=True); sys.stdin.read()"


def test_it_ends_with_the_superlink_though_that_was_not_waited_for(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    link = start(WAITS)
    executor = start(WAITS, "--parent-pid", str(link.pid))
    above = orphans._above(["flwr-serverapp", "--token", "x", "--parent-pid", str(executor.pid), "--insecure"])
    assert above == [executor.pid, link.pid]
    assert all(map(orphans._is_alive, above))
    ended: list[int] = []
    looks = iter([None, None])

    def between(seconds: float) -> None:
        if seconds == orphans.POLL_SECONDS and next(looks, 0) == 0:
            dead_but_not_waited_for(link)  # the third time that nothing was wrong

    monkeypatch.setattr(time, "sleep", between)
    monkeypatch.setattr(os, "_exit", ended.append)
    orphans._end_after(above)
    assert ended == [1]
    assert next(looks, 0) == 0, "it ended while all were alive"
    assert "The SuperLink of this server is gone" in caplog.text
    os.kill(link.pid, 0)  # a process of this number is still there, dead
    assert orphans._is_alive(executor.pid)
    assert not orphans._is_alive(link.pid)
    link.wait()
    assert not orphans._is_alive(link.pid)


def test_nobody_is_watched_where_flower_has_not_started_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.Thread.start", lambda _: pytest.fail("a thread was started"))
    for command in (["pytest"], ["flwr-serverapp", "--token", "x"], ["flwr-serverapp", "--parent-pid"]):
        monkeypatch.setattr(sys, "argv", command)
        orphans.end_with_flower()


def test_the_next_server_waits_for_the_folder_and_takes_over(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cut, mortal = strategy("afl", tmp_path / "run"), MortalGrid(client_app(network, own_data))
    mortal.left = 4
    with pytest.raises(Stopped):
        run(cut, mortal, 3)
    assert cut._recording is not None
    cut._recording._held.close()
    left = start(HOLDS, str(tmp_path / "run" / "config.toml"))
    with pytest.raises(ConfigError, match=rf"is in use: process {left.pid} \(.*fcntl") as refused:
        strategy("afl", tmp_path / "run")
    waits: list[float] = []

    def ends(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            left.kill()
            left.wait()

    monkeypatch.setattr(time, "sleep", ends)
    again = strategy("afl", tmp_path / "run", patience=1e9)
    assert len(waits) == 3
    said = [line for line in caplog.messages if "Waiting up to" in line]
    assert len(said) == 1
    assert said[0].startswith(str(refused.value))
    run(again, LocalGrid(client_app(network, own_data)), 3)
    assert read_run(tmp_path / "run").status.state == "finished"


def test_a_run_that_ends_while_the_next_server_waits_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, mortal = strategy("afl", tmp_path / "run"), MortalGrid(client_app(network, own_data))
    mortal.left = 4
    with pytest.raises(Stopped):
        run(first, mortal, 3)
    monkeypatch.setattr(time, "sleep", lambda _: first.finish())
    with pytest.raises(ConfigError, match="is finished after round 1"):
        strategy("afl", tmp_path / "run", patience=1e9)
