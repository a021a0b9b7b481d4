"""The two halves of a round: what comes before clients train, and what is made of their answers."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from propfair.algorithms.base import Algorithm, Cohort, Needs, State
from propfair.algorithms.fedavg import FedAvg
from propfair.core.aggregator import Aggregator, Rounds
from propfair.core.client import LocalTraining, Workload
from propfair.core.messages import Block, Report, Reports
from propfair.core.params import FlatModel
from propfair.engines.inprocess import InProcess, InProcessSession
from propfair.engines.server import Server
from propfair.errors import TrainingError
from tests.builders import random_federation

SIZES = [20, 10, 30]


@dataclass(frozen=True, kw_only=True)
class ByLoss(Algorithm):
    """Weights in proportion to the losses."""

    name = "by_loss"

    @property
    def needs(self) -> Needs:
        return Needs.LOSS

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        return cohort.loss / cohort.loss.sum(), state


def workload(algorithm: Algorithm) -> Workload:
    return Workload(random_federation(SIZES), algorithm, LocalTraining(lr=0.1))


def start(algorithm: Algorithm) -> tuple[InProcessSession, Tensor, Tensor]:
    torch.manual_seed(0)
    model = FlatModel(nn.Linear(4, 3))
    return InProcess().start(model, workload(algorithm)), model.params.clone(), model.buffers


def test_losses_that_come_with_the_reports_give_the_weights_of_losses_measured_before() -> None:
    session, params, buffers = start(ByLoss())
    before = Server(session, Rounds(), params, buffers)
    after = Aggregator(session.work, Rounds(), params, buffers)

    expected = before.run_round()
    plan = after.plan(None)
    loss = session.losses(params, buffers, plan.job.clients).tolist()
    blocks = [
        replace(b, reports=b.reports._replace(full_loss=np.array([loss[client] for client in b.reports.clients])))
        for b in session.train(plan.job)
    ]
    outcome = after.conclude(plan, blocks)

    assert plan.job.weights is None
    assert torch.equal(outcome.weights, expected.weights)
    assert torch.equal(outcome.loss, expected.loss)
    assert torch.allclose(after.params, before.params, atol=1e-7)


def test_a_client_without_an_answer_is_left_out_and_the_others_share_its_weight() -> None:
    session, params, buffers = start(FedAvg())
    server = Aggregator(session.work, Rounds(), params, buffers)
    plan = server.plan(session.losses)
    delta = torch.ones_like(params)
    reports = Reports.of([Report(k, 1, True, 1.0, 1.0, 1.0, {}) if k != 1 else Report.none(k) for k in range(3)])
    assert plan.job.weights is not None
    sent = float(plan.job.weights[0] + plan.job.weights[2])
    outcome = server.conclude(plan, [Block(reports, delta * sent, buffers)])

    assert outcome.dropped == (1,)
    assert outcome.weights.tolist() == pytest.approx([20 / 50, 0, 30 / 50])
    assert torch.allclose(server.params, params + delta)


def test_strict_tells_a_silent_client_from_a_diverged_one() -> None:
    session, params, buffers = start(FedAvg())
    server = Aggregator(session.work, Rounds(strict=True), params, buffers)
    good = Report(0, 1, True, 1.0, 1.0, 1.0, {})
    diverged = good._replace(client=1, finite=False)

    def conclude(second: Report) -> None:
        sent = Reports.of([good, second, good._replace(client=2)])
        server.conclude(server.plan(None), [Block(sent, torch.zeros_like(params), buffers)])

    with pytest.raises(TrainingError, match=r"client 1 gave no answer.*strict=false"):
        conclude(Report.none(1))
    with pytest.raises(TrainingError, match=r"client 1 diverged.*local\.lr"):
        conclude(diverged)
