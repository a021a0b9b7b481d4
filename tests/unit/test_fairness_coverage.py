"""How often intervals cover the truth. The whole table: `python -m benchmarks.coverage`, docs/statistics.md."""

import math
import re
from pathlib import Path

import pytest
from benchmarks.coverage import COLUMNS, FEW, LEVEL, MARKS, NUMBERS, PAGE, TOLERATED, coverage
from benchmarks.made_up import regimes

from propfair.fairness.intervals import Over

REGIMES = {regime.name: regime for regime in regimes()}
REPLICATES = 200
LEAST, MOST = LEVEL - TOLERATED, LEVEL + TOLERATED
FRESH = 8112  # a seed that no bound and no formula was looked at with


def _chance(given: int) -> float:
    """Three standard errors of a share at the edge of what is tolerated."""
    return 3 * math.sqrt(LEAST * (1 - LEAST) / max(1, given))


def test_the_page_has_the_table_of_the_command() -> None:
    table = Path(PAGE).read_text(encoding="utf-8").partition(MARKS[0])[2].partition(MARKS[1])[0]
    for name in (*(number.name for number in NUMBERS), *REGIMES):
        assert name in table
    assert len(re.findall(r"\d\d\.\d", table)) > 400


def test_the_page_counts_its_table_rightly() -> None:
    """How many shares are given, within two points of 95 % and above, and why; none is below beyond chance."""
    before, _, rest = Path(PAGE).read_text(encoding="utf-8").partition(MARKS[0])
    table, _, text = rest.partition(MARKS[1])
    shares = [float(share) for share in re.findall(r"\b(\d+\.\d)\b", table)]
    low, high = sum(share < 93 for share in shares), sum(share > 97 for share in shares)
    few = len(re.findall(rf"\d\.\d{FEW}", table))
    asked = len(NUMBERS) * len(REGIMES) * sum(len(seeds) for _, seeds in COLUMNS)
    said = " ".join(text.split())
    within = len(shares) - low - high
    assert f"Of {asked} shares {len(shares)} are given: {within} are within two points of 95 %" in said
    assert f"{high} are above 97 %, {few} of them for want of values{FEW}" in said
    assert f"the lowest is {min(shares):.1f} %" in said
    assert before.count("|") > 10  # the page was not cut
    assert min(shares) > 100 * (LEAST - _chance(2000))


def test_students_interval_covers_where_the_percentile_bootstrap_did_not() -> None:
    """It covered 52, 76, 85 and 88 % with 2, 3, 5 and 10 seeds."""
    means = [number for number in NUMBERS if number.name in ("mean", "difference of means")]
    columns = coverage(REGIMES["accuracies about 60 %"], means, "seeds", (2, 3, 5), 500, 20, FRESH)
    for share in (share for column in columns for share in column):
        assert share.given == share.asked
        assert abs(share.coverage - LEVEL) < TOLERATED + _chance(share.given)


@pytest.mark.slow
@pytest.mark.parametrize("name", REGIMES)
@pytest.mark.parametrize(("over", "size"), [(over, size) for over, seeds in COLUMNS for size in seeds])
def test_coverage(name: str, over: Over, size: int) -> None:
    """Within two points, on federations that nothing was chosen on: no number below beyond chance, and their mean.

    Numbers of few values may cover more often. 45 times some five seconds of processor time.
    """
    (column,) = coverage(REGIMES[name], NUMBERS, over, (size,), REPLICATES, 10, FRESH)
    found = {number.name: share for number, share in zip(NUMBERS, column, strict=True) if share.given >= REPLICATES / 5}
    assert len(found) >= 11  # of 14: they are given
    assert not {key: share for key, share in found.items() if share.coverage < LEAST - _chance(share.given)}
    fine = [share.coverage for share in found.values() if share.coarse <= TOLERATED]
    assert LEAST <= sum(fine) / len(fine) <= MOST


def test_a_client_that_may_lose_its_last_right_answer_takes_the_product_with_it() -> None:
    """The Nash welfare covered 88 % there when it was given, the certificate 92 %."""
    numbers = [number for number in NUMBERS if number.name in ("mean", "Nash welfare", "certificate")]
    [mean, welfare, certificate], *_ = coverage(REGIMES["near 0"], numbers, "examples", (1,), 40, 10, FRESH)
    assert mean.given == mean.asked
    assert welfare.given == certificate.given == 0
