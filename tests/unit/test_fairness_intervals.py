import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from propfair.errors import ConfigError, DataError
from propfair.fairness import Evidence, Interval, Noise, certificate_evidence, difference_evidence, statistic_evidence
from propfair.fairness.intervals import Over
from propfair.fairness.noise import Answers, smoothed

relaxed = settings(deadline=None, max_examples=50)
tables = st.lists(st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3), min_size=2, max_size=6)


def test_over_seeds_is_students_interval_and_test() -> None:
    x = np.array([0.31, -0.05, 0.22, 0.17])
    ours, theirs = Evidence(x).interval(level=0.9), stats.ttest_1samp(x, 0)
    low, high = theirs.confidence_interval(0.9)
    assert (ours.low, ours.high) == pytest.approx((low, high))
    assert Evidence(x).p_value() == pytest.approx(theirs.pvalue)
    assert ours.over == "seeds"
    assert ours.leaves_out == "other test examples"


def bold(evidence: Evidence) -> Evidence:
    """With intervals also where data are too few for them: for what is about formulas."""
    return dataclasses.replace(evidence, withheld={})


@pytest.mark.parametrize(("right", "size"), [(20, 40), (25, 60), (380, 400)])
def test_one_client_over_examples_is_wilsons_interval(right: int, size: int) -> None:
    ours = bold(statistic_evidence([[right / size]], 0, sizes=[size])).interval("examples")
    theirs = stats.binomtest(right, size).proportion_ci(method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=3e-3)  # smoothed a little
    assert ours.low <= right / size <= ours.high


@pytest.mark.parametrize(
    ("evidence", "over", "reason"),
    [
        (statistic_evidence([[0.5]], 0, sizes=[10]), "examples", "10 test examples, and 20 are needed"),
        (statistic_evidence([[0.98]], 0, sizes=[100]), "examples", "2 wrong answers, and 10 are needed"),
        (statistic_evidence([[0.5], [0.6]], 0, sizes=[60]), "seeds", "Train with a third seed"),
        (statistic_evidence([[0.5, 0.6], [0.5, 0.7]], "worst10", sizes=[60, 60]), "seeds", "it rests on 60"),
        (statistic_evidence([[0.1, 0.6]], "nash_welfare", sizes=[20, 200]), "examples", "2 right answers, and 4"),
        (statistic_evidence([[0.95, 0.99]] * 3, "std", sizes=[100, 100]), "seeds", "6 wrong answers in all"),
        (statistic_evidence([[0.5, 0.6]] * 3, "mean", sizes=[100, 100]), "both", "is not known"),
        (certificate_evidence([0.5, 0.6], [0.5, 0.5], "uniform", total=[100, 100]), "examples", "is not known"),
        (certificate_evidence([0.5, 0.6], [0.5, 0.03], "uniform", total=[100, 100]), "examples", "3 right answers"),
    ],
)
def test_where_data_are_too_few_no_interval_is_given(evidence: Evidence, over: Over, reason: str) -> None:
    assert reason in evidence.why_not(over)
    assert evidence.nearest(over) is None
    with pytest.raises(DataError, match=reason):
        evidence.interval(over)


def test_a_statistic_of_one_seed_needs_no_answers() -> None:
    interval = statistic_evidence([[0.5, 0.7]], "mean", sizes=[100, 100]).interval()
    assert interval.over == "examples"
    assert interval.leaves_out == "other seeds"


@pytest.mark.parametrize("num_seeds", [2, 3, 6])
@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.5, 1, 2, 10, 1000])
def test_over_both_covers_what_it_says_whatever_weighs_more(num_seeds: int, ratio: float) -> None:
    """One variance is known, the other estimated; exact but for the quadrature over the latter."""
    seeds = ratio * stats.chi2.ppf((np.arange(400) + 0.5) / 400, num_seeds - 1) / (num_seeds - 1)
    x = np.zeros(num_seeds)
    halves = [
        -Evidence(x, find_noise=lambda: Noise(1.0)).limits_foreseen(0.05, "both", seed_variance=num_seeds * one)[0]
        for one in seeds
    ]
    coverage = np.mean(2 * stats.norm.cdf(np.array(halves) / np.sqrt(1 + ratio)) - 1)
    assert abs(coverage - 0.95) < (0.018 if num_seeds == 2 else 0.008)


