import json
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from propfair.errors import ConfigError, DataError
from propfair.fairness import compare_statistic, holm

relaxed = settings(deadline=None, max_examples=50)


def tables(**by_name: list[list[float]]) -> dict[str, dict[int, list[float]]]:
    return {name: dict(enumerate(rows)) for name, rows in by_name.items()}


RNG = np.random.default_rng(0)
THREE = {
    name: {seed: np.clip(level + 0.02 * RNG.standard_normal(5), 0, 1) for seed in range(6)}
    for name, level in (("low", 0.5), ("high", 0.7), ("also high", 0.705))
}


@pytest.mark.parametrize("statistic", ["mean", "worst10", "nash_welfare", "std", 3])
def test_pairs_are_paired_t_tests_with_holms_p_values(statistic: str | int) -> None:
    found = compare_statistic(THREE, statistic)
    by_seed = {
        name: [
            {"mean": row.mean(), "worst10": row.min(), "nash_welfare": stats.gmean(row), "std": row.std(), 3: row[3]}[
                statistic
            ]
            for row in rows.values()
        ]
        for name, rows in THREE.items()
    }
    raw = []
    for (a, x), (b, y) in combinations(by_seed.items(), 2):
        i, j = found.names.index(a), found.names.index(b)
        theirs = stats.ttest_rel(x, y)
        low, high = theirs.confidence_interval(1 - 0.05 / 3)
        assert found.differences[i, j] == pytest.approx(np.mean(np.subtract(x, y)))
        assert (found.low[i, j], found.high[i, j]) == pytest.approx((low, high))
        assert found.p_values[j, i] == found.p_values[i, j]
        assert (found.low[j, i], found.high[j, i]) == pytest.approx((-high, -low))
        raw.append(theirs.pvalue)
    upper = [found.p_values[i, j] for i, j in combinations(range(3), 2)]
    assert upper == pytest.approx(holm(raw).tolist())
    assert (found.num_seeds == 6).all()


def test_best_is_all_that_the_leader_is_not_ahead_of() -> None:
    found = compare_statistic(THREE, "mean")
    assert found.leader == "also high"
    assert set(found.best) == {"high", "also high"}
    assert found.ahead[1, 0]
    assert not found.ahead[0, 1]
    assert not found.ahead[1, 2]


def test_less_is_better_for_spreads_and_losses() -> None:
    assert not compare_statistic(THREE, "std").more_is_better
    losses = compare_statistic(THREE, "mean", higher_is_better=False)
    assert losses.leader == "low"
    assert losses.best == ("low",)
    assert losses.ahead[0, 1]
    assert compare_statistic(THREE, "jain", higher_is_better=True).more_is_better


