import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from propfair.errors import ConfigError, DataError
from propfair.fairness import best_fraction, over_seeds, summarize, summarize_seeds, worst_fraction

relaxed = settings(deadline=None, max_examples=50)

accuracies = arrays(np.float64, st.integers(1, 30), elements=st.floats(0.0, 1.0, allow_subnormal=False))


def test_hand_computed_table() -> None:
    s = summarize([0.1, 0.4, 0.4, 0.7], weights=[4, 3, 2, 1])
    assert s.num_clients == 4
    assert s.num_excluded == 0
    assert s.mean == pytest.approx(0.4)
    assert s.weighted_mean == pytest.approx(0.04 + 0.12 + 0.08 + 0.07)
    assert s.std == pytest.approx(math.sqrt(0.18 / 4))
    assert s.weighted_std == pytest.approx(math.sqrt(0.4 * 0.21**2 + 0.5 * 0.09**2 + 0.1 * 0.39**2))
    assert (s.worst, s.best, s.median) == (0.1, 0.7, 0.4)
    assert s.variance_of_percent == pytest.approx(450.0)
    assert s.jain == pytest.approx(1.6**2 / (4 * 0.82))
    assert s.gini == pytest.approx(2 * (3 * 0.3 + 0.3 + 0.6) / (2 * 16 * 0.4))
    shares = [0.0625, 0.25, 0.25, 0.4375]
    assert s.entropy == pytest.approx(-sum(share * math.log(share) for share in shares))
    assert s.cosine == pytest.approx(math.sqrt(s.jain))
    assert s.nash_welfare == pytest.approx((0.1 * 0.4 * 0.4 * 0.7) ** 0.25)
    assert s.weighted_nash_welfare == pytest.approx(0.1**0.4 * 0.4**0.5 * 0.7**0.1)


def test_sample_std() -> None:
    assert summarize([1.0, 3.0], ddof=1).std == pytest.approx(math.sqrt(2))
    assert math.isnan(summarize([1.0], ddof=1).std)


@pytest.mark.parametrize(
    ("n", "k", "count"), [(10, 0.1, 1), (20, 0.1, 2), (9, 0.1, 1), (100, 0.29, 29), (7, 0.3, 2), (3, 1.0, 3)]
)
def test_tail_counts(n: int, k: float, count: int) -> None:
    values = np.arange(n, dtype=float)
    assert worst_fraction(values[::-1], k) == pytest.approx(values[:count].mean())
    assert best_fraction(values, k) == pytest.approx(values[-count:].mean())
    assert worst_fraction(values, k, higher_is_better=False) == best_fraction(values, k)


def test_losses_are_worst_at_the_top() -> None:
    s = summarize([0.5, 2.0, 1.0], higher_is_better=False)
    assert (s.worst, s.best, s.worst10, s.best10) == (2.0, 0.5, 2.0, 0.5)
    assert math.isnan(s.variance_of_percent)


def test_nan_is_excluded_and_counted() -> None:
    s = summarize([0.2, math.nan, 0.6], weights=[1, 7, 3])
    assert (s.num_clients, s.num_excluded) == (2, 1)
    assert s.mean == pytest.approx(0.4)
    assert s.weighted_mean == pytest.approx(0.5)
    empty = summarize([math.nan, math.nan])
    assert (empty.num_clients, empty.num_excluded) == (0, 2)
    assert all(math.isnan(value) for name, value in empty.as_dict().items() if not name.startswith("num_"))


def test_negative_zero_and_infinite_values_are_never_silently_wrong() -> None:
    negative = summarize([-1.0, 2.0])
    assert all(math.isnan(v) for v in (negative.jain, negative.gini, negative.entropy, negative.nash_welfare))
    zero = summarize([0.0, 0.0])
    assert all(math.isnan(v) for v in (zero.jain, zero.gini, zero.entropy, zero.cosine))
    assert (zero.mean, zero.nash_welfare) == (0.0, 0.0)
    assert summarize([0.0, 1.0]).nash_welfare == 0.0
    diverged = summarize([1.0, math.inf], higher_is_better=False)
    assert (diverged.mean, diverged.worst, diverged.num_excluded) == (math.inf, math.inf, 0)
    assert math.isnan(diverged.std)


