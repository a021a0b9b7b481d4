import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from propfair.algorithms import Cohort
from propfair.algorithms.superquantile import DeltaFL

COHORT = Cohort.of(share=[0.4, 0.3, 0.2, 0.1], loss=[0.5, 2.0, 1.0, 3.0])


def test_theta_one_is_fedavg_and_a_small_one_afl() -> None:
    assert DeltaFL(theta=1).weigh(COHORT, {})[0].tolist() == pytest.approx([0.4, 0.3, 0.2, 0.1])
    assert DeltaFL(theta=1e-6).weigh(COHORT, {})[0].tolist() == [0, 0, 0, 1]


def test_the_tail_is_averaged_by_data() -> None:
    assert DeltaFL(theta=0.35).weigh(COHORT, {})[0].tolist() == pytest.approx([0, 0.75, 0, 0.25])


@given(losses=st.lists(st.sampled_from([0.0, 1.0, 2.5, 7.0]), min_size=4, max_size=4), theta=st.floats(0.01, 1))
def test_the_split_boundary_is_the_worst_mixture(losses: list[float], theta: float) -> None:
    cohort = Cohort.of(share=COHORT.share.tolist(), loss=losses)
    weights, _ = DeltaFL(theta=theta, boundary="split").weigh(cohort, {})
    assert (weights <= cohort.share / theta + 1e-9).all()
    bounds = [(0, p / theta) for p in cohort.share.tolist()]
    best = linprog([-f for f in losses], A_eq=[[1.0] * 4], b_eq=[1.0], bounds=bounds)
    assert float(weights @ cohort.loss) == pytest.approx(-best.fun, abs=1e-6)


def test_equal_losses_share_the_boundary() -> None:
    cohort = Cohort.of(share=[0.25] * 4, loss=[1.0, 1.0, 1.0, 2.0])
    weights, _ = DeltaFL(theta=0.5, boundary="split").weigh(cohort, {})
    assert torch.allclose(weights, torch.tensor([1 / 6, 1 / 6, 1 / 6, 1 / 2], dtype=torch.float64))
