"""A problem whose Nash bargaining solution is known: PropFair finds it, FedAvg does not.

Two clients with data shares 3/4 and 1/4 and losses 2 |theta|^2 and |theta - e|^2, |e| = 1, M = 1. On the segment
theta = t e the bargain 3/4 log(1 - 2 t^2) + 1/4 log(1 - (1 - t)^2) is best where 2 t (1 - t)(3 - 4t) = 7t - 1, that is
t = 1/4, with utilities (7/8, 7/16). The mean loss is least at t = 1/7.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from propfair.algorithms import ALGORITHMS
from propfair.core.client import LocalTraining, Workload
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.core.tasks import OtherTask
from propfair.engines.inprocess import InProcess
from propfair.engines.server import Server
from tests.builders import federation_of

SHARE = torch.tensor([0.75, 0.25], dtype=torch.float64)
STEEPNESS = torch.tensor([2.0, 1.0])
CENTRE = torch.tensor([[0.0, 0.0, 0.0], [0.6, 0.0, 0.8]])  # the second has length 1
OWNER = torch.tensor([0, 0, 0, 1])  # of each example
SOLUTION = 0.25 * CENTRE[1]


class Point(nn.Module):
    """The model is one point; an example says how much it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([0.5, 0.5, -0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.theta


def squared_distance(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum(1)


def train(name: str, options: dict[str, Any]) -> tuple[Tensor, Mapping[str, float]]:
    """The model after 150 rounds of one full-batch step, and what the last round says of itself."""
    scale = STEEPNESS.sqrt()[OWNER].unsqueeze(1)
    federation = federation_of(scale, scale * CENTRE[OWNER], [3, 1], num_classes=1)
    algorithm, local = ALGORITHMS.make(name, options), LocalTraining(lr=0.05, steps=1)
    work = Workload(federation, algorithm, local, loss=squared_distance, task=OtherTask())
    model = FlatModel(Point())
    server = Server(InProcess().start(model, work), Rounds(), model.params, model.buffers)
    for _ in range(150):
        outcome = server.run_round()
    return server.released, outcome.diagnostics


def utilities(theta: Tensor, M: float = 1.0) -> Tensor:
    """M - f_i of models [..., 3], in [..., 2]."""
    return (M - STEEPNESS * (theta.unsqueeze(-2) - CENTRE).square().sum(-1)).double()


def gains(theta: Tensor, M: float = 1.0) -> Tensor:
    """The sum that proportional fairness bounds by 0 (eq. 3.3), for 1000 other models."""
    reference = utilities(theta, M)
    others = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)) * 0.5 + SOLUTION
    return (utilities(others, M) / reference - 1) @ SHARE


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("propfair", {"preset": "paper", "M": 1.0}),
        ("propfair", {"preset": "original", "M": 1.0}),
        ("propfair", {"preset": "paper", "M": (1.0, 1.0)}),
        ("propfair", {"M": 1.0, "weighting": "samples"}),
        ("propfair", {"M": 1.0, "weighting": "samples", "placement": "update"}),
        ("propfair", {"M": 1.0, "weighting": "samples", "placement": "step"}),
        ("alpha-fair", {"M": 1.0, "alpha": 1.0, "weighting": "samples"}),
    ],
    ids=str,
)
def test_propfair_reaches_the_bargain(name: str, options: dict[str, Any]) -> None:
    theta, _ = train(name, options)
    assert theta.tolist() == pytest.approx(SOLUTION.tolist(), abs=1e-3)
    assert utilities(theta).tolist() == pytest.approx([7 / 8, 7 / 16], abs=1e-3)
    assert gains(theta).max() <= 1e-3


@pytest.mark.parametrize("placement", ["server", "update", "step"])
@pytest.mark.parametrize("ratio", [1.5, 4.0])
def test_without_a_given_m_it_comes_to_rest_at_the_bargain_for_the_m_it_ends_with(placement: str, ratio: float) -> None:
    """There M is consistent with the model: the slopes at rest are those of the objective with this M."""
    theta, said = train("propfair", {"ratio": ratio, "placement": placement, "weighting": "samples"})
    again, _ = train("propfair", {"M": said["M"], "epsilon": 1e-3, "weighting": "samples"})
    assert theta.tolist() == pytest.approx(again.tolist(), abs=2e-3)
    assert gains(theta, said["M"]).max() <= 2e-3
    assert theta.norm() > 1 / 7 + 0.01, "the second client counts for more than its share"


def test_fedavg_does_not() -> None:
    theta, _ = train("fedavg", {})
    assert theta.tolist() == pytest.approx((CENTRE[1] / 7).tolist(), abs=1e-3)
    assert gains(theta).max() > 0.05


def test_a_better_alternative_for_one_client_moves_the_bargain_towards_it() -> None:
    """The loss that client 1 has to fear is smaller: it has less to win, and asks for more."""
    theta, _ = train("propfair", {"M": (1.0, 0.8), "weighting": "samples"})
    assert theta.norm() > SOLUTION.norm() + 0.01
