import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from propfair.algorithms import ALGORITHMS, Cohort
from propfair.algorithms.aaggff import AAggFF

LOSSES = [[0.5, 1.0, 2.0], [0.4, 1.1, 1.5], [0.2, 0.3, 1.9]]


def silo(rounds: list[list[float]]) -> list[list[float]]:
    """lambda after each round from the formulas, exponential CDF, with a general solver."""
    n = len(rounds[0])
    lam, total, outer, found = np.full(n, 1 / n), np.zeros(n), 4 * np.eye(n), []
    for loss in rounds:
        r = (1 - np.exp(-np.array(loss) / np.mean(loss))) / n
        g = -r / (1 + lam @ r)
        total, outer = total + g, outer + np.outer(g, g)
        lam = minimize(
            lambda x, total=total, outer=outer: total @ x + 2 * x @ x + n / 8 * x @ outer @ x, lam,
            bounds=[(0, 1)] * n, constraints={"type": "eq", "fun": lambda x: x.sum() - 1}, options={"ftol": 1e-15},
        ).x  # fmt: skip
        found.append(lam.tolist())
    return found


def test_cross_silo_is_the_formula() -> None:
    rule = AAggFF()
    state = rule.init(torch.full((3,), 1 / 3, dtype=torch.float64))
    for number, (loss, expected) in enumerate(zip(LOSSES, silo(LOSSES), strict=True), start=1):
        weights, state = rule.weigh(Cohort.of(share=[0.5, 0.3, 0.2], loss=loss, round_=number), state)
        assert weights.tolist() == pytest.approx(expected, abs=1e-6)


def test_cross_device_by_hand() -> None:
    """Clients 0 and 2 of 4, losses 1 and 3: r = (1 - e^-.5, 1 - e^-1.5) / 2, and C = 1/2."""
    rule = AAggFF(setting="device")
    state = rule.init(torch.full((4,), 0.25, dtype=torch.float64))
    weights, state = rule.weigh(Cohort.of(share=[0.5, 0.5], loss=[1.0, 3.0], clients=(0, 2)), state)
    r = [(1 - math.exp(-0.5)) / 2, (1 - math.exp(-1.5)) / 2]
    mean = sum(r) / 2
    robust = np.array([mean + 2 * (r[0] - mean), mean, mean + 2 * (r[1] - mean), mean])
    gradient = -robust / (1 + mean) + mean * (0.25 * (robust - mean).sum()) / (1 + mean) ** 2
    power = np.exp(-math.sqrt(math.log(4) / 2) / 2.5 * gradient)
    lam = power / power.sum()
    assert state["lambda"].tolist() == pytest.approx(lam.tolist())
    assert weights.tolist() == pytest.approx([lam[0] / (lam[0] + lam[2]), lam[2] / (lam[0] + lam[2])])
    assert lam[2] > lam[1] == lam[3] > lam[0]


def test_the_doubly_robust_response_is_unbiased() -> None:
    """Over all pairs of 4 clients, the gradients sum up as if everybody had been asked, to first order."""
    rule, share = AAggFF(setting="device"), torch.full((4,), 0.25, dtype=torch.float64)
    losses = [0.99, 1.0, 1.01, 1.0]
    pairs = [(i, j) for i in range(4) for j in range(i)]
    gradients = []
    for pair in pairs:
        cohort = Cohort.of(share=[0.5, 0.5], loss=[losses[k] for k in pair], clients=pair)
        gradients.append(rule.weigh(cohort, rule.init(share))[1]["gradient"])
    mean = torch.stack(gradients).mean(0)
    spread = mean - mean.mean()
    assert float(spread[2] - spread[0]) < 0  # the larger loss, the steeper
    assert float(spread[1] + spread[3] - spread[0] - spread[2]) == pytest.approx(0, abs=1e-4)


CDFS: dict[str, Callable[[float], float]] = {
    "weibull": lambda x: 1 - math.exp(-(x**2)),
    "exponential": lambda x: 1 - math.exp(-x),
    "frechet": lambda x: math.exp(-1 / x),
    "normal": NormalDist(1, 1).cdf,
    "gumbel": lambda x: math.exp(-math.exp(1 - x)),
    "logistic": lambda x: 1 / (1 + math.exp(1 - x)),
}


@pytest.mark.parametrize("cdf", CDFS)
def test_cumulative_distributions(cdf: str) -> None:
    """The first gradient is -r / (1 + mean r), so that ratios of its entries are ratios of the responses."""
    rule = ALGORITHMS.make("aaggff", {"cdf": cdf})
    cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 1.5])
    gradient = rule.weigh(cohort, rule.init(cohort.share))[1]["gradient"]
    r = [CDFS[cdf](x) for x in (0.5, 1.0, 1.5)]
    assert (gradient / gradient[1]).tolist() == pytest.approx([x / r[1] for x in r])


@settings(max_examples=30, deadline=None)
@given(
    setting=st.sampled_from(["silo", "device"]),
    cdf=st.sampled_from(sorted(CDFS)),
    rounds=st.lists(st.lists(st.floats(0, 1e6), min_size=4, max_size=4), min_size=1, max_size=6),
)
def test_weights_stay_on_the_simplex(setting: str, cdf: str, rounds: list[list[float]]) -> None:
    rule = ALGORITHMS.make("aaggff", {"setting": setting, "cdf": cdf})
    state = rule.init(torch.full((6,), 1 / 6, dtype=torch.float64))
    for number, loss in enumerate(rounds, start=1):
        clients = tuple(sorted({(number * k) % 6 for k in range(4)} | {5}))[:4]
        cohort = Cohort.of(share=[1 / len(clients)] * len(clients), loss=loss[: len(clients)], clients=clients)
        weights, state = rule.weigh(cohort, state)
        for point in (weights, state["lambda"]):
            assert (point >= 0).all()
            assert float(point.sum()) == pytest.approx(1)


def test_clients_that_stay_worst_off_gain_weight() -> None:
    for setting in ("silo", "device"):
        rule = AAggFF(setting=setting)
        state = rule.init(torch.full((3,), 1 / 3, dtype=torch.float64))
        seen = []
        for number in range(1, 30):
            weights, state = rule.weigh(Cohort.of(share=[1 / 3] * 3, loss=[0.5, 1.0, 2.0], round_=number), state)
            seen.append(float(weights[2]))
        assert seen == sorted(seen)
        assert seen[-1] > seen[0] + 0.05
