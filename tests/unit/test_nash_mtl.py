import pytest
import torch

from propfair.algorithms import Cohort
from propfair.algorithms.base import as_floats
from propfair.algorithms.nash_mtl import NashMTL

DELTAS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 2.0]]
COHORT = Cohort.of(share=[0.5, 0.3, 0.2], deltas=DELTAS)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 4.0])
def test_progress_is_an_alpha_fair_bargain(alpha: float) -> None:
    """At the optimum of sum p phi_alpha(<delta_i, d>) on the unit ball, d is parallel to its gradient."""
    d = NashMTL(alpha=alpha, scale="unit").weigh(COHORT, {})[0] @ as_floats(DELTAS)
    progress = as_floats(DELTAS) @ d
    assert (progress > 0).all()
    gradient = (COHORT.share * progress**-alpha) @ as_floats(DELTAS)
    assert torch.allclose(d, torch.nn.functional.normalize(gradient, dim=0), atol=1e-6)


def test_the_bargain_beats_random_directions() -> None:
    d = NashMTL(scale="unit").weigh(COHORT, {})[0] @ as_floats(DELTAS)
    angles = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 * torch.pi
    progress = torch.stack([angles.cos(), angles.sin()], 1) @ as_floats(DELTAS).T
    product = progress[(progress > 0).all(1)].log() @ COHORT.share
    assert (product <= float(COHORT.share @ (as_floats(DELTAS) @ d).log()) + 1e-9).all()


def test_large_alpha_comes_close_to_mgda() -> None:
    progress = as_floats(DELTAS) @ (NashMTL(alpha=50.0, scale="unit").weigh(COHORT, {})[0] @ as_floats(DELTAS))
    assert progress[1:].min() > 0.98 * progress[0]


def test_the_step_is_as_long_as_that_of_fedavg() -> None:
    step = NashMTL().weigh(COHORT, {})[0] @ as_floats(DELTAS)
    assert float(step.norm()) == pytest.approx(float((COHORT.share @ as_floats(DELTAS)).norm()))


def test_scaling_one_update_does_not_change_the_nash_direction() -> None:
    scaled = [[10 * v for v in DELTAS[0]], *DELTAS[1:]]
    other = NashMTL(scale="unit").weigh(Cohort.of(share=[0.5, 0.3, 0.2], deltas=scaled), {})[0] @ as_floats(scaled)
    assert torch.allclose(other, NashMTL(scale="unit").weigh(COHORT, {})[0] @ as_floats(DELTAS), atol=1e-8)


@pytest.mark.parametrize("deltas", [[[1.0, 0], [-2.0, 0]], [[1.0, 0], [-0.5, 0.8], [-0.5, -0.8]], [[0.0, 0], [0.0, 0]]])
def test_nothing_moves_where_no_direction_improves_all(deltas: list[list[float]]) -> None:
    cohort = Cohort.of(share=[1 / len(deltas)] * len(deltas), deltas=deltas)
    assert NashMTL().weigh(cohort, {})[0].tolist() == [0] * len(deltas)


def test_zero_updates_take_no_part() -> None:
    cohort = Cohort.of(share=[0.5, 0.5], deltas=[[2.0, 0], [0.0, 0]])
    assert NashMTL(scale="unit").weigh(cohort, {})[0].tolist() == pytest.approx([0.5, 0])
