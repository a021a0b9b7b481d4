"""One table: every algorithm on three clients, by hand. A refactor keeps these numbers or explains itself."""

import pytest
import torch

from propfair.algorithms import ALGORITHMS, Cohort, Order
from propfair.algorithms.base import as_floats, order_for
from propfair.algorithms.gifair import GIFAIR
from propfair.core.client import transformed

THETA = as_floats([10.0, 20.0])
DELTAS = [[-1.0, 0.0], [0.0, -1.0], [1.0, -1.0]]  # what clients send: the negative of the descent updates
COHORT = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0], deltas=DELTAS)
THIRD = 1 / 3


@pytest.mark.parametrize(
    ("name", "options", "weights", "theta"),
    [
        ("fedavg", {}, [0.5, 0.3, 0.2], [9.7, 19.5]),
        ("afl", {"gamma": 0.1}, [0.4333333, 0.2833333, 0.2833333], [9.85, 19.4333333]),
        ("afl", {"start": "uniform", "use": "old"}, [THIRD] * 3, [10, 19.3333333]),
        ("term", {"alpha": 0.5}, [0.3820855, 0.2943645, 0.3235500], [9.9414645, 19.3820855]),
        ("q-fedavg", {"q": 0.1, "weighting": "none"}, [0.1343916, 0.1440373, 0.1543754], [10.0199838, 19.7015873]),
        ("q-fedavg", {"q": 0.1}, [0.1921198, 0.1235453, 0.0882751], [9.8961553, 19.7881796]),
        ("q-fedavg", {"q": 1, "weighting": "none"}, [0.0114943, 0.0229885, 0.0459770], [10.0344828, 19.9310345]),
        ("q-fedavg", {"q": 1}, [0.0193050, 0.0231660, 0.0308880], [10.0115830, 19.9459459]),
        ("q-fedavg", {"q": 0, "weighting": "none"}, [THIRD] * 3, [10, 19.3333333]),
        ("q-fedavg", {"q": 0}, [0.5, 0.3, 0.2], [9.7, 19.5]),
        ("gifair", {"coeff": 0.1}, [0.48, 0.3, 0.22], [9.74, 19.48]),
        ("gifair", {"coeff": 0.5}, [0.4, 0.3, 0.3], [9.9, 19.4]),
        ("gifair", {"coeff": 0.9}, [0.32, 0.3, 0.38], [10.06, 19.32]),
    ],
)  # fmt: skip
def test_weights_and_step(name: str, options: dict[str, object], weights: list[float], theta: list[float]) -> None:
    algorithm = ALGORITHMS.make(name, options)
    found, _ = algorithm.weigh(COHORT, algorithm.init(COHORT.share))
    assert found.tolist() == pytest.approx(weights, abs=1e-6)
    assert (THETA + found @ as_floats(DELTAS)).tolist() == pytest.approx(theta, abs=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "lam", "norm", "theta"),
    [
        (0.0, [THIRD] * 3, 0.5773503, [9.9023689, 19.4309644]),
        (0.1, [0.4316582, 0.2333333, 0.3350084], 0.5089625, [9.8052285, 19.5297799]),
        (0.5, [0.5, 0.0, 0.5], 0.3826834, [9.8535534, 19.6464466]),
        (1.0, [0.5, 0.0, 0.5], 0.3826834, [9.8535534, 19.6464466]),
    ],
)
def test_fedmgda(epsilon: float, lam: list[float], norm: float, theta: list[float]) -> None:
    algorithm = ALGORITHMS.make("fedmgda+", {"epsilon": epsilon})
    weights, state = algorithm.weigh(COHORT, {})
    assert COHORT.norm2 is not None
    assert (weights * COHORT.norm2.sqrt()).tolist() == pytest.approx(lam, abs=1e-6)
    assert algorithm.diagnose(COHORT, weights, state)["direction_norm"] == pytest.approx(norm, abs=1e-6)
    assert (THETA + weights @ as_floats(DELTAS)).tolist() == pytest.approx(theta, abs=1e-6)


def test_afl_moves_lambda_after_it_is_used() -> None:
    afl = ALGORITHMS.make("afl", {"preset": "original", "gamma": 0.1})
    _, state = afl.weigh(COHORT, afl.init(COHORT.share))
    assert state["lambda"].tolist() == pytest.approx([0.2666667, 0.3166667, 0.4166667], abs=1e-6)


@pytest.mark.parametrize(("coeff", "factors"), [(0.1, [0.96, 1, 1.1]), (0.5, [0.8, 1, 1.5]), (0.9, [0.64, 1, 1.9])])
def test_gifair_learning_rates(coeff: float, factors: list[float]) -> None:
    gifair = GIFAIR(coeff=coeff, side="client")
    weights, state = gifair.weigh(COHORT, gifair.init(COHORT.share))
    assert weights.tolist() == [0.5, 0.3, 0.2]
    assert [order_for(gifair, client, state).lr_scale for client in range(3)] == pytest.approx(factors, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "slopes", "objective"),
    [
        ({"preset": "original", "M": 2.0}, [0.6666667, 1, 5], 0.3191550),
        ({"preset": "paper", "M": 2.0}, [0.6666667, 1, 0.5], None),
        ({"preset": "original", "M": 5.0}, [0.2222222, 0.25, 0.3333333], -1.3876495),
    ],
)
def test_propfair(options: dict[str, object], slopes: list[float], objective: float | None) -> None:
    propfair = ALGORITHMS.make("propfair", options)
    loss = COHORT.loss.clone().requires_grad_()
    values = transformed(propfair, loss, Order())
    gradient = torch.autograd.grad(values.sum(), loss)[0]
    assert gradient.tolist() == pytest.approx(slopes, abs=1e-6)
    assert propfair.weigh(COHORT, {})[0].tolist() == [0.5, 0.3, 0.2]
    if objective is not None:
        assert float(COHORT.share @ values.detach()) == pytest.approx(objective, abs=1e-6)
