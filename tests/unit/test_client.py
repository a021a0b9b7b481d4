"""Local training equals torch's own optimisers on the same batches."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from propfair.algorithms.base import Algorithm, Order, Personal
from propfair.algorithms.fedavg import FedAvg
from propfair.core.client import LocalTraining, Workload, batch_order, run_client
from propfair.core.params import FlatModel
from propfair.core.tasks import cross_entropy
from propfair.errors import ConfigError
from propfair.federation.federation import Federation
from tests.builders import random_federation, seeded


def federation(sizes: tuple[int, ...] = (23, 10)) -> Federation:
    return random_federation(sizes, seed=1)


def network() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))


def trained_by_torch(work: Workload, optimizer: type[torch.optim.Optimizer], **options: float) -> Tensor:
    module = network()
    stepper = optimizer(module.parameters(), **options)  # type: ignore[arg-type]
    for index in batch_order(work, 1, 0):
        stepper.zero_grad()
        loss = cross_entropy(module(work.federation.examples.inputs(index)), work.federation.examples.targets(index))
        loss.mean().backward()  # type: ignore[no-untyped-call]
        stepper.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def trained(work: Workload) -> Tensor:
    model = FlatModel(network())
    start = model.params.clone()
    report, delta, _ = run_client(model, work, 1, Order(), 0, start, model.buffers, None)
    assert report.finite
    assert report.norm2 == pytest.approx(float(delta.square().sum()), rel=1e-6)
    return start + delta


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.1}]
)
def test_sgd_is_torchs_sgd(options: dict[str, float]) -> None:
    work = Workload(federation(), FedAvg(), LocalTraining(lr=0.1, batch_size=5, epochs=3, **options))  # type: ignore[arg-type]
    torch.testing.assert_close(trained(work), trained_by_torch(work, torch.optim.SGD, lr=0.1, **options))


def test_any_other_optimizer_of_torch() -> None:
    work = Workload(
        federation(), FedAvg(), LocalTraining(lr=0.01, batch_size=5, optimizer="AdamW", options={"eps": 1e-6})
    )
    torch.testing.assert_close(trained(work), trained_by_torch(work, torch.optim.AdamW, lr=0.01, eps=1e-6))


def test_every_example_once_an_epoch_and_the_short_batch_is_kept() -> None:
    work = Workload(federation(), FedAvg(), LocalTraining(batch_size=10, epochs=2))
    batches = list(batch_order(work, 1, 0))
    assert [len(batch) for batch in batches] == [10, 10, 3, 10, 10, 3]
    assert sorted(torch.cat(batches[:3]).tolist()) == list(range(23))
    assert torch.cat(batches[:3]).tolist() != torch.cat(batches[3:]).tolist()


def test_steps_instead_of_epochs_one_number_or_one_for_each_client() -> None:
    work = Workload(federation(), FedAvg(), LocalTraining(batch_size=10, steps=5))
    assert [len(batch) for batch in batch_order(work, 1, 0)] == [10, 10, 3, 10, 10]
    work = Workload(federation(), FedAvg(), LocalTraining(batch_size=10, steps=(1, 4)))
    assert [sum(1 for _ in batch_order(work, 1, client)) for client in (0, 1)] == [1, 4]


def test_batches_depend_on_seed_round_and_client_alone() -> None:
    def order(seed: int, round_: int) -> list[int]:
        work = Workload(federation(), FedAvg(), LocalTraining(), seed)
        return torch.cat(list(batch_order(work, round_, 0))).tolist()

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(0, 2)
    assert order(0, 1) != order(1, 1)


def test_dropout_is_decided_by_the_seed_too() -> None:
    work = Workload(federation(), FedAvg(), LocalTraining(lr=0.1, batch_size=5))
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    model = FlatModel(module)
    start = model.params.clone()
    deltas = []
    for noise in (0, 1):
        torch.manual_seed(noise)
        deltas.append(run_client(model, work, 1, Order(), 0, start, model.buffers, None)[1].clone())
    assert torch.equal(*deltas)


def test_the_order_scales_the_learning_rate() -> None:
    work = Workload(federation(), FedAvg(), LocalTraining(lr=0.1, batch_size=5))
    double = Workload(federation(), FedAvg(), LocalTraining(lr=0.2, batch_size=5))
    model = FlatModel(network())
    start = model.params.clone()
    scaled = run_client(model, work, 1, Order(lr_scale=2.0), 0, start, model.buffers, None)[1]
    torch.testing.assert_close(start + scaled, trained(double))


def test_personal_models_are_pulled_towards_the_received_one() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Pulled(Algorithm):
        lam: float = 0.0

        @property
        def personal(self) -> Personal:
            return Personal(self.lam)

    model = FlatModel(network())
    start = model.params.clone()
    distance = []
    for lam in (0.0, 1.0, 9.0):
        work = Workload(federation(), Pulled(lam=lam), LocalTraining(lr=0.1, batch_size=5, epochs=5))
        _, delta, memory = run_client(model, work, 1, Order(), 0, start, model.buffers, None)
        assert memory is not None
        distance.append(float((memory["params"] - start).norm()))
        if lam == 0:
            torch.testing.assert_close(memory["params"], start + delta)
    assert distance[0] > distance[1] > distance[2] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lr": -1.0}, "lr must be"),
        ({"lr": float("nan")}, "lr must be"),
        ({"batch_size": 0}, "batch_size must be at least 1 and at most 2147483647; got batch_size=0"),
        ({"epochs": -2}, "epochs must be at least 1"),
        ({"steps": (1, 0)}, "steps must be at least 1"),
        ({"optimizer": "Adamm"}, "Did you mean 'Adam"),
        ({"optimizer": "Adam", "momentum": 0.9}, "local.options"),
        ({"options": {"eps": 1}}, "local.options are for other optimizers"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LocalTraining(**options)  # type: ignore[arg-type]
