"""200 kills: whenever a process dies, the same command goes on and ends with the same bits."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trust import storm

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("target", "kills"),
    [(storm.compare, 70), (storm.sweep, 70), (storm.from_python, 60)],
    ids=["compare", "sweep", "python"],
)
def test_the_storm(tmp_path: Path, target: Callable[[Path], None], kills: int) -> None:
    expected, duration = storm.whole(target, tmp_path / "whole")
    assert expected
    rng, done, number = random.Random(0), 0, 0
    while done < kills:
        number += 1
        home = tmp_path / f"storm-{number}"
        done += storm.kill_until_done(target, home, duration, rng)
        assert storm.results(home) == expected, f"after {done} kills"
