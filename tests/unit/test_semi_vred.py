from typing import Literal

import pytest
import torch

from propfair.algorithms import Cohort
from propfair.algorithms.semi_vred import SemiVRed

COHORT = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])


@pytest.mark.parametrize("side", ["above", "both"])
def test_weights_are_the_gradient_of_the_objective(side: Literal["above", "both"]) -> None:
    loss = COHORT.loss.clone().requires_grad_()
    mean = COHORT.share @ loss
    spread = (loss - mean).clamp(min=0) if side == "above" else loss - mean
    gradient = torch.autograd.grad(mean + 0.3 * COHORT.share @ spread.square(), loss)[0]
    weights, _ = SemiVRed(b=0.3, side=side).weigh(COHORT, {})
    assert torch.allclose(weights, gradient)
    assert float(weights.sum()) == pytest.approx(1)


def test_no_penalty_is_fedavg() -> None:
    assert SemiVRed(b=0).weigh(COHORT, {})[0].tolist() == [0.5, 0.3, 0.2]


def test_weights_do_not_get_negative_unless_allowed() -> None:
    weights, _ = SemiVRed(b=100, side="both").weigh(COHORT, {})
    assert weights.min() == pytest.approx(0, abs=1e-12)
    assert float(weights.sum()) == pytest.approx(1)
    assert SemiVRed(b=100, side="both", nonnegative=False).weigh(COHORT, {})[0].min() < 0
