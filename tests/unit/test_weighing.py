"""A rule that can't be used is named, with what is wrong."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import propfair
from propfair.algorithms import Algorithm, Cohort, Needs, State
from propfair.errors import ConfigError, PropFairWarning
from tests.builders import everything, random_federation, seeded


@dataclass(frozen=True, kw_only=True)
class Forgetful(Algorithm):
    """Looks at more than it asks for."""

    name = "forgetful"
    looks_at: str = "loss"

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        weights: Tensor = getattr(cohort, self.looks_at) * 1.0
        return (weights if weights.ndim == 1 else weights[0]), state


@dataclass(frozen=True, kw_only=True)
class Strange(Algorithm):
    """Gives what it is told to give."""

    name = "strange"
    gives: Any = None

    @property
    def needs(self) -> Needs:
        return Needs.LOSS

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        return self.gives, state


def train(algorithm: Algorithm, **options: Any) -> propfair.Result:
    federation = random_federation([9, 7, 5], test=everything)
    return propfair.train(seeded(lambda: nn.Linear(4, 3)), federation, algorithm, rounds=2, **options)


@pytest.mark.parametrize(
    ("looks_at", "said"),
    [
        ("loss", r"forgetful gave the weight nan to client 0\. It did not ask for losses.*include Needs\.LOSS"),
        ("gram", r"forgetful\.weigh failed in round 1: TypeError.*let `needs` include Needs\.GRAM"),
        ("norm2", r"forgetful\.weigh failed in round 1: TypeError.*let `needs` include .*Needs\.NORMS"),
        ("losses", r"forgetful\.weigh failed in round 1: AttributeError: .*'losses'"),
    ],
)
@pytest.mark.parametrize("engine", ["inprocess", "vectorized"])
def test_forgotten_needs(looks_at: str, said: str, engine: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train(Forgetful(looks_at=looks_at), engine=engine)


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (torch.ones(2), r"must give a tensor of 3 weights, one for each client of the round; in round 1 it gave \[2\]"),
        (torch.ones(3, 1), r"it gave \[3, 1\]"),
        ([1.0, 1.0, 1.0], r"it gave list"),
    ],
)
def test_weights_of_the_wrong_shape(gives: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"strange\.weigh .*{said}"):
        train(Strange(gives=gives))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers(bad: float) -> None:
    with pytest.warns(PropFairWarning, match="the training failed"):
        result = train(Strange(gives=torch.tensor([0.5, bad, 0.5], dtype=torch.float64)))
    assert result.state == "failed"
    assert f"round 1: strange gave the weight {bad} to client 1. Its loss was 1." in result.reason
    assert "The model of round 0 is kept" in result.reason
