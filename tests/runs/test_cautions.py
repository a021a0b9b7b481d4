"""Runs that still move, losses that never fall below M, and comparisons over too few seeds say so."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from propfair.runs.cautions import cautions, trend
from propfair.runs.grouping import group_runs
from propfair.runs.reading import read_run
from propfair.runs.records import CLIENT_SCHEMA, ROUND_SCHEMA
from propfair.runs.run import Run
from tests.report.builders import write_run


def with_curve(folder: Path, curve: list[float], seed: int = 0, metric: str = "accuracy") -> Run:
    """A run of 100 rounds, evaluated evenly, whose two clients follow a curve, one above and one below it."""
    run = read_run(write_run(folder, seed=seed, rounds=100, num_clients=2))
    rounds = np.linspace(100 / len(curve), 100, len(curve)).round().astype(int)
    rows = [
        (run.name, int(t), k, "test", metric, value + (k - 0.5) / 9)
        for t, value in zip(rounds, curve, strict=True)
        for k in range(2)
    ]
    records = pa.table(list(map(list, zip(*rows, strict=True))), schema=CLIENT_SCHEMA)
    return Run(run.folder, run.config_text, run.status, run.environment, run.clients, records, run.diagnostics)


def test_a_straight_rise_is_measured(tmp_path: Path) -> None:
    found = trend(with_curve(tmp_path / "run", [0.1 * t for t in range(1, 11)]))
    assert found is not None
    assert found.change == pytest.approx(0.25)  # of 1.0 in the whole run
    assert found.error == pytest.approx(0, abs=1e-9)
    assert not found.at_rest


def test_a_flat_end_is_at_rest_and_noise_is_no_trend(tmp_path: Path) -> None:
    flat = trend(with_curve(tmp_path / "flat", [0.2, 0.5, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8]))
    noisy = trend(with_curve(tmp_path / "noisy", [0.2, 0.5, 0.7, 0.8, 0.84, 0.76, 0.83, 0.81]))
    assert flat is not None
    assert flat.at_rest
    assert noisy is not None
    assert noisy.at_rest


def test_the_loss_counts_relative_to_where_it_is(tmp_path: Path) -> None:
    found = trend(with_curve(tmp_path / "run", [10 - t for t in range(10)], metric="loss"))
    assert found is not None
    assert found.metric == "loss"
    assert found.change == pytest.approx(-2.5)  # from 10 to 1 in the whole run


def test_too_few_evaluations_say_nothing(tmp_path: Path) -> None:
    assert trend(with_curve(tmp_path / "run", [0.2, 0.5, 0.9])) is None


def test_cautions_name_who(tmp_path: Path) -> None:
    rising = [with_curve(tmp_path / f"r{seed}", [0.1 * t for t in range(1, 11)], seed) for seed in range(2)]
    (few, moving) = cautions(group_runs(rising))
    assert few == "Fewer than 3 seeds: fedavg (2); differences may be chance."
    assert moving.startswith("Not at rest at the end: fedavg (+25.0 points in the last quarter); more rounds")
    flat = [with_curve(tmp_path / f"f{seed}", [0.8] * 8, seed) for seed in range(3)]
    assert cautions(group_runs(flat)) == []


def past(run: Run, shares: list[float]) -> Run:
    """The run, with these shares of batches past the threshold in its last rounds, and all of them before."""
    rounds = range(1, run.status.rounds + 1)
    values = [1.0] * (run.status.rounds - len(shares)) + shares
    columns = [[run.name] * len(values), list(rounds), ["past_threshold"] * len(values), values]
    told = pa.table(columns, schema=ROUND_SCHEMA)
    return Run(run.folder, run.config_text, run.status, run.environment, run.clients, run.records, told)


def test_losses_that_stay_past_the_threshold(tmp_path: Path) -> None:
    def told(shares: list[float]) -> list[str]:
        flat = [with_curve(tmp_path / f"{shares[0]}-{seed}", [0.8] * 8, seed) for seed in range(3)]
        return cautions(group_runs([past(run, shares) for run in flat]))

    (said,) = told([0.9] * 25)
    assert said.startswith("Most batches of the last quarter have a loss past M - epsilon, where all weigh alike")
    assert "fedavg (90 %);" in said
    assert told([0.3] * 25) == [], "what was before the last quarter does not count"