def test_a_mean_over_clients_is_wilsons_interval_without_correction() -> None:
    # Equal accuracies and equal sizes: the mean of ten clients of 20 is one accuracy of 200.
    ours = statistic_evidence([[0.9] * 10], "mean", sizes=[20] * 10).interval("examples")
    theirs = stats.binomtest(180, 200).proportion_ci(method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-3)


@relaxed
@given(tables, st.sampled_from(["mean", "worst10", "std", "nash_welfare", "weighted_mean", "gini"]))
def test_intervals_hold_their_value_and_grow_with_level_and_family(table: list[list[float]], name: str) -> None:
    evidence = bold(statistic_evidence(table, name, sizes=[10, 20, 40], weights=[1, 2, 3]))
    for over in ("seeds", "examples", "both"):
        narrow, wide, many = (
            evidence.interval(over, level, family) for level, family in ((0.8, 1), (0.95, 1), (0.95, 5))
        )
        for interval in (narrow, wide, many):
            assert interval.low - 1e-9 <= interval.value <= interval.high + 1e-9
            assert interval.low >= 0.0
        assert many.low <= wide.low <= narrow.low
        assert narrow.high <= wide.high <= many.high
    both, examples = evidence.interval("both"), evidence.interval("examples")
    assert both.high - both.low >= 0.99 * (examples.high - examples.low) - 1e-6


@relaxed
@given(tables, st.sampled_from(["seeds", "examples", "both"]))
def test_the_p_value_is_the_level_at_which_zero_leaves_the_interval(table: list[list[float]], over: str) -> None:
    values = np.array(table)
    star = values[::-1]
    evidence = bold(certificate_evidence(values, star, "uniform", total=[10, 20, 40]))
    p = evidence.p_value(over)  # type: ignore[arg-type]
    assert 0 <= p <= 1
    if 1e-9 < p < 0.99:
        assert 0.0 in evidence.interval(over, 1 - 0.99 * p)  # type: ignore[arg-type]
        assert 0.0 not in evidence.interval(over, 1 - 1.01 * p)  # type: ignore[arg-type]


def test_seeds_that_agree_by_luck_are_not_certain() -> None:
    lucky = bold(statistic_evidence([[0.9]] * 3, 0, sizes=[10])).interval("seeds")
    assert lucky.low < 0.9 < lucky.high
    assert lucky.high - lucky.low < 0.2
    # Nothing is known about steps without sizes, and deterministic training is deterministic.
    assert statistic_evidence([[0.9]] * 3, 0).interval().low == 0.9


def test_limits_stay_in_bounds() -> None:
    evidence = bold(statistic_evidence([[0.99, 1.0], [0.9, 0.95]], "mean", sizes=[10, 10]))
    assert all(evidence.interval(over).high <= 1 for over in ("seeds", "examples", "both"))


def test_models_that_agree_give_narrow_differences() -> None:
    rng = np.random.default_rng(0)
    sizes = [50, 50]
    right = rng.random((2, 100)) < 0.8
    other = right ^ (rng.random((2, 100)) < 0.03)
    accuracy, accuracy_other = (Answers.of(x, np.array(sizes)).by_client / 50 for x in (right, other))
    rows = ((accuracy, right), (accuracy_other, other))
    alone, paired = (
        bold(
            difference_evidence(
                *(statistic_evidence(x, "mean", sizes=sizes, answers=y if kept else None) for x, y in rows)
            )
        ).interval("examples")
        for kept in (False, True)
    )
    assert paired.value == alone.value
    assert paired.high - paired.low < 0.6 * (alone.high - alone.low)


