"""A grid that grows while the best learning rate sits at its end."""

from pathlib import Path

import pytest

pytest.importorskip("optuna")

import optuna

from propfair.errors import ConfigError
from propfair.report.sweep import edge_notes
from propfair.runs.reading import read_run
from propfair.tuning.claims import Standing
from propfair.tuning.extension import RATE, all_points, wanted
from propfair.tuning.search import Search, Sweep, SweepFile, Tunable, make_sweep
from propfair.tuning.studies import Home, Studies
from propfair.tuning.sweep import TrialRunner

RUN = ["data=digits", "data.num_clients=4", "model=logistic", "schedule.rounds=2", "schedule.eval_every=1"]
PLAN = Tunable(label="x", settings={}, choices={RATE: (0.1, 0.2, 0.4), "algorithm.M": (2.0, 5.0)})


def ended(values: dict[int, float | None], count: int) -> list[Standing]:
    """Points that are done with a value, that diverged (None), or that are free (not named)."""
    found = [Standing("free")] * count
    for number, value in values.items():
        state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
        trial = optuna.create_trial(state=state, value=value)
        found[number] = Standing("failed" if value is None else "done", trial)
    return found


def after(values: dict[int, float | None], count: int = 2) -> list[dict[str, object]]:
    """The points beyond the grid that are wanted after these results."""
    points = all_points(PLAN, count)
    return [dict(points[number]) for number in wanted(PLAN, count, ended(values, len(points)))[6:]]


def test_nothing_is_added_while_the_grid_is_not_done_or_the_best_lies_inside() -> None:
    assert after({0: 1.0}) == []
    assert after({0: 0.1, 1: 0.1, 2: 0.9, 3: 0.1, 4: 0.1, 5: 0.1}) == []
    assert after(dict.fromkeys(range(6))) == [], "all diverged: there is no best one to go on from"


def test_the_next_rate_is_tried_with_the_other_values_of_the_best() -> None:
    grid: dict[int, float | None] = {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.1, 4: 0.1, 5: 0.9}
    one = {RATE: 0.8, "algorithm.M": 5.0}
    assert after(grid) == [one]
    number = next(number for number, point in enumerate(all_points(PLAN, 2)) if point == one)
    assert after({**grid, number: 0.5}) == [one], "the best lies inside now"
    assert after({**grid, number: None}) == [one], "beyond it training diverges: no further"
    assert after({**grid, number: 0.95}) == [one, {RATE: 1.6, "algorithm.M": 5.0}]


def test_it_goes_no_further_than_it_was_told() -> None:
    grid: dict[int, float | None] = {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.1, 4: 0.1, 5: 0.9}
    number = next(number for number, point in enumerate(all_points(PLAN, 1)) if point[RATE] == 0.8)
    assert len(after({**grid, number + 1: 0.95}, count=1)) == 1


def test_it_goes_down_as_well() -> None:
    grid: dict[int, float | None] = {0: 0.9, 1: 0.1, 2: 0.1, 3: 0.1, 4: 0.1, 5: 0.1}
    assert after(grid) == [{RATE: 0.05, "algorithm.M": 2.0}]


def plan(extend: int) -> Sweep:
    written = SweepFile(
        name="grows", grid={"local": {"lr": [0.005, 0.02, 0.08]}}, algorithms={"fedavg": {}},
        search=Search(extend=extend),
    )  # fmt: skip
    return make_sweep(written, RUN)


def test_a_sweep_goes_on_until_the_winner_is_inside(tmp_path: Path) -> None:
    def rates(extend: int) -> list[float]:
        return sorted(read_run(path).config["local"]["lr"] for path in (tmp_path / str(extend) / "trials").iterdir())

    def edges(extend: int) -> list[str]:
        home = Home.at(tmp_path / str(extend))
        TrialRunner(plan(extend), home).work()
        studies = Studies(plan(extend), home)
        assert studies.complete
        return edge_notes(studies.tested())

    assert edges(0) == ["fedavg: lr=0.08 is at the edge of what was tried; a better value may lie beyond it."], (
        "more is better among such small rates"
    )
    assert rates(0) == [0.005, 0.02, 0.08]
    assert edges(2) == [], "0.32 is better than 0.08 and than 1.28"
    assert rates(2) == [0.005, 0.02, 0.08, 0.32, 1.28]


def test_the_storage_of_a_sweep_that_does_not_grow_is_the_one_it_had() -> None:
    usual, grown = plan(0), plan(1)
    assert usual.fingerprint(usual.contestants[0]) != grown.fingerprint(grown.contestants[0])


def test_a_range_has_no_end_to_go_beyond() -> None:
    written = SweepFile(
        grid={"local": {"lr": {"low": 0.1, "high": 1.0}}}, algorithms={"fedavg": {}},
        search=Search(sampler="tpe", trials=2, extend=1),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="Widen the range"):
        make_sweep(written, RUN)


def test_a_grid_with_a_rate_of_0_does_not_grow() -> None:
    plan = Tunable(label="x", settings={}, choices={RATE: (0.0, 0.1)})
    assert all_points(plan, 2) == plan.grid()
