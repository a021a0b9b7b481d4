"""The round loop: participation, divergence, buffers, streaming."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from propfair.algorithms.base import Algorithm, Cohort, Needs, State
from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.propfair import PropFair
from propfair.algorithms.term import TERM
from propfair.core.client import LocalTraining, Workload
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.engines.inprocess import InProcess
from propfair.engines.server import Server
from propfair.errors import ConfigError, TrainingError
from tests.builders import random_federation, seeded

SIZES = [20, 10, 30, 8, 12, 20, 10, 10, 16, 24]  # more than one block
ALL = Rounds()
LOCAL = LocalTraining(lr=0.1, batch_size=8)


@dataclass(frozen=True, kw_only=True)
class Kept(Algorithm):
    """FedAvg that asks for the Gram matrix, so that the server has to keep every update."""

    @property
    def needs(self) -> Needs:
        return Needs.GRAM

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        assert cohort.gram is not None
        assert cohort.norm2 is not None
        torch.testing.assert_close(cohort.gram.diagonal(), cohort.norm2, rtol=1e-5, atol=1e-9)
        return cohort.share, state


def server(
    algorithm: Algorithm, rounds: Rounds = ALL, *, module: nn.Module | None = None, spoil: int | None = None,
    local: LocalTraining = LOCAL, seed: int = 0, **splits: Any,
) -> Server:  # fmt: skip
    federation = random_federation(SIZES, **splits)
    if spoil is not None:
        federation.examples.tensors()["x"][federation.train[spoil]] = torch.inf
    work = Workload(federation, algorithm, local, seed)
    model = FlatModel(module or seeded(lambda: nn.Linear(4, 3)))
    return Server(InProcess().start(model, work), rounds, model.params, model.buffers)


def test_summing_updates_as_they_come_equals_keeping_them() -> None:
    streamed, kept = server(FedAvg()), server(Kept())
    for _ in range(3):
        streamed.run_round()
        kept.run_round()
    torch.testing.assert_close(streamed.params, kept.params, rtol=1e-5, atol=1e-6)


def test_server_learning_rate_scales_the_step() -> None:
    one, half = server(FedAvg()), server(FedAvg(), Rounds(server_lr=0.5))
    start = one.params.clone()
    one.run_round()
    half.run_round()
    torch.testing.assert_close(half.params - start, 0.5 * (one.params - start), rtol=1e-5, atol=1e-7)


def test_partial_participation_is_seeded_sorted_and_renormalised() -> None:
    first, again = server(FedAvg(), Rounds(participation=0.3)), server(FedAvg(), Rounds(participation=3))
    cohorts = []
    for _ in range(20):
        outcome = first.run_round()
        assert outcome.clients == again.run_round().clients
        assert len(outcome.clients) == 3
        assert list(outcome.clients) == sorted(set(outcome.clients))
        assert float(outcome.weights.sum()) == pytest.approx(1)
        sizes = torch.tensor([SIZES[client] for client in outcome.clients], dtype=torch.float64)
        torch.testing.assert_close(outcome.weights, sizes / sizes.sum())
        cohorts.append(outcome.clients)
    assert len(set(cohorts)) > 10
    assert {client for cohort in cohorts for client in cohort} == set(range(10))


def test_sampling_by_size_prefers_large_clients() -> None:
    by_size = server(FedAvg(), Rounds(participation=1, sampling="samples"))
    by_size._cohort_size = 1
    chosen = [by_size._sample(number)[0] for number in range(600)]
    assert 0.5 * 600 * 30 / 160 < chosen.count(2) < 2 * 600 * 30 / 160
    assert chosen.count(2) > chosen.count(3)


@pytest.mark.parametrize("algorithm", [FedAvg(), Kept()])
def test_a_client_that_diverges_is_left_out_of_the_round(algorithm: Algorithm) -> None:
    spoiled = server(algorithm, spoil=4)
    outcome = spoiled.run_round()
    assert outcome.dropped == (4,)
    assert outcome.weights[4] == 0
    assert float(outcome.weights.sum()) == pytest.approx(1)
    assert outcome.diagnostics["num_dropped"] == 1
    assert torch.isfinite(spoiled.params).all()


def test_strict_stops_at_the_first_client_that_diverges() -> None:
    with pytest.raises(TrainingError, match="round 1: client 4 diverged"):
        server(FedAvg(), Rounds(strict=True), spoil=4).run_round()


def test_all_clients_diverging_keeps_the_last_good_model() -> None:
    hot = server(FedAvg(), local=LocalTraining(lr=1e30, batch_size=8))
    start = hot.params.clone()
    with pytest.raises(TrainingError, match=r"every client diverged.*Lower local.lr"):
        hot.run_round()
    assert torch.equal(hot.params, start)
    assert hot.round == 0


def test_batchnorm_statistics_are_averaged_by_data_share() -> None:
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    with_norm = server(FedAvg(), module=module, local=LocalTraining(lr=0.1, batch_size=100))
    with_norm.run_round()
    federation = with_norm.session.work.federation
    examples, train = federation.examples, federation.train
    means = torch.stack([examples.inputs(train[k]).mean(0) for k in range(10)])
    share = federation.share.float()
    torch.testing.assert_close(with_norm.buffers[:4], 0.1 * share @ means, rtol=1e-4, atol=1e-6)
    assert with_norm.buffers[8] == 1  # one batch seen by everyone


def test_losses_of_the_received_model_from_three_sources() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Loud(Algorithm):
        @property
        def needs(self) -> Needs:
            return Needs.LOSS

        def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
            return cohort.loss / cohort.loss.sum(), state

    full = LocalTraining(lr=0.1, batch_size=1000)
    before = server(Loud(), local=full).run_round()
    first = server(Loud(), Rounds(loss_source="first_batch"), local=full).run_round()
    torch.testing.assert_close(before.loss, first.loss, rtol=1e-5, atol=1e-6)  # the first batch is the whole set
    local = LocalTraining(lr=0.1, batch_size=4, epochs=5)
    running = server(Loud(), Rounds(loss_source="running_mean"), local=local).run_round()
    assert float(running.loss.mean()) < float(before.loss.mean())


@pytest.mark.parametrize("algorithm", [TERM(), TERM(tau=1.0), PropFair(), PropFair(placement="update")], ids=str)
def test_rules_may_look_at_the_loss_on_validation_examples(algorithm: Algorithm) -> None:
    splits: Any = {"train": lambda index: index[2:], "validation": lambda index: index[:2]}
    given = server(algorithm, Rounds(loss_source="validation"), **splits)
    expected = given.session.losses(given.params, given.buffers, range(len(SIZES)), "validation")
    assert torch.equal(given.run_round().loss, expected)
    trained = server(algorithm, **splits).run_round()
    assert not torch.allclose(trained.loss, expected)


def test_a_client_without_validation_examples_is_found_before_training() -> None:
    with pytest.raises(ConfigError, match=r"client 0 \(0\) has none. Set data.split.validation=0.1"):
        server(TERM(), Rounds(loss_source="validation"))
    server(FedAvg(), Rounds(loss_source="validation")).run_round()  # which looks at no loss


def test_the_global_generators_are_left_alone() -> None:
    noisy = server(FedAvg(), module=nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)))
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    noisy.run_round()
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    "options", [{"participation": 0.0}, {"participation": 2.5}, {"participation": -1}, {"server_lr": 0.0}]
)
def test_bad_settings_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Rounds(**options)  # type: ignore[arg-type]


def test_more_clients_a_round_than_there_are() -> None:
    with pytest.raises(ConfigError, match="asks for 11 clients a round, but there are only 10"):
        server(FedAvg(), Rounds(participation=11))


def test_weights_that_overflow_keep_the_last_good_model() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Exploding(Algorithm):
        name = "exploding"

        def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
            return torch.full_like(cohort.share, torch.inf), state

    one = server(Exploding())
    before = one.params.clone()
    with pytest.raises(
        TrainingError, match=r"round 1: exploding gave the weight inf to client 0.*The model of round 0 is kept"
    ):
        one.run_round()
    assert torch.equal(one.params, before)
    assert one.round == 0


def test_the_average_of_all_global_models_is_handed_out_and_rounds_go_on_from_the_last() -> None:
    plain, averaged = server(FedAvg()), server(FedAvg(), Rounds(average_iterates=True))
    assert torch.equal(averaged.released, averaged.params)  # before round 1
    models = []
    for _ in range(3):
        plain.run_round()
        averaged.run_round()
        models.append(plain.params)
    assert torch.equal(averaged.params, plain.params)
    assert torch.equal(plain.released, plain.params)
    torch.testing.assert_close(averaged.released, torch.stack(models).mean(0))
