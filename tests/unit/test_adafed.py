import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from propfair.algorithms import Cohort
from propfair.algorithms.adafed import AdaFed
from propfair.algorithms.base import as_floats

DELTAS = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-1.0, 1.0, 1.0]]
LOSS = [0.5, 1.0, 2.0]
COHORT = Cohort.of(share=[0.5, 0.3, 0.2], loss=LOSS, deltas=DELTAS)


def printed(deltas: list[list[float]], loss: list[float], gamma: float) -> list[float]:
    """d as the first paper prints it: Gram-Schmidt with scaling, then weights in closed form."""
    basis: list[np.ndarray] = []
    for delta, f in zip(np.array(deltas), loss, strict=True):
        parts = [delta @ b / (b @ b) for b in basis]
        basis.append((delta - sum(a * b for a, b in zip(parts, basis, strict=True))) / (f**gamma - sum(parts)))
    inverse = np.array([1 / (b @ b) for b in basis])
    direction: list[float] = (inverse / inverse.sum() @ np.array(basis)).tolist()
    return direction


def test_by_hand() -> None:
    """d is parallel to (.5, 1, 1.5), along which the updates gain .5, 1 and 2; losses over their mean are 3/7 ..."""
    weights, _ = AdaFed(gamma=1.0).weigh(COHORT, {})
    assert weights.tolist() == pytest.approx([2 / 3, -1 / 6, 1 / 2])
    assert (weights @ as_floats(DELTAS)).tolist() == pytest.approx([1 / 6, 1 / 3, 1 / 2])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), gamma=st.floats(0, 3), K=st.integers(1, 5))
def test_it_is_the_printed_recursion(seed: int, gamma: float, K: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    deltas = torch.randn(K, 12, generator=rng, dtype=torch.float64).tolist()
    loss = (torch.rand(K, generator=rng, dtype=torch.float64) + 0.5).tolist()
    cohort = Cohort.of(share=[1 / K] * K, loss=loss, deltas=deltas)
    step = AdaFed(gamma=gamma, scale="absolute").weigh(cohort, {})[0] @ as_floats(deltas)
    expected = printed(deltas, loss, gamma)
    assert step.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6 * max(map(abs, expected)))


@pytest.mark.parametrize("gamma", [0.0, 1.0, 3.0])
def test_progress_is_in_proportion_to_a_power_of_the_loss(gamma: float) -> None:
    progress = as_floats(DELTAS) @ (AdaFed(gamma=gamma).weigh(COHORT, {})[0] @ as_floats(DELTAS))
    assert (progress / progress[0]).tolist() == pytest.approx([(f / LOSS[0]) ** gamma for f in LOSS])


def test_relative_losses_do_not_depend_on_their_unit() -> None:
    other = Cohort.of(share=[0.5, 0.3, 0.2], loss=[1000 * f for f in LOSS], deltas=DELTAS)
    assert torch.allclose(AdaFed().weigh(other, {})[0], AdaFed().weigh(COHORT, {})[0])


def test_dependent_updates_still_help_everybody() -> None:
    deltas = [[1.0, 0.1], [0.2, 1.0], [1.0, 1.0]]  # three clients, two parameters
    weights, _ = AdaFed().weigh(Cohort.of(share=[0.5, 0.3, 0.2], loss=LOSS, deltas=deltas), {})
    step = weights @ as_floats(deltas)
    relative = as_floats(LOSS) / as_floats(LOSS).mean()
    assert (as_floats(deltas) @ step >= step.square().sum() * relative - 1e-9).all()
    assert step.norm() > 0.1


def test_a_client_without_loss_does_not_get_worse() -> None:
    cohort = Cohort.of(share=[0.5, 0.5], loss=[0.0, 1.0], deltas=[[1.0, 0.0], [-1.0, 1.0]])
    step = AdaFed().weigh(cohort, {})[0] @ as_floats([[1.0, 0.0], [-1.0, 1.0]])
    assert step.tolist() == pytest.approx([0, 0.5], abs=1e-9)
