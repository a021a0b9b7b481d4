"""Our server optimisers against the strategies of Flower that have the same names."""

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi
from flwr.supercore.task_identity import TaskIdentity

from propfair.core.optimizers import Moments, ServerOptimizer

UPDATES = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))


def walk(optimizer: ServerOptimizer, start: torch.Tensor) -> list[torch.Tensor]:
    params, kept, seen = start, Moments(), []
    for update in UPDATES:
        params, kept = optimizer.step(params, update, kept)
        seen.append(params)
    return seen


def flower(strategy: FedAvgM | FedAdam, start: torch.Tensor) -> list[list[float]]:
    """The models of a Flower strategy whose only client sends the updates."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    current, seen = start.numpy(), []
    for number, update in enumerate(UPDATES):
        sent = ArrayRecord({"w": Array(current)})
        if isinstance(strategy, FedAvgM):
            strategy.current_arrays = sent
        else:
            strategy.current_arrays = {"w": current}
        question = Message(RecordDict({"arrays": sent}), 1, "train")
        arrays = ArrayRecord({"w": Array(current + update.numpy())})
        reply = Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=question)
        # Flower corrects the bias of round t as if it were t + 1.
        found, _ = strategy.aggregate_train(number, [reply])
        assert found is not None
        current = np.asarray(found["w"].numpy())
        seen.append(current.tolist())
    return seen


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [
        (FedAvgM(server_momentum=0.8, server_learning_rate=0.5), ServerOptimizer(kind="momentum", lr=0.5, beta1=0.8)),
        (
            FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, tau=1e-3),
            ServerOptimizer(kind="adam", lr=0.1, bias_correction=True),
        ),
        (
            FedYogi(eta=0.1, beta_1=0.8, beta_2=0.95, tau=1e-2),
            ServerOptimizer(kind="yogi", lr=0.1, beta1=0.8, beta2=0.95, tau=1e-2),
        ),
        (FedAdagrad(eta=0.1, tau=1e-3), ServerOptimizer(kind="adagrad", lr=0.1, beta1=0.0)),
    ],
    ids=lambda part: type(part).__name__,
)  # fmt: skip
def test_they_are_those_of_flower(strategy: FedAdam, optimizer: ServerOptimizer) -> None:
    start = torch.linspace(-1, 1, 6)
    for ours, theirs in zip(walk(optimizer, start), flower(strategy, start), strict=True):
        assert ours.tolist() == pytest.approx(theirs, rel=1e-5, abs=1e-6)