def test_shared_noise_of_seeds() -> None:
    rng = np.random.default_rng(1)
    hard = rng.random(2000) < 0.7
    sizes = np.array([1000.0, 1000.0])
    assert Answers.of(np.stack([hard, hard, hard]), sizes).shared == pytest.approx(1.0)
    assert Answers.of(rng.random((3, 2000)) < 0.7, sizes).shared == pytest.approx(0.0, abs=0.05)
    assert Answers.of(hard, sizes).shared == 1.0
    half = np.where(rng.random((3, 2000)) < np.sqrt(0.5), hard, rng.random((3, 2000)) < 0.7)
    assert Answers.of(half, sizes).shared == pytest.approx(0.5, abs=0.07)


def test_the_certificate_of_equal_models_is_not_raised_by_noise() -> None:
    """Two models of the same accuracy on few examples: the plain sum is positive on average, its interval is not."""
    rng = np.random.default_rng(2)
    total = np.full(100, 12)
    plain, middle = [], []
    for _ in range(60):
        right, right_star = rng.binomial(total, 0.7), np.maximum(rng.binomial(total, 0.7), 1)
        evidence = bold(
            certificate_evidence(
                right / total, right_star / total, "uniform", total=total, both=right * right_star / total
            )
        )
        plain.append(evidence.value)
        interval = evidence.interval("examples")
        middle.append((interval.low + interval.high) / 2)
    assert np.mean(plain) > 0.02
    assert abs(np.mean(middle)) < 0.01


@relaxed
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), min_size=1, max_size=8))
def test_smoothed_accuracies_are_between_their_own_and_the_mean(counts: list[tuple[int, int]]) -> None:
    size = np.array([max(pair) for pair in counts], dtype=float)
    accuracy = np.array([min(pair) for pair in counts]) / size
    drawn = smoothed(accuracy, size)
    assert ((drawn > 0) & (drawn < 1)).all()
    mean = (accuracy @ size + 1) / (size.sum() + 2)
    assert (np.minimum(accuracy, mean) - 1e-12 <= drawn).all()
    assert (drawn <= np.maximum(accuracy, mean) + 1e-12).all()


def test_what_is_not_known_is_an_error_with_a_way_out() -> None:
    with pytest.raises(DataError, match="two seeds or more"):
        Evidence(np.array([0.5])).interval("seeds")
    with pytest.raises(DataError, match="number of test examples"):
        Evidence(np.array([0.5])).interval()
    with pytest.raises(DataError, match="number of test examples"):
        Evidence(np.array([0.5, 0.6])).interval("both")
    with pytest.raises(ConfigError, match=r"0\.95 for 95 %"):
        Evidence(np.array([0.5, 0.6])).interval(level=95)
    with pytest.raises(DataError, match="accuracies from 0 to 1"):
        statistic_evidence([[2.0, 3.0]], "mean", sizes=[5, 5])
    with pytest.raises(DataError, match="whole numbers >= 1"):
        statistic_evidence([[0.2, 0.3]], "mean", sizes=[5, 0])
    with pytest.raises(ConfigError, match="no client 7"):
        statistic_evidence([[0.2, 0.3]], 7)
    with pytest.raises(DataError, match="each of 10 test examples"):
        statistic_evidence([[0.2, 0.4]], "mean", sizes=[5, 5], answers=[[True] * 9])
    assert Evidence(np.array([0.5])).p_value() == 1.0


def test_words_of_an_interval() -> None:
    assert Interval(0.1, 0.0, 0.2, 0.95, "both", 3).source == "over 3 seeds and test examples"
    assert Interval(0.1, 0.0, 0.2, 0.95, "both", 3).leaves_out == ""
    assert str(Interval(0.1, -0.012, 0.2, 0.95, "seeds", 1)) == "[-1.20 %, +20.00 %]"


def test_more_seeds_are_foreseen_to_be_narrower() -> None:
    evidence = Evidence(np.array([0.1, 0.2, 0.3]), find_noise=lambda: Noise(0.01))
    for over in ("seeds", "examples", "both"):
        now = evidence.interval(over)
        low, high = evidence.limits_foreseen(0.05, over, num_seeds=12, times_examples=4.0)
        assert high - low < 0.75 * (now.high - now.low)
    assert math.isclose(evidence.limits_foreseen(0.05, "seeds")[0], evidence.interval("seeds").low)
