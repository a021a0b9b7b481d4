"""Noise is accounted by the largest weight of each round, and PropFair needs nothing but sums."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")


from benchmarks.privacy import private_run
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.propfair import PropFair
from propfair.core.aggregator import Outcome
from propfair.core.messages import Report, Reports
from propfair.errors import ConfigError
from propfair.flower import epsilon_spent, propfair_mod
from tests.builders import random_federation
from tests.flower.grid import LocalGrid, own_data
from tests.flower.test_strategy import without_buffers


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


def propfair_clients() -> ClientApp:
    app = ClientApp(mods=[propfair_mod(lambda context: [own_data(context)["train"]], M=3.0)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = without_buffers()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        x, y = own_data(context)["train"]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        nn.CrossEntropyLoss()(model(x), y).backward()
        optimizer.step()
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    return app


def test_propfair_needs_sums_only() -> None:
    """Secure aggregation hands over the sum of masked vectors: weight times model, and the weight. That is enough."""
    server, grid = FlowerFedAvg(min_train_nodes=4, min_available_nodes=4), LocalGrid(propfair_clients())
    start = ArrayRecord(without_buffers().state_dict())
    replies = list(grid.send_and_receive(server.configure_train(1, start, ConfigRecord(), grid)))
    rng = np.random.default_rng(0)
    vectors = []
    for reply in replies:
        flat = np.concatenate([array.ravel() for array in reply.content["arrays"].to_numpy_ndarrays()])  # type: ignore[union-attr]
        weight = float(reply.content["metrics"]["num-examples"])  # type: ignore[arg-type]
        vectors.append(weight * np.append(flat, 1.0).astype(np.float64))
    for one, other in itertools.combinations(range(len(vectors)), 2):  # what one adds, the other takes away
        mask = 100 * rng.standard_normal(len(vectors[0]))
        vectors[one], vectors[other] = vectors[one] + mask, vectors[other] - mask
    total = np.sum(vectors, axis=0)
    averaged, _ = server.aggregate_train(1, replies)
    assert averaged is not None
    expected = np.concatenate([array.ravel() for array in averaged.to_numpy_ndarrays()])
    np.testing.assert_allclose(total[:-1] / total[-1], expected, atol=1e-5)


def test_flowers_secure_aggregation_does_not_know_messages_of_this_kind() -> None:
    """Its mod wants the stages of its own workflow; docs/flower.md says what is missing."""
    grid = LocalGrid(propfair_clients())
    server = FlowerFedAvg(min_train_nodes=4, min_available_nodes=4)
    start = ArrayRecord(without_buffers().state_dict())
    message, *_ = server.configure_train(1, start, ConfigRecord(), grid)
    context = grid.contexts[message.metadata.dst_node_id]
    with pytest.raises(KeyError):
        secaggplus_mod(message, context, grid.app)
