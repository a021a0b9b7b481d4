import pytest
import torch
from torchjd.aggregation import UPGradWeighting
from torchjd.linalg import QuadprogProjector

from propfair.algorithms import Cohort
from propfair.algorithms.base import as_floats
from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.upgrad import UPGrad

DELTAS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]]
COHORT = Cohort.of(share=[0.5, 0.3, 0.2], deltas=DELTAS)


def test_by_hand() -> None:
    """The cone of no conflict is 0 <= y1 <= y2: (1, 0) goes to (.5, .5), (0, 1) stays, (-1, 1) goes to (0, 1)."""
    weights, _ = UPGrad().weigh(COHORT, {})
    assert weights.tolist() == pytest.approx([0.7, 0.3, 0.45], abs=1e-8)
    assert (weights @ as_floats(DELTAS)).tolist() == pytest.approx([0.25, 0.75], abs=1e-8)
    assert UPGrad().diagnose(COHORT, weights, {})["turned"] == pytest.approx(0.45, abs=1e-8)


@pytest.mark.parametrize(("K", "P"), [(2, 3), (5, 4), (8, 30), (70, 200)])
def test_it_is_that_of_torchjd(K: int, P: int) -> None:
    rng = torch.Generator().manual_seed(K)
    updates = torch.randn(K, P, generator=rng, dtype=torch.float64) + 0.1
    updates = updates * (1 + torch.arange(K, dtype=torch.float64)).unsqueeze(1)
    share = torch.rand(K, generator=rng, dtype=torch.float64) + 0.1
    share = share / share.sum()
    oracle = UPGradWeighting(share, QuadprogProjector(norm_eps=0.0, reg_eps=1e-10))
    theirs = oracle(updates @ updates.T) @ updates
    ours = UPGrad().weigh(Cohort.of(share=share.tolist(), deltas=updates.tolist()), {})[0] @ updates
    assert torch.allclose(ours, theirs, atol=1e-4 * float(updates.norm(dim=1).max()))


def test_without_conflict_it_is_fedavg() -> None:
    cohort = Cohort.of(share=[0.7, 0.2, 0.1], deltas=[[1.0, 0.0], [1.0, 1.0], [0.0, 5.0]])
    for weighting in ("samples", "uniform"):
        expected = FedAvg(weighting=weighting).weigh(cohort, {})[0]
        assert UPGrad(weighting=weighting).weigh(cohort, {})[0].tolist() == pytest.approx(expected.tolist(), abs=1e-8)


def test_zero_updates_take_no_part() -> None:
    cohort = Cohort.of(share=[0.5, 0.5], deltas=[[2.0, 0], [0.0, 0]])
    assert UPGrad().weigh(cohort, {})[0].tolist() == pytest.approx([0.5, 0], abs=1e-8)
