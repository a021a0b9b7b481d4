"""Small federations and models for engine tests, and a way to run some rounds and keep everything."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from propfair.algorithms.base import ALGORITHMS, Algorithm
from propfair.core.aggregator import Outcome
from propfair.core.client import LocalTraining, Workload
from propfair.core.evaluation import Evaluation
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.engines.server import Server
from propfair.engines.session import Engine, Event, Session
from propfair.federation.federation import Federation
from tests.builders import REQUIRED, random_federation, seeded

SIZES = (23, 9, 40, 4, 17, 31, 12, 26, 10, 15, 22, 5)  # more than a block; no last batch of 1, for BatchNorm


def federation(sizes: Sequence[int] = SIZES, features: int = 6, classes: int = 3, shift: float = 1.0) -> Federation:
    """Clients whose inputs have different means; the test examples come after the training examples."""
    return random_federation(
        sizes, features=features, num_classes=classes, seed=5, shift=shift,
        names=[f"client {k}" for k in range(len(sizes))],
        train=lambda index: index[: len(index) - len(index) // 4],
        test=lambda index: index[len(index) - len(index) // 4 :],
    )  # fmt: skip


def mlp(features: int = 6, classes: int = 3) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(features, 8), nn.ReLU(), nn.Linear(8, classes)), seed=1)


def with_buffers_and_dropout(features: int = 6, classes: int = 3) -> nn.Module:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(features, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, classes))

    return seeded(build, seed=1)


@dataclass
class Run:
    """Everything that a few rounds leave behind."""

    params: Tensor
    buffers: Tensor
    outcomes: list[Outcome]
    evaluation: Evaluation
    personal: Evaluation | None
    memories: dict[int, dict[str, Tensor]]
    events: list[Event]
    notes: list[str]


def workload(algorithm: Algorithm | str = "fedavg", *, data: Federation | None = None, **local: object) -> Workload:
    chosen = ALGORITHMS.make(algorithm, REQUIRED.get(algorithm)) if isinstance(algorithm, str) else algorithm
    settings = {"lr": 0.1, "batch_size": 5, **local}
    return Workload(data or federation(), chosen, LocalTraining(**settings), seed=3)  # type: ignore[arg-type]


def play(session: Session, model: FlatModel, rounds: Rounds, num_rounds: int = 2) -> Run:
    """Run rounds in an open session."""
    server = Server(session, rounds, model.params, model.buffers)
    outcomes = [server.run_round() for _ in range(num_rounds)]
    everyone = range(session.work.federation.num_clients)
    personal = session.work.algorithm.personal is not None
    return Run(
        server.params, server.buffers, outcomes,
        session.evaluate(server.released, server.buffers, "test", everyone),
        session.evaluate_personal("test", everyone) if personal else None,
        {client: dict(memory) for client, memory in session.memories.items()},
        list(session.events), list(session.notes),
    )  # fmt: skip


def run(engine: Engine, work: Workload, module: nn.Module, rounds: Rounds | None = None, num_rounds: int = 2) -> Run:
    model = FlatModel(module)
    with engine.start(model, work) as session:
        return play(session, model, rounds or Rounds(), num_rounds)


def assert_same(found: Run, expected: Run, tolerance: float | None = None) -> None:
    """The same records; to the bit without a tolerance."""

    def same(a: Tensor, b: Tensor) -> None:
        if tolerance is None:
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)

    same(found.params, expected.params)
    same(found.buffers, expected.buffers)
    for ours, theirs in zip(found.outcomes, expected.outcomes, strict=True):
        assert ours.clients == theirs.clients
        assert ours.dropped == theirs.dropped
        same(ours.weights, theirs.weights)
        same(ours.loss, theirs.loss)
        for mine, report in zip(ours.reports.rows(), theirs.reports.rows(), strict=True):
            assert (mine.client, mine.num_steps, mine.finite) == (report.client, report.num_steps, report.finite)
            if report.finite:
                same(torch.tensor(mine[3:6]), torch.tensor(report[3:6]))
                assert mine.observed.keys() == report.observed.keys()
                for name, value in report.observed.items():
                    same(torch.tensor(mine.observed[name]), torch.tensor(value))
        assert ours.diagnostics.keys() == theirs.diagnostics.keys()
    for measured, right in ((found.evaluation, expected.evaluation), (found.personal, expected.personal)):
        assert (measured is None) == (right is None)
        if measured is not None and right is not None:
            same(torch.stack(measured[:2]), torch.stack(right[:2]))
    assert found.memories.keys() == expected.memories.keys()
    for client, memory in expected.memories.items():
        for name, tensor in memory.items():
            same(found.memories[client][name], tensor)