@relaxed
@given(st.integers(2, 5), st.integers(0, 10_000))
def test_copies_change_nothing(seeds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    plain = {name: {s: rng.random(4).round(2) for s in range(seeds)} for name in "abc"}
    copied = {**plain, "b again": {s: row.copy() for s, row in plain["b"].items()}}
    before, after = compare_statistic(plain, "mean"), compare_statistic(copied, "mean")
    for matrix in ("differences", "low", "high", "p_values"):
        np.testing.assert_array_equal(getattr(after, matrix)[:3, :3], getattr(before, matrix))
        np.testing.assert_array_equal(getattr(after, matrix)[3, [0, 2]], getattr(before, matrix)[1, [0, 2]])
    assert after.p_values[1, 3] == 1
    assert [name for name in after.best if name != "b again"] == list(before.best)
    assert ("b again" in after.best) == ("b" in after.best)


SIZES = (20, 30, 40)


def answered(seeds: int, **rates: float) -> tuple[dict[str, dict[int, list[float]]], dict[str, dict[int, np.ndarray]]]:
    """Accuracies of three clients, and the answers that they come from."""
    rng, ends = np.random.default_rng(5), np.cumsum([0, *SIZES])
    right = {name: dict(enumerate(rng.random((seeds, 90)) < rate)) for name, rate in rates.items()}
    return {
        name: {seed: [row[start:stop].mean() for start, stop in pairwise(ends)] for seed, row in rows.items()}
        for name, rows in right.items()
    }, right


@pytest.mark.parametrize("statistic", ["mean", "worst10", "nash_welfare"])
def test_copies_change_nothing_over_test_examples(statistic: str) -> None:
    """Whichever way round they are compared: noise lowers the welfare of one more than that of the other."""
    plain, right = answered(1, a=0.5, b=0.7, c=0.6)
    before = compare_statistic(plain, statistic, sizes=SIZES, answers=right)
    copied, answers = ({"b before": one["b"], **one, "a again": one["a"]} for one in (plain, right))
    after = compare_statistic(copied, statistic, sizes=SIZES, answers=answers)
    assert before.over[0][1] == "examples"
    for matrix in ("differences", "low", "high", "p_values"):
        np.testing.assert_allclose(getattr(after, matrix)[1:4, 1:4], getattr(before, matrix))


def test_the_bias_of_the_seeds_that_both_have_is_taken_off() -> None:
    plain, right = answered(3, a=0.5, b=0.6)
    whole = compare_statistic(plain, "nash_welfare", sizes=SIZES, answers=right, over="both")
    for one in (plain, right):
        del one["b"][1]
    found = compare_statistic(plain, "nash_welfare", sizes=SIZES, answers=right, over="both")
    assert (whole.num_seeds[0, 1], found.num_seeds[0, 1]) == (3, 2)
    assert found.low[0, 1] < found.differences[0, 1] < found.high[0, 1]


@relaxed
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm(p_values: list[float]) -> None:
    p, adjusted = np.array(p_values), holm(p_values)
    assert (adjusted >= p).all()
    assert (adjusted <= np.minimum(1, p * p.size)).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()


def test_seeds_that_only_one_has_are_left_out() -> None:
    first = {0: [0.9], 1: [0.8], 2: [0.1]}
    found = compare_statistic({"a": first, "b": {0: [0.7], 1: [0.65]}}, "mean")
    assert found.num_seeds[0, 1] == 2
    assert found.differences[0, 1] == pytest.approx((0.2 + 0.15) / 2)
    assert found.values[0] == pytest.approx(0.6)


def test_without_a_common_seed_there_is_no_difference() -> None:
    found = compare_statistic({"a": {0: [0.9], 1: [0.8]}, "b": {2: [0.7], 3: [0.6]}}, "mean")
    assert np.isnan(found.differences[0, 1])
    assert np.isnan(found.p_values[0, 1])
    assert found.best == ("a", "b")


def test_one_seed_each_over_examples() -> None:
    rows = {"a": {0: [0.9, 0.8]}, "b": {5: [0.6, 0.5]}}
    assert np.isnan(compare_statistic(rows, "mean").low[0, 1])
    unknown = compare_statistic(rows, "mean", sizes=[200, 200])  # how much do they agree?
    assert not unknown.known
    assert unknown.best == ("a", "b")
    right = {"a": {0: [True] * 340 + [False] * 60}, "b": {5: [True] * 100 + [False] * 180 + [True] * 120}}
    found = compare_statistic(rows, "mean", sizes=[200, 200], answers=right)
    assert found.over[0][1] == "examples"
    assert found.known
    assert found.best == ("a",)


def test_answers_make_means_surer() -> None:
    rng = np.random.default_rng(5)
    sizes = np.array([100, 100])
    right = rng.random((1, 200)) < 0.7
    better = right | (rng.random((1, 200)) < 0.1)
    answers = {"a": {0: better[0]}, "b": {0: right[0]}}
    accuracy = {name: {0: row[0].reshape(2, 100).mean(axis=1)} for name, row in answers.items()}
    unknown, known = (compare_statistic(accuracy, "mean", sizes=sizes, answers=x) for x in (None, answers))
    assert unknown.best == ("a", "b")
    assert known.best == ("a",)


def test_behind_by_an_unknown_margin_is_not_equal() -> None:
    ahead = {seed: [0.7 + 0.01 * seed, 0.6 - 0.01 * seed] for seed in range(5)}
    close = {seed: [0.7 - 0.01 * seed, 0.6 + 0.01 * seed] for seed in range(5)}
    failed = {9: [0.6, 0.1]}  # no seed in common with the others
    found = compare_statistic({"ahead": ahead, "close": close, "failed": failed}, "worst", sizes=[100, 100])
    assert np.isnan(found.p_values[0, 2])
    assert "failed" not in found.best


def test_wrong_claims_are_rare_over_all_pairs() -> None:
    rng = np.random.default_rng(6)
    wrong = 0
    for _ in range(200):
        equal = {str(k): dict(enumerate(0.5 + 0.02 * rng.standard_normal((4, 3)))) for k in range(5)}
        wrong += int(compare_statistic(equal, "mean").ahead.any())
    assert wrong / 200 <= 0.05 + 0.03


def test_as_json_and_errors() -> None:
    assert json.loads(json.dumps(compare_statistic(THREE, "mean").as_dict()))["best"] == ["high", "also high"]
    with pytest.raises(ConfigError, match="two algorithms"):
        compare_statistic({"a": {0: [0.5]}}, "mean")
    with pytest.raises(DataError, match="b has none"):
        compare_statistic({"a": {0: [0.5]}, "b": {}}, "mean")
    with pytest.raises(ConfigError, match="no statistic 'middle'"):
        compare_statistic(THREE, "middle")


def test_what_holms_test_alone_finds_is_told_apart() -> None:
    """Three pairs: the second and the third are tested at a wider level than that of the limits of all at once."""
    rng = np.random.default_rng(1)
    noise = 0.002 * rng.standard_normal((3, 4))
    tables = {
        name: {seed: [level + noise[k, seed]] for seed in range(4)}
        for k, (name, level) in enumerate((("low", 0.5), ("middle", 0.505), ("high", 0.6)))
    }
    found = compare_statistic(tables, "mean")
    assert found.ahead[1, 0]
    assert found.low[1, 0] < 0 < found.high[1, 0]
    assert found.by_test_alone[1, 0]
    assert found.by_test_alone[0, 1]
    assert not found.by_test_alone[2, 0]
