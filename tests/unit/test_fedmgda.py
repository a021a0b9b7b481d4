import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from propfair.algorithms import Cohort
from propfair.algorithms.base import as_floats
from propfair.algorithms.fedmgda import FedMGDAPlus

rows = st.lists(st.sampled_from([-2.0, -0.5, 0.0, 1.0, 3.0]), min_size=3, max_size=3)


def cohort_of(deltas: list[list[float]], round_: int = 1) -> Cohort:
    return Cohort.of(share=[1 / len(deltas)] * len(deltas), deltas=deltas, round_=round_)


def lam(algorithm: FedMGDAPlus, deltas: list[list[float]]) -> Tensor:
    return torch.mul(algorithm.weigh(cohort_of(deltas), {})[0], as_floats(deltas).norm(dim=1))


@settings(max_examples=50, deadline=None)
@given(deltas=st.lists(rows.filter(any), min_size=1, max_size=6), epsilon=st.floats(0, 1))
def test_optimality_conditions(deltas: list[list[float]], epsilon: float) -> None:
    weights = lam(FedMGDAPlus(epsilon=epsilon), deltas)
    unit = torch.nn.functional.normalize(as_floats(deltas))
    progress = unit @ (weights @ unit)
    K = len(deltas)
    low, high = max(0.0, 1 / K - epsilon), 1 / K + epsilon
    assert float(weights.sum()) == pytest.approx(1, abs=1e-9)
    free = (weights > low + 1e-7) & (weights < high - 1e-7)
    if free.any():
        level = progress[free].mean()
        assert torch.allclose(progress[free], level, atol=1e-6)
        assert (progress[weights <= low + 1e-7] >= level - 1e-6).all()
        assert (progress[weights >= high - 1e-7] <= level + 1e-6).all()
    if epsilon == 1:
        assert (progress >= (weights @ unit).square().sum() - 1e-6).all(), "not a common descent direction"


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_two_clients_always_count_the_same(epsilon: float) -> None:
    assert lam(FedMGDAPlus(epsilon=epsilon), [[3.0, 1.0], [0.1, -2.0]]).tolist() == pytest.approx([0.5, 0.5])


def test_two_opposite_updates_cancel() -> None:
    deltas = [[1.0, 2.0], [-2.0, -4.0]]
    weights, _ = FedMGDAPlus(epsilon=1.0).weigh(cohort_of(deltas), {})
    assert (weights @ as_floats(deltas)).abs().max() < 1e-12


def test_a_box_of_zero_averages_directions_and_a_box_of_one_is_mgda() -> None:
    deltas = [[1.0, 0.0], [1.0, 0.1], [0.0, 2.0]]
    assert lam(FedMGDAPlus(epsilon=0), deltas).tolist() == pytest.approx([1 / 3] * 3)
    weights = lam(FedMGDAPlus(epsilon=1), deltas)
    assert weights.tolist() == pytest.approx([0.5, 0, 0.5], abs=1e-6)


def test_one_client_moves_by_the_global_rate() -> None:
    weights, _ = FedMGDAPlus(global_lr=0.3).weigh(cohort_of([[3.0, 4.0]]), {})
    assert weights.item() * 5 == pytest.approx(0.3)


def test_zero_updates_are_dropped_or_stop_the_round() -> None:
    deltas = [[1.0, 0.0], [0.0, 0.0], [0.0, 2.0]]
    assert FedMGDAPlus(epsilon=0).weigh(cohort_of(deltas), {})[0].tolist() == pytest.approx([0.5, 0, 0.25])
    assert FedMGDAPlus(epsilon=0, zero_update="stop").weigh(cohort_of(deltas), {})[0].tolist() == [0, 0, 0]
    assert FedMGDAPlus().weigh(cohort_of([[0.0], [0.0]]), {})[0].tolist() == [0, 0]


def test_the_global_rate_decays_every_hundred_rounds() -> None:
    for round_, factor in ((1, 1), (100, 1), (101, 0.5), (250, 0.25)):
        weights, _ = FedMGDAPlus(decay=0.5).weigh(cohort_of([[2.0]], round_), {})
        assert weights.item() == pytest.approx(factor / 2)


def test_the_median_norm_as_global_rate() -> None:
    weights, _ = FedMGDAPlus(epsilon=0, global_lr="median_norm").weigh(cohort_of([[1.0], [2.0], [9.0], [4.0]]), {})
    assert (weights * as_floats([1, 2, 9, 4])).tolist() == pytest.approx([3 / 4] * 4)


def test_a_box_around_the_shares() -> None:
    cohort = Cohort.of(share=[0.7, 0.2, 0.1], deltas=[[1.0, 0], [0, 1.0], [-1.0, 0.5]])
    assert cohort.norm2 is not None
    weights, _ = FedMGDAPlus(epsilon=0, centre="samples").weigh(cohort, {})
    assert (weights * cohort.norm2.sqrt()).tolist() == pytest.approx([0.7, 0.2, 0.1])
