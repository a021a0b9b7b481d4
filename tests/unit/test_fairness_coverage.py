"""How often intervals cover the truth. The whole table: `python -m benchmarks.coverage`, docs/statistics.md."""

import re
from pathlib import Path

import numpy as np
import pytest
from benchmarks.coverage import MARKS, NUMBERS, PAGE, SEEDS, coverage, worlds

from propfair.fairness.intervals import Over

WORLDS = {world.name: world for world in worlds()}


def test_the_page_has_the_table_of_the_command() -> None:
    table = Path(PAGE).read_text(encoding="utf-8").partition(MARKS[0])[2].partition(MARKS[1])[0]
    for name in (*(number.name for number in NUMBERS), *WORLDS):
        assert name in table
    assert len(re.findall(r"\d\d\.\d", table)) > 200


def test_students_interval_covers_where_the_percentile_bootstrap_did_not() -> None:
    """It covered 52, 76, 85 and 88 % with 2, 3, 5 and 10 seeds."""
    means = [number for number in NUMBERS if number.name in ("mean", "difference of means")]
    for num_seeds in (2, 3, 5):
        shares = coverage(WORLDS["accuracies about 60 %"], means, "seeds", num_seeds, 600)
        assert np.abs(np.array(shares) - 0.95).max() < 0.02 + 0.02  # and chance


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize(("over", "num_seeds"), [("examples", 1), *((o, s) for o in ("seeds", "both") for s in SEEDS)])
def test_coverage(name: str, over: Over, num_seeds: int) -> None:
    """Within two points of 95 %, and what chance does to the share of 80 to 400 intervals."""
    shares = np.array(coverage(WORLDS[name], NUMBERS, over, num_seeds, 400))
    off = np.abs(shares - 0.95)
    wrong = {number.name: share for number, share, far in zip(NUMBERS, shares, off, strict=True) if far > 0.02 + 0.04}
    assert not wrong


def test_where_data_are_too_few_there_is_no_interval() -> None:
    """Found to cover 51 % (Nash welfare), 88 % (worst 10 %) and 100 % (one client) when they were given."""
    failed = coverage(WORLDS["one failed client"], NUMBERS, "seeds", 3, 40)
    near = coverage(WORLDS["near 0"], NUMBERS, "both", 3, 40)
    place = {number.name: position for position, number in enumerate(NUMBERS)}
    assert np.isnan(failed[place["Nash welfare"]])
    assert np.isnan([near[place[name]] for name in ("Nash welfare", "worst 10 %", "certificate")]).all()
    assert np.isfinite([failed[place["mean"]], near[place["mean"]]]).all()
