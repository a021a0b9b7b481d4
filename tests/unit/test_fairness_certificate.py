import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from propfair.errors import ConfigError, DataError
from propfair.fairness.certificate import Interval, certificate, interval_over_examples, interval_over_seeds

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


def test_verdicts() -> None:
    fair = certificate({"A": [0.4, 0.5]}, [0.5, 0.5], "uniform")
    assert fair.verdict() == "proportionally fair against this model: A changes the clients by -10.00 % on average"
    unfair = certificate({"A": [0.4, 0.5], "B": [0.6, 0.5]}, [0.5, 0.5], "uniform")
    assert unfair.verdict() == "not proportionally fair: B changes the clients by +10.00 % on average"
    assert unfair.verdict(tolerance=0.2).startswith("proportionally fair against these 2 models")
    wide, narrow = Interval(0.1, -0.02, 0.2, 0.95, "examples", 10), Interval(0.1, 0.05, 0.2, 0.95, "examples", 10)
    change = "B changes the clients by +10.00 % on average (95 % interval [-2.00 %, +20.00 %])"
    assert unfair.verdict(interval=wide) == f"undecided: {change}, which may be chance"
    assert unfair.verdict(interval=narrow).startswith("not proportionally fair")
    assert certificate([0.6], [0.5], [1], alpha=2.0).verdict() == (
        "not 2-fair: model 0 changes the clients by a sum of +0.4"
    )
    assert certificate([0.4], [0.5], [1], alpha=0.0).verdict().startswith("utilitarian against this model")


def test_zero_utilities_are_errors_and_never_dropped() -> None:
    with pytest.raises(DataError, match="u_star must be > 0 for every client; got 0 for client 1"):
        certificate([0.5, 0.5], [0.5, 0.0], "uniform")
    assert certificate([0.0, 0.5], [0.5, 0.5], "uniform").maximum == -0.5  # nothing left for a client: -100 %
    with pytest.raises(DataError, match="correct_star"):
        interval_over_examples([1, 1], [1, 0], [2, 2], "uniform")


def test_interval_over_examples_covers_the_truth() -> None:
    rng = np.random.default_rng(7)
    rate, rate_star, total, p = np.array([0.6, 0.5, 0.8]), np.array([0.7, 0.5, 0.6]), np.full(3, 400), [0.5, 0.3, 0.2]
    truth = certificate(rate, rate_star, p).maximum
    covered = 0
    for trial in range(200):
        correct, correct_star = rng.binomial(total, rate), rng.binomial(total, rate_star)
        interval = interval_over_examples(correct, correct_star, total, p, num_resamples=300, seed=trial)
        covered += interval.low <= truth <= interval.high
        assert interval.low <= interval.value <= interval.high
    assert 0.90 <= covered / 200 <= 0.995


def test_paired_draws_are_narrower_for_models_that_agree() -> None:
    correct, correct_star, total = [300, 250], [310, 240], [400, 400]
    alone = interval_over_examples(correct, correct_star, total, "uniform")
    paired = interval_over_examples(correct, correct_star, total, "uniform", both=[295, 235])
    assert paired.value == alone.value
    assert paired.high - paired.low < 0.5 * (alone.high - alone.low)


def test_draws_without_any_hit_count_against_fairness() -> None:
    interval = interval_over_examples([1, 90], [1, 90], [100, 100], "uniform", num_resamples=1000)
    assert interval.num_undefined > 200
    assert interval.high == math.inf


def test_interval_over_seeds() -> None:
    u, star = [[0.5, 0.6], [0.5, 0.5], [0.4, 0.6]], [[0.5, 0.5]] * 3
    interval = interval_over_seeds(u, star, "uniform")
    assert interval.value == pytest.approx((0.1 + 0.0 + 0.0) / 3)
    assert 0.0 <= interval.low <= interval.value <= interval.high <= 0.1
    assert interval.over == "seeds"
    assert interval_over_seeds(u, star, "uniform") == interval


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: certificate([0.5], [0.5, 0.5], "uniform"), DataError, "each of 2 clients"),
        (lambda: certificate({"A": [0.5]}, [0.5, 0.5], "uniform"), DataError, r"u\['A'\]"),
        (lambda: certificate([math.nan], [0.5], "uniform"), DataError, "finite"),
        (lambda: certificate([0.5], [0.5], "uniform", alpha=-1.0), ConfigError, "alpha"),
        (lambda: interval_over_examples([3], [1], [2], "uniform"), DataError, "from 0 to 2"),
        (lambda: interval_over_examples([0.5], [1], [2], "uniform"), DataError, "whole numbers"),
        (lambda: interval_over_examples([2], [2], [2], "uniform", both=[1]), DataError, "both must be"),
        (lambda: interval_over_examples([1], [1], [2], "uniform", level=95.0), ConfigError, "0.95 for 95 %"),
        (lambda: interval_over_examples([1], [1], [2], "uniform", num_resamples=0), ConfigError, ">= 1"),
        (lambda: interval_over_seeds([[0.5]], [[0.5]], "uniform"), DataError, "two or more"),
        (lambda: interval_over_seeds([[0.5]] * 2, [[0.5]] * 3, "uniform"), DataError, "2 rows and 3 rows"),
    ],
)
def test_errors_say_what_to_do(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]
