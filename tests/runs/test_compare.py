"""Comparisons: many runs at once, in as many steps as they take."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from propfair.runs import compare
from propfair.runs.compare import Contest
from propfair.runs.contestant import Contestant
from propfair.runs.progress import AfterRound


def test_hundreds_of_runs_are_not_all_begun_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds an open file, of which a process may have a thousand."""
    monkeypatch.setattr(compare, "MOST_TOGETHER", 3)
    titles: list[str] = []

    @contextlib.contextmanager
    def show_run(title: str, _: int) -> Iterator[AfterRound]:
        titles.append(title)
        yield lambda _: None

    tiny = {"data.num_clients": 4, "schedule.rounds": 1, "model": "logistic", "engine": "vectorized"}
    contest = Contest.of({}, Contestant.parse_all(["fedavg", "afl"]), overrides=tiny, out=tmp_path)
    done = contest.train((0, 1), show_run=show_run)
    assert titles == ["3 runs at once", "afl, seed 1"]
    assert [[(run.settings["algorithm"]["name"], run.seed) for run in one.runs] for one in done] == [
        [("fedavg", 0), ("fedavg", 1)], [("afl", 0), ("afl", 1)],
    ]  # fmt: skip