def test_percent_and_fractions_agree() -> None:
    fractions = summarize([0.5, 0.6, 0.9])
    percent = summarize([50.0, 60.0, 90.0], unit="percent")
    assert fractions.variance_of_percent == pytest.approx(percent.variance_of_percent)
    assert math.isnan(summarize([50.0, 60.0]).variance_of_percent)
    for name in ("jain", "gini", "entropy", "cosine"):
        assert getattr(fractions, name) == pytest.approx(getattr(percent, name))


@relaxed
@given(accuracies)
def test_ranges_and_orders(values: np.ndarray) -> None:
    s = summarize(values)
    tolerance = 1e-9
    assert s.worst - tolerance <= s.worst10 <= s.worst20 + tolerance
    assert s.worst20 <= s.worst30 + tolerance
    assert s.worst30 <= s.mean + tolerance
    assert s.mean <= s.best30 + tolerance
    assert s.best30 <= s.best20 + tolerance
    assert s.best20 - tolerance <= s.best10 <= s.best + tolerance
    assert s.nash_welfare <= s.mean + tolerance
    if values.max() > 0:
        assert 1 / len(values) - tolerance <= s.jain <= 1 + tolerance
        assert -tolerance <= s.gini <= 1 - 1 / len(values) + tolerance
        assert -tolerance <= s.entropy <= math.log(len(values)) + tolerance
        assert s.cosine**2 == pytest.approx(s.jain)


@relaxed
@given(accuracies, st.randoms())
def test_order_of_clients_does_not_matter(values: np.ndarray, random: object) -> None:
    shuffled = np.array(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    ours, theirs = summarize(values).as_dict(), summarize(shuffled).as_dict()
    assert ours == pytest.approx(theirs, nan_ok=True, abs=1e-12)


@relaxed
@given(st.integers(1, 20), st.floats(1e-3, 1e3))
def test_equality(n: int, level: float) -> None:
    s = summarize(np.full(n, level), unit="percent")
    assert s.jain == pytest.approx(1.0)
    assert s.cosine == pytest.approx(1.0)
    assert s.gini == pytest.approx(0.0, abs=1e-12)
    assert s.std == pytest.approx(0.0, abs=1e-9)
    assert s.entropy == pytest.approx(math.log(n), abs=1e-12)
    assert s.nash_welfare == pytest.approx(level)


def test_over_seeds() -> None:
    population, sample = over_seeds([1.0, 2.0, 6.0]), over_seeds([1.0, 2.0, 6.0], ddof=1)
    assert (population.kind, sample.kind) == ("population", "sample")
    assert population.std == pytest.approx(math.sqrt(14 / 3))
    assert sample.std == pytest.approx(math.sqrt(7))
    assert math.isnan(over_seeds([1.0, math.nan]).mean)
    assert math.isnan(over_seeds([1.0], ddof=1).std)


def test_summarize_seeds_is_clients_first() -> None:
    table = summarize_seeds([summarize([0.2, 0.6]), summarize([0.4, 0.4])])
    assert table["std"].mean == pytest.approx(0.1)
    assert table["worst"].std == pytest.approx(0.1)
    assert table["mean"].num_seeds == 2


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: summarize([]), DataError, "one number per client"),
        (lambda: summarize([[1.0]]), DataError, "one number per client"),
        (lambda: summarize([1.0], weights=[1.0, 2.0]), ConfigError, "weights must have one number"),
        (lambda: summarize([1.0], weights=[-1.0]), ConfigError, "finite and >= 0"),
        (lambda: summarize([1.0, math.nan], weights=[0.0, 1.0]), ConfigError, "sum to 0"),
        (lambda: summarize([1.0], ddof=2), ConfigError, "ddof"),
        (lambda: summarize([1.0], unit="bps"), ConfigError, "unit"),  # type: ignore[arg-type]
        (lambda: worst_fraction([1.0], 0.0), ConfigError, "0 < k <= 1"),
        (lambda: worst_fraction([1.0], 10), ConfigError, "0.1 for 10 %"),
        (lambda: over_seeds([]), DataError, "per seed"),
        (lambda: over_seeds([1.0], ddof=3), ConfigError, "ddof"),
        (lambda: summarize_seeds([]), DataError, "at least one seed"),
    ],
)
def test_errors_say_what_to_do(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]
