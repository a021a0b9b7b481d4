"""Rules that claim it: the step makes progress on every client, or nothing moves because no step can."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchjd.aggregation import FairGradWeighting, MGDAWeighting

from propfair.algorithms import ALGORITHMS, Cohort
from propfair.algorithms.base import as_floats
from propfair.algorithms.fedmgda import FedMGDAPlus
from propfair.algorithms.nash_mtl import NashMTL
from propfair.algorithms.solvers import stationary, unit_gram

RULES: list[tuple[str, dict[str, Any]]] = [
    ("adafed", {"gamma": 0.0}),
    ("adafed", {"gamma": 2.0}),
    ("fedmdfg", {"theta": 0.0}),
    ("fedmdfg", {}),
    ("fedmgda+", {"epsilon": 1.0}),
    ("nash-mtl", {}),
    ("upgrad", {}),
]
every_rule = pytest.mark.parametrize(("name", "options"), RULES, ids=str)
rows = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 1.0, 3.0]), min_size=4, max_size=4).filter(any)


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[Cohort, list[list[float]]]:
    deltas = draw(st.lists(rows, min_size=1, max_size=6))
    losses = draw(st.lists(st.floats(0.01, 10), min_size=len(deltas), max_size=len(deltas)))
    return Cohort.of(share=[1 / len(deltas)] * len(deltas), loss=losses, deltas=deltas), deltas


@every_rule
@settings(max_examples=40, deadline=None)
@given(drawn=cohorts())
def test_every_client_gains_or_nothing_moves(
    name: str, options: dict[str, Any], drawn: tuple[Cohort, list[list[float]]]
) -> None:
    cohort, deltas = drawn
    step = ALGORITHMS.make(name, options).weigh(cohort, {})[0] @ as_floats(deltas)
    progress = torch.nn.functional.normalize(as_floats(deltas)) @ step
    assert (progress >= -1e-5 * step.norm() - 1e-8).all()
    assert cohort.gram is not None
    if not stationary(unit_gram(cohort.gram)[1]) and not name.startswith("fedmdfg"):
        assert step.norm() > 0  # FedMDFG stops earlier: where nothing lessens all losses and their angle, too


@every_rule
def test_opposite_updates_stop_it(name: str, options: dict[str, Any]) -> None:
    cohort = Cohort.of(share=[0.5, 0.5], loss=[1.0, 1.1], deltas=[[1.0, 2.0], [-2.0, -4.0]])
    step = ALGORITHMS.make(name, options).weigh(cohort, {})[0] @ as_floats([[1.0, 2.0], [-2.0, -4.0]])
    assert step.abs().max() < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_mgda_is_that_of_torchjd(seed: int) -> None:
    """Theirs goes by Frank-Wolfe steps, so that lengths agree to few digits; ours is never longer."""
    rng = torch.Generator().manual_seed(seed)
    units = torch.nn.functional.normalize(torch.randn(5, 20, generator=rng, dtype=torch.float64) + 0.2)
    cohort = Cohort.of(share=[0.2] * 5, deltas=units.tolist())
    ours = FedMGDAPlus(epsilon=1.0).weigh(cohort, {})[0] @ units
    theirs = MGDAWeighting(epsilon=1e-12, max_iters=2000)(units @ units.T) @ units
    assert float(ours.norm()) <= float(theirs.norm()) + 1e-12
    assert float(ours.norm()) == pytest.approx(float(theirs.norm()), rel=1e-3)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
def test_nash_mtl_is_that_of_torchjd(alpha: float) -> None:
    rng = torch.Generator().manual_seed(0)
    updates = torch.randn(5, 20, generator=rng, dtype=torch.float64) + 0.2
    cohort = Cohort.of(share=[0.2] * 5, deltas=updates.tolist())
    theirs = FairGradWeighting(alpha=alpha)(updates @ updates.T) @ updates
    ours = NashMTL(alpha=alpha, scale="unit", weighting="uniform").weigh(cohort, {})[0] @ updates
    assert torch.allclose(ours, theirs / theirs.norm(), atol=1e-6)
