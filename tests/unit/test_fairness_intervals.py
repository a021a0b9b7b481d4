import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from propfair.errors import ConfigError, DataError
from propfair.fairness import (
    Evidence,
    Interval,
    Noise,
    certificate_evidence,
    difference_evidence,
    statistic_evidence,
)
from propfair.fairness.intervals import Over
from propfair.fairness.noise import Answers, drawn_agreement, smoothed
from propfair.fairness.quantiles import mid_p_limits

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


@pytest.mark.parametrize(("right", "size"), [(1, 10), (20, 40), (25, 60), (380, 400)])
def test_one_client_over_examples_has_the_mid_p_limits(right: int, size: int) -> None:
    low, high = mid_p_limits(right / size, size, 0.05)
    for limit, tail in ((low, stats.binom.sf(right, size, low)), (high, stats.binom.cdf(right - 1, size, high))):
        assert tail + stats.binom.pmf(right, size, limit) / 2 == pytest.approx(0.025)
    ours = bold(statistic_evidence([[right / size]], 0, sizes=[size])).interval("examples")
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.03 if size == 10 else 3e-3)  # smoothed a little
    assert ours.low <= right / size <= ours.high


def test_mid_p_limits_reach_the_ends_and_no_further() -> None:
    assert mid_p_limits(1.0, 10, 0.05) == pytest.approx((0.05**0.1, 1.0))  # half of p^10 is 2.5 %
    assert mid_p_limits(0.0, 10, 0.05) == pytest.approx((0.0, 1 - 0.05**0.1))


def test_over_both_the_squares_of_both_distances_add_on_each_side() -> None:
    noise = Noise(0.1 * 0.9 / 30, num_effective=30.0)
    evidence = Evidence(np.full(4, 0.9), find_noise=lambda: noise)
    low, high = evidence.limits_foreseen(0.05, "examples")
    assert (low, high) == pytest.approx(mid_p_limits(0.9, 30, 0.05))
    for variance in (1e-12, 0.01):
        both_low, both_high = evidence.limits_foreseen(0.05, "both", seed_variance=variance)
        of_seeds = (0.9 - both_low) ** 2 - (0.9 - low) ** 2
        assert of_seeds == pytest.approx((both_high - 0.9) ** 2 - (high - 0.9) ** 2)
        assert 0 <= of_seeds <= stats.t.ppf(0.975, 3) ** 2 * variance / 4 * (1 + 1e-9)


def test_noise_is_taken_off_the_nash_welfare_even_where_a_client_may_have_nothing_right() -> None:
    """Exact, over all counts of two clients: measured it is 0.015 too low on average."""
    sizes, rates = np.array([12.0, 20.0]), np.array([0.3, 0.6])
    measured = whole = 0.0
    for x, y in np.ndindex(13, 21):
        chance = stats.binom.pmf(x, 12, 0.3) * stats.binom.pmf(y, 20, 0.6)
        evidence = statistic_evidence([[x / 12, y / 20]], "nash_welfare", sizes=sizes)
        measured += chance * evidence.value
        whole += chance * (evidence.value - evidence.noise.bias[0])
    truth = math.sqrt(rates.prod())
    assert truth - measured > 0.01
    assert abs(whole - truth) < 0.003


def test_the_median_of_thousands_of_equal_clients_is_known_to_a_step_and_no_better() -> None:
    interval = statistic_evidence([[0.6] * 3001], "median", sizes=[100] * 3001).interval("examples")
    assert 0.6 - interval.low == pytest.approx(1.96 * 0.01 / math.sqrt(12), rel=0.02)


@pytest.mark.parametrize(
    ("evidence", "over", "reason"),
    [
        (statistic_evidence([[0.05, 0.6]], "nash_welfare", sizes=[20, 200]), "examples", "1 right answers, and 2"),
        (statistic_evidence([[0.5, 0.6]] * 3, "mean", sizes=[100, 100]), "both", "is not known"),
        (certificate_evidence([0.5, 0.6], [0.5, 0.5], "uniform", total=[100, 100]), "examples", "is not known"),
        (certificate_evidence([0.5, 0.6], [0.5, 0.03], "uniform", total=[100, 100]), "examples", "6 are needed"),
    ],
)
def test_where_data_are_too_few_no_interval_is_given(evidence: Evidence, over: Over, reason: str) -> None:
    assert reason in evidence.why_not(over)
    assert evidence.nearest(over) is None
    with pytest.raises(DataError, match=reason):
        evidence.interval(over)


@pytest.mark.parametrize("right", [0, 1, 9, 10])
def test_a_client_of_ten_examples_has_an_interval_that_is_no_point(right: int) -> None:
    one = statistic_evidence([[right / 10]], 0, sizes=[10]).interval()
    agreed = statistic_evidence([[right / 10]] * 2, 0, sizes=[10]).interval()  # two seeds that agree by luck
    for interval in (one, agreed):
        assert 0 <= interval.low <= right / 10 <= interval.high + 1e-9 <= 1 + 1e-9
        assert interval.high - interval.low > 0.1


def test_the_median_moves_by_the_steps_of_the_clients_in_the_middle() -> None:
    """With the steps of a mean of all clients, intervals over seeds that agree covered 88 % near 1."""
    agreed = [[1.0, 1.0, 1.0, 0.9]] * 3
    middle, mean = (statistic_evidence(agreed, name, sizes=[10] * 4).step for name in ("median", "mean"))
    assert middle == pytest.approx(0.05)
    assert mean == pytest.approx(0.025)


def test_seeds_share_the_noise_of_their_examples_whatever_the_statistic() -> None:
    """Draws of a median see less of it than there is: intervals over both covered 76 % near 1."""
    right = np.random.default_rng(3).random((1, 400)) < np.repeat([0.9, 0.6, 0.5, 0.3], 100)
    accuracy = right.reshape(1, 4, 100).mean(axis=2)
    shared = {
        name: statistic_evidence(
            np.repeat(accuracy, 3, axis=0), name, sizes=[100] * 4, answers=np.repeat(right, 3, axis=0)
        ).shared
        for name in ("mean", "median", "nash_welfare", "std", "worst10")
    }
    assert all(part == pytest.approx(1.0) for part in shared.values())


def test_seeds_that_agree_in_part_agree_less_on_who_is_worst() -> None:
    accuracy, size = np.full(10, 0.7), np.full(10, 20.0)
    assert drawn_agreement(lambda rows: rows.mean(axis=-1), accuracy, size, 0.5) == pytest.approx(0.5, abs=0.08)
    assert drawn_agreement(lambda rows: rows.min(axis=-1), accuracy, size, 0.5) < 0.4


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


def test_a_mean_over_equal_clients_is_the_accuracy_on_all_examples() -> None:
    ours = statistic_evidence([[0.9] * 10], "mean", sizes=[20] * 10).interval("examples")
    assert (ours.low, ours.high) == pytest.approx(mid_p_limits(0.9, 200, 0.05), abs=1e-3)


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
    total = np.array([10, 20, 40])
    both = np.floor(values * star * total)
    evidence = bold(certificate_evidence(values, star, "uniform", total=total, both=both))
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
