"""200 kills: whenever a process dies, the same command goes on to the same bits, and nobody is left behind."""

import random
import sys
import time
from pathlib import Path

import pytest

from tests.runs.killed import start
from tests.trust import storm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="looks for orphans in /proc"),
]


@pytest.mark.parametrize(
    ("target", "kills"),
    [
        (storm.one_run, 45),
        (storm.run_with_workers, 10),
        (storm.compare, 40),
        (storm.sweep, 30),
        (storm.sweep_with_workers, 10),
        (storm.bulk, 10),
        (storm.from_python, 40),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_storm(tmp_path: Path, target: storm.Target, kills: int) -> None:
    check(target, tmp_path, kills)


def test_a_flower_server(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")
    from tests.trust import flower_storm

    clients = start(flower_storm.serve_clients, tmp_path, preloaded=storm.WARM)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / flower_storm.ADDRESS).exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        check(flower_storm.deployment, tmp_path, 35)
    finally:
        clients.kill()
        clients.join()


def check(target: storm.Target, folder: Path, kills: int) -> None:
    """Begin anew and kill until it is done, as often as it takes for so many kills; all ends must be the same."""
    storm.whole(target, folder / "first")  # what is imported only once
    duration = storm.whole(target, folder / "whole")
    rng, done, number = random.Random(0), 0, 0
    while done < kills:
        number += 1
        home = folder / f"storm-{number}"
        killed, seconds = storm.kill_until_done(target, home, duration, rng)
        if not killed:  # the machine is less busy than it was, and kills would come too late
            duration = min(duration, seconds)
        done += killed
        assert storm.have_same_bits(home, folder / "whole"), f"after {done} kills"
    print(f"{done} kills of {number} runs")
