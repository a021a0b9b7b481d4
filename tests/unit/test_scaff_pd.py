import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from propfair.algorithms import Cohort
from propfair.algorithms.afl import AFL
from propfair.algorithms.base import as_floats
from propfair.algorithms.scaff_pd import ScaffPD

LOSSES = [[0.5, 1.0, 2.0], [0.4, 1.1, 1.5], [0.3, 0.2, 1.9]]
SHARE = as_floats([0.5, 0.3, 0.2])


def by_formula(sigma: float, theta: float, rho: float) -> list[list[float]]:
    """lambda after each round, the arg max by a general solver."""
    lam, last, found = np.full(3, 1 / 3), np.array(LOSSES[0]), []
    for loss in map(np.array, LOSSES):
        ahead = (1 + theta) * loss - theta * last

        def goal(x: np.ndarray, ahead: np.ndarray = ahead, lam: np.ndarray = lam) -> float:
            penalty = 3 * rho / 2 * np.square(x - 1 / 3).sum() + np.square(x - lam).sum() / (2 * sigma)
            return float(penalty - ahead @ x)

        lam = minimize(
            goal, lam, bounds=[(0, 1)] * 3, options={"ftol": 1e-15},
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
        ).x  # fmt: skip
        last = loss
        found.append(lam.tolist())
    return found


@pytest.mark.parametrize(("sigma", "theta", "rho"), [(0.1, 1.0, 0.1), (0.5, 0.5, 0.0), (0.2, 0.0, 1.0)])
def test_it_is_the_formula(sigma: float, theta: float, rho: float) -> None:
    rule = ScaffPD(sigma=sigma, theta=theta, rho=rho)
    state = rule.init(SHARE)
    for loss, expected in zip(LOSSES, by_formula(sigma, theta, rho), strict=True):
        weights, state = rule.weigh(Cohort.of(share=SHARE.tolist(), loss=loss), state)
        assert weights.tolist() == pytest.approx(expected, abs=1e-6)


def test_without_penalty_and_extrapolation_it_is_afl() -> None:
    rule, afl = ScaffPD(sigma=0.2, theta=0.0, rho=0.0), AFL(gamma=0.2, start="uniform")
    state, other = rule.init(SHARE), afl.init(SHARE)
    for clients in ((0, 1, 2), (0, 2), (1,)):
        share = [1 / len(clients)] * len(clients)
        cohort = Cohort.of(share=share, loss=[LOSSES[0][k] for k in clients], clients=clients)
        weights, state = rule.weigh(cohort, state)
        expected, other = afl.weigh(cohort, other)
        assert torch.allclose(weights, expected)
        assert torch.allclose(state["lambda"], other["lambda"])


def test_a_large_penalty_averages_equally() -> None:
    weights, _ = ScaffPD(rho=1e9).weigh(Cohort.of(share=SHARE.tolist(), loss=LOSSES[0]), ScaffPD().init(SHARE))
    assert weights.tolist() == pytest.approx([1 / 3] * 3)
