"""The two halves of a round: what comes before clients train, and what is made of their answers."""

import weakref
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from propfair.algorithms.base import Algorithm, Cohort, Needs, Order, State
from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.fedfv import FedFV
from propfair.core.aggregator import Aggregator
from propfair.core.client import LocalTraining, Workload
from propfair.core.messages import Block, Report, Reports
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.engines.inprocess import InProcess, InProcessSession
from propfair.engines.server import Server
from propfair.errors import ConfigError, TrainingError
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


def aggregator(session: InProcessSession, rounds: Rounds, params: Tensor, buffers: Tensor) -> Aggregator:
    work = session.work
    return Aggregator(work.algorithm, torch.tensor(SIZES), work.local, rounds, work.seed, params, buffers)


def test_losses_that_come_with_the_reports_give_the_weights_of_losses_measured_before() -> None:
    session, params, buffers = start(ByLoss())
    before = Server(session, Rounds(), params, buffers)
    after = aggregator(session, Rounds(), params, buffers)

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
    server = aggregator(session, Rounds(), params, buffers)
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
    server = aggregator(session, Rounds(strict=True), params, buffers)
    good = Report(0, 1, True, 1.0, 1.0, 1.0, {})
    diverged = good._replace(client=1, finite=False)

    def conclude(second: Report) -> None:
        sent = Reports.of([good, second, good._replace(client=2)])
        server.conclude(server.plan(None), [Block(sent, torch.zeros_like(params), buffers)])

    with pytest.raises(TrainingError, match=r"client 1 gave no answer.*strict=false"):
        conclude(Report.none(1))
    with pytest.raises(TrainingError, match=r"client 1 diverged.*local\.lr"):
        conclude(diverged)


def past_of(server: Aggregator) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in server.tensors().items() if name.startswith("past.")}


def test_updates_are_kept_while_somebody_is_absent_only() -> None:
    session, params, buffers = start(FedFV(tau=100))
    everybody, some = (Server(session, Rounds(participation=count), params, buffers) for count in (3, 2))
    everybody.run_round()
    some.run_round()
    assert past_of(everybody) == {}
    assert past_of(some)["past.updates"].shape == (2, len(params))
    for _ in range(5):
        some.run_round()
    assert sorted(past_of(some)["past.clients"].tolist()) == [0, 1, 2]


def test_the_first_model_is_not_kept() -> None:
    session, params, buffers = start(FedAvg())
    with session:
        server = Server(session, Rounds(), params, buffers)
        first = weakref.ref(server.params)
        server.run_round()
    assert first() is None


def test_rules_that_remember_updates_must_look_at_them() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Forgetful(ByLoss):
        @property
        def remember(self) -> int:
            return 2

    session, params, buffers = start(Forgetful())
    with pytest.raises(ConfigError, match=r"Forgetful remembers updates for 2 rounds, but does not need GRAM"):
        Server(session, Rounds(), params, buffers)


def test_orders_must_name_the_same_numbers_for_all() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Uneven(ByLoss):
        def order(self, client: int, state: State) -> Order:
            return Order(numbers={"M": 1.0} if client else {})

    session, params, buffers = start(Uneven())
    with pytest.raises(ConfigError, match=r"same numbers for all clients.*got \[\] for client 0 and \['M'\]"):
        Server(session, Rounds(), params, buffers).plan(None)


def test_checkpoints_of_the_first_version_are_understood() -> None:
    session, params, buffers = start(FedFV())
    server = aggregator(session, Rounds(participation=2), params, buffers)
    old = {
        "params": params, "buffers": buffers, "memory.0.params": params, "state.num_clients": torch.tensor(3),
        "state.past_updates": torch.ones(1, len(params)), "state.past_clients": torch.tensor([2]),
        "state.past_rounds": torch.tensor([7]),
    }  # fmt: skip
    server.restore(7, old)
    assert server.round == 7
    assert server.state == {}
    assert past_of(server)["past.num_steps"].tolist() == [1]
    assert past_of(server)["past.rounds"].tolist() == [7]

    afl = aggregator(session, Rounds(), params, buffers)
    state = {"state.lambda": torch.ones(3), "state.num_iterates": torch.tensor(4.0), "state.iterate_mean": params + 1}
    afl.restore(4, {"params": params, "buffers": buffers, **state})
    assert afl.state.keys() == {"lambda"}
    assert torch.equal(afl.released, params + 1)
