"""Noise is accounted by the largest weight of each round, and PropFair needs nothing but sums."""

import math

import pytest
import torch
from scipy.stats import norm

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")


from benchmarks.privacy import private_run

from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.propfair import PropFair
from propfair.core.aggregator import Outcome
from propfair.core.messages import Report, Reports
from propfair.errors import ConfigError
from propfair.flower import epsilon_spent
from tests.builders import random_federation


def outcome(*weights: float) -> Outcome:
    some = torch.tensor(weights)
    return Outcome(1, tuple(range(len(weights))), some, some, (), Reports.of([Report.none(0)]), {})


def leak(mu: float, epsilon: float) -> float:
    """The delta of a Gaussian mechanism, from its two tails."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (1.0, 10), (4.0, 30), (0.5, 3)])
def test_equal_weights_have_the_noise_that_flower_adds(noise: float, rounds: int) -> None:
    epsilon = epsilon_spent([outcome(0.25, 0.25, 0.25, 0.25)] * rounds, noise, 4)
    assert leak(math.sqrt(rounds) / noise, epsilon) == pytest.approx(1e-5, rel=1e-6)


def test_a_larger_weight_spends_more() -> None:
    equal, unequal = outcome(0.5, 0.5), outcome(0.9, 0.1)
    assert epsilon_spent([unequal], 1.8, 2) == pytest.approx(epsilon_spent([equal], 1.0, 2))
    assert epsilon_spent([equal], 0.0, 2) == math.inf
    assert epsilon_spent([], 1.0, 2) == 0
    assert epsilon_spent([equal], 1e9, 2) == 0
    with pytest.raises(ConfigError, match="delta must be between 0 and 1"):
        epsilon_spent([equal], 1.0, 2, delta=2.0)


@pytest.mark.parametrize("algorithm", [FedAvg(), PropFair(placement="update")], ids=str)
def test_the_benchmark_of_its_cost_runs(algorithm: FedAvg | PropFair) -> None:
    clients = random_federation([20, 30, 40], features=4, seed=1, test=lambda index: index[::2])
    quiet, none = private_run(clients, algorithm, 0, 2, 0.0, 0.0, 0.1)
    noisy, epsilon = private_run(clients, algorithm, 0, 2, 0.5, 2.0, 0.1)
    assert none == math.inf
    assert 0.5 < epsilon < 20
    assert len(quiet) == len(noisy) == 3
    assert quiet != noisy
