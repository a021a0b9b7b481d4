"""Comparisons: many runs at once, in as many steps as they take."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from propfair.errors import ConfigError
from propfair.runs import compare
from propfair.runs.compare import Contest
from propfair.runs.contestant import Contestant
from propfair.runs.progress import AfterRound

TINY = {"data.num_clients": 4, "schedule.rounds": 1, "model": "logistic"}


def test_hundreds_of_runs_are_not_all_begun_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds an open file, of which a process may have a thousand."""
    monkeypatch.setattr(compare, "MOST_TOGETHER", 3)
    titles: list[str] = []

    @contextlib.contextmanager
    def show_run(title: str, _: int) -> Iterator[AfterRound]:
        titles.append(title)
        yield lambda _: None

    overrides = {**TINY, "engine": "vectorized"}
    contest = Contest.of({}, Contestant.parse_all(["fedavg", "afl"]), overrides=overrides, out=tmp_path)
    done = contest.train((0, 1), show_run=show_run)
    assert titles == ["3 runs at once", "afl, seed 1"]
    assert [[(run.settings["algorithm"]["name"], run.seed) for run in one.runs] for one in done] == [
        [("fedavg", 0), ("fedavg", 1)], [("afl", 0), ("afl", 1)],
    ]  # fmt: skip


@pytest.mark.parametrize("engine", ["inprocess", "vectorized"])
def test_contestants_that_come_to_the_same_are_trained_once(engine: str, tmp_path: Path) -> None:
    contestants = Contestant.parse_all(["fedavg", "fedavg:weighting=samples"])
    contest = Contest.of({}, contestants, overrides={**TINY, "engine": engine}, out=tmp_path)
    one, other = contest.train((0, 1), show_run=lambda *_: contextlib.nullcontext(lambda _: None))
    assert [run.folder for run in one.runs] == [run.folder for run in other.runs]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_seed_counts_once(tmp_path: Path) -> None:
    contest = Contest.of({}, Contestant.parse_all(["fedavg", "afl"]), overrides=TINY, out=tmp_path)
    with pytest.raises(ConfigError, match="seeds must be different numbers"):
        contest.train((0, 0), show_run=lambda *_: contextlib.nullcontext(lambda _: None))
