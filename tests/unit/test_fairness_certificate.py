import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from propfair.errors import ConfigError, DataError
from propfair.fairness import certificate, interval_over_both, interval_over_examples, interval_over_seeds

relaxed = settings(deadline=None, max_examples=50)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = draw(st.integers(1, 10))
    numbers = st.lists(st.floats(0.01, 1.0), min_size=n, max_size=n)
    return np.array(draw(numbers)), np.array(draw(numbers)), np.array(draw(numbers))


@relaxed
@given(pairs())
def test_identities(example: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    u, v, p = example
    weights = p / p.sum()
    there, back = certificate(u, v, p).maximum, certificate(v, u, p).maximum
    assert certificate(u, u, p).maximum == 0.0
    assert there + back == pytest.approx(float(weights @ (u / v + v / u - 2)), abs=1e-9)
    assert there + back >= -1e-12
    # log x <= x - 1: a negative certificate means a smaller Nash product.
    assert float(weights @ np.log(u / v)) <= there + 1e-12


@relaxed
@given(pairs(), st.sampled_from([0.0, 0.5, 2.0]))
def test_other_orders(example: tuple[np.ndarray, np.ndarray, np.ndarray], alpha: float) -> None:
    u, v, p = example
    weights = p / p.sum()
    expected = sum(weights * (u - v) / v**alpha)
    assert certificate(u, v, p, alpha=alpha).maximum == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_many_models_and_their_mixtures() -> None:
    models = {"FedAvg": [0.7, 0.3], "AFL": [0.5, 0.5], "TERM": [0.62, 0.4]}
    result = certificate(models, [0.6, 0.4], [3, 1])
    assert result.names == ("FedAvg", "AFL", "TERM")
    np.testing.assert_allclose(result.values, [0.75 / 6 - 0.25 / 4, -0.75 / 6 + 0.25 / 4, 0.75 * 0.02 / 0.6])
    assert result.maximizer == "FedAvg"
    assert result.maximum == result.hull_maximum
    np.testing.assert_allclose(result.relative[0], [1 / 6, -1 / 4])
    mixtures = np.random.default_rng(0).dirichlet(np.ones(3), 500) @ np.array(list(models.values()))
    assert certificate(mixtures, [0.6, 0.4], [3, 1]).maximum <= result.hull_maximum + 1e-12
    np.testing.assert_array_equal(result.hull_weights, [1, 0, 0])
    again = json.loads(json.dumps(result.as_dict()))
    assert again["values"]["TERM"] == result.values[2]
    assert again["maximizer"] == "FedAvg"


def test_zero_utilities_are_errors_and_never_dropped() -> None:
    with pytest.raises(DataError, match="u_star must be > 0 for every client; got 0 for client 1"):
        certificate([0.5, 0.5], [0.5, 0.0], "uniform")
    assert certificate([0.0, 0.5], [0.5, 0.5], "uniform").maximum == -0.5  # nothing left for a client: -100 %
    with pytest.raises(DataError, match="correct_star"):
        interval_over_examples([1, 1], [1, 0], [2, 2], "uniform", both=[0, 0])


def test_interval_over_examples_covers_the_truth() -> None:
    rng = np.random.default_rng(7)
    rate, rate_star, total, p = np.array([0.6, 0.5, 0.8]), np.array([0.7, 0.5, 0.6]), np.full(3, 400), [0.5, 0.3, 0.2]
    truth = certificate(rate, rate_star, p).maximum
    covered = 0
    for _ in range(400):
        table = np.stack(
            [
                rng.multinomial(400, [u * v, u * (1 - v), (1 - u) * v, (1 - u) * (1 - v)])
                for u, v in zip(rate, rate_star, strict=True)
            ]
        )
        correct, correct_star, both = table[:, 0] + table[:, 1], table[:, 0] + table[:, 2], table[:, 0]
        interval = interval_over_examples(correct, correct_star, total, p, both=both)
        covered += truth in interval
    assert 0.92 <= covered / 400 <= 0.98


def test_paired_intervals_are_narrower_for_models_that_agree() -> None:
    correct, correct_star, total = [300, 250], [310, 240], [400, 400]
    alone = interval_over_examples(correct, correct_star, total, "uniform", both=[233, 150])  # by chance
    paired = interval_over_examples(correct, correct_star, total, "uniform", both=[295, 235])
    assert paired.value == alone.value
    assert paired.high - paired.low < 0.5 * (alone.high - alone.low)


def test_a_handful_of_hits_is_hardly_evidence() -> None:
    with pytest.raises(DataError, match="1 right answers, and 6 are needed of every one"):
        interval_over_examples([1, 90], [1, 90], [100, 100], "uniform", both=[1, 90])


def test_interval_over_seeds() -> None:
    u, star = [[0.5, 0.6], [0.5, 0.5], [0.4, 0.6]], [[0.5, 0.5]] * 3
    interval = interval_over_seeds(u, star, "uniform")
    assert interval.value == pytest.approx((0.1 + 0.0 + 0.0) / 3)
    low, high = stats.t.interval(0.95, 2, loc=interval.value, scale=stats.sem([0.1, 0.0, 0.0]))
    assert (interval.low, interval.high) == pytest.approx((low, high))
    assert interval.over == "seeds"


def test_interval_over_both_is_wider_than_either() -> None:
    rng = np.random.default_rng(0)
    right, right_star = rng.random((3, 160)) < 0.6, np.repeat(rng.random((1, 160)) < 0.5, 3, axis=0)
    u, star = (answers.reshape(3, 2, 80).mean(axis=2) for answers in (right, right_star))
    both = interval_over_both(u, star, [80, 80], "uniform", answers=(right, right_star))
    seeds = interval_over_seeds(u, star, "uniform")
    assert both.high - both.low > seeds.high - seeds.low


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: certificate([0.5], [0.5, 0.5], "uniform"), DataError, "each of 2 clients"),
        (lambda: certificate({"A": [0.5]}, [0.5, 0.5], "uniform"), DataError, r"u\['A'\]"),
        (lambda: certificate([math.nan], [0.5], "uniform"), DataError, "finite"),
        (lambda: certificate([0.5], [0.5], "uniform", alpha=-1.0), ConfigError, "alpha"),
        (lambda: interval_over_examples([3], [1], [2], "uniform", both=[1]), DataError, "from 0 to 2"),
        (lambda: interval_over_examples([0.5], [1], [2], "uniform", both=[0]), DataError, "whole numbers"),
        (lambda: interval_over_examples([2], [2], [2], "uniform", both=[1]), DataError, "both must be"),
        (
            lambda: interval_over_examples([60], [60], [120], "uniform", both=[50], level=95.0),
            ConfigError,
            "0.95 for 95 %",
        ),
        (lambda: interval_over_seeds([[0.5]], [[0.4]], "uniform"), DataError, "two seeds or more"),
        (lambda: interval_over_seeds([[0.5]] * 2, [[0.5]] * 3, "uniform"), DataError, "2 rows and 3 rows"),
    ],
)
def test_errors_say_what_to_do(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]
