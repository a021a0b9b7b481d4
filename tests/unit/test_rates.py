"""Learning rates over the rounds."""

import pytest
import torch
from torch import nn

import propfair
from propfair.core.rates import rate_factor
from propfair.errors import ConfigError
from tests.builders import random_federation, seeded


def test_shapes() -> None:
    cosine = rate_factor("cosine(10, 0.1)")
    assert cosine(1) == 1
    assert cosine(6) == pytest.approx(0.55)
    assert cosine(11) == cosine(50) == pytest.approx(0.1)
    assert rate_factor("constant")(7) == 1
    assert rate_factor(lambda round_: 1 / round_)(4) == 0.25


@pytest.mark.parametrize("text", ["cosin(3)", "step", "step(0)", "step(-3)", "cosine(3", "warmup(a)", "step(1,2,3)"])
def test_what_is_no_schedule(text: str) -> None:
    with pytest.raises(ConfigError, match="lr_schedule must be"):
        propfair.Rounds(lr_schedule=text)


@pytest.mark.parametrize("engine", ["inprocess", "vectorized"])
def test_a_schedule_is_the_same_as_training_with_those_rates(engine: str) -> None:
    data = random_federation([20, 12, 9])

    def trained(rounds: int, lr: float, model: nn.Module, **how: object) -> nn.Module:
        local = propfair.LocalTraining(lr=lr, batch_size=8, steps=2)
        return propfair.train(model, data, "fedavg", rounds=rounds, local=local, engine=engine, **how).model  # type: ignore[arg-type]

    once = trained(2, 0.4, seeded(lambda: nn.Linear(4, 3)), server=propfair.Rounds(lr_schedule="step(1, 0)"))
    first = trained(1, 0.4, seeded(lambda: nn.Linear(4, 3)))
    assert torch.equal(once.get_parameter("weight"), first.get_parameter("weight"))  # the second round stood still
    halved = trained(1, 0.4, seeded(lambda: nn.Linear(4, 3)), server=propfair.Rounds(lr_schedule=lambda _: 0.5))
    slow = trained(1, 0.2, seeded(lambda: nn.Linear(4, 3)))
    torch.testing.assert_close(halved.get_parameter("weight"), slow.get_parameter("weight"))
