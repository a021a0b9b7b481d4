"""The server's step by hand and in the round loop; tests/flower has it against Flower's own strategies."""

import pytest
import torch

from propfair.algorithms.fedavg import FedAvg
from propfair.core.optimizers import ServerOptimizer
from propfair.core.rounds import Rounds
from propfair.errors import ConfigError
from propfair.registry import make_dataclass
from tests.unit.test_server import server


def test_two_steps_of_adam_by_hand() -> None:
    """First m is .2 and -.05, v is .04 and .0025 with roots .2 and .05."""
    optimizer = ServerOptimizer(kind="adam", lr=0.1, beta1=0.9, beta2=0.99, tau=0.01)
    params, kept = optimizer.step(torch.tensor([1.0, 1.0]), torch.tensor([2.0, -0.5]), {})
    assert params.tolist() == pytest.approx([1 + 0.1 * 0.2 / 0.21, 1 - 0.1 * 0.05 / 0.06])
    params, kept = optimizer.step(params, torch.tensor([0.0, 1.0]), kept)
    assert kept["m"].tolist() == pytest.approx([0.18, 0.055])
    assert kept["v"].tolist() == pytest.approx([0.0396, 0.012475])
    steps = [0.1 * 0.18 / (0.0396**0.5 + 0.01), 0.1 * 0.055 / (0.012475**0.5 + 0.01)]
    assert params.tolist() == pytest.approx([1 + 0.1 * 0.2 / 0.21 + steps[0], 1 - 0.1 * 0.05 / 0.06 + steps[1]])


def test_defaults_follow_the_optimizer() -> None:
    assert Rounds().make_optimizer().lr == 1.0
    assert Rounds(optimizer="momentum").make_optimizer() == ServerOptimizer(kind="momentum", lr=1.0, beta1=0.9)
    assert Rounds(optimizer="yogi").make_optimizer().lr == 0.01
    assert Rounds(optimizer="adagrad").make_optimizer().beta1 == 0.0
    assert Rounds(optimizer="adagrad", beta1=0.5, server_lr=2.0).make_optimizer().beta1 == 0.5


@pytest.mark.parametrize(
    ("field", "value"), [("beta1", 1.0), ("beta2", -0.1), ("tau", 0.0), ("server_lr", float("nan")), ("server_lr", 0.0)]
)
def test_wrong_numbers_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        make_dataclass(Rounds, {"optimizer": "adam", field: value}, "server")


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi", "adagrad"])
def test_they_work_in_the_round_loop(kind: str) -> None:
    running, plain = server(FedAvg(), Rounds(optimizer=kind)), server(FedAvg())  # type: ignore[arg-type]
    running.run_round()
    plain.run_round()
    update = plain.params - server(FedAvg()).params
    expected, _ = Rounds(optimizer=kind).make_optimizer().step(server(FedAvg()).params, update, {})  # type: ignore[arg-type]
    torch.testing.assert_close(running.params, expected, rtol=1e-3, atol=1e-4)
    assert {"moment.m"} <= running.tensors().keys()
