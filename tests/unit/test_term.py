import math

import pytest
import torch

from propfair.algorithms import Cohort
from propfair.algorithms.term import TERM
from propfair.core.client import batch_loss

COHORT = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])


def test_no_tilt_is_fedavg_and_a_large_one_afl() -> None:
    assert TERM(alpha=0).weigh(COHORT, {})[0].tolist() == pytest.approx([0.5, 0.3, 0.2])
    assert TERM(alpha=1e-9).weigh(COHORT, {})[0].tolist() == pytest.approx([0.5, 0.3, 0.2])
    assert TERM(alpha=1e3).weigh(COHORT, {})[0].tolist() == pytest.approx([0, 0, 1])
    assert TERM(alpha=-1e3).weigh(COHORT, {})[0].tolist() == pytest.approx([1, 0, 0])


def test_weights_are_the_gradient_of_the_tilted_mean() -> None:
    loss = COHORT.loss.clone().requires_grad_()
    mean = torch.log(COHORT.share @ torch.exp(0.7 * loss)) / 0.7
    assert torch.allclose(TERM(alpha=0.7).weigh(COHORT, {})[0], torch.autograd.grad(mean, loss)[0])


def test_the_running_normaliser_is_bias_corrected() -> None:
    term = TERM(alpha=0.5, normaliser="running")
    state = term.init(COHORT.share)
    for _ in range(3):  # the same losses again and again: the same weights
        weights, state = term.weigh(COHORT, state)
        assert weights.tolist() == pytest.approx(TERM(alpha=0.5).weigh(COHORT, {})[0].tolist())


def test_the_running_normaliser_remembers_larger_losses() -> None:
    term = TERM(alpha=1.0, normaliser="running", beta=0.5)
    _, state = term.weigh(Cohort.of(share=[1.0], loss=[3.0]), term.init(COHORT.share))
    weights, _ = term.weigh(Cohort.of(share=[1.0], loss=[1.0]), state)
    mean = (0.25 * math.exp(3) + 0.5 * math.exp(1)) / 0.75
    assert weights.item() == pytest.approx(math.exp(1) / mean)


def test_the_repository_doubles_the_first_round_and_averages_twice() -> None:
    term = TERM(alpha=0.5, normaliser="repo", weighting="uniform")
    state, sums = term.init(COHORT.share), []
    for _ in range(30):
        weights, state = term.weigh(COHORT, state)
        sums.append(float(weights.sum()))
    assert sums[0] == pytest.approx(2 / 3)
    assert sums[-1] == pytest.approx(1 / 3)


def test_the_tilt_between_examples() -> None:
    losses = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    assert batch_loss(TERM(tau=2.0), losses).item() == pytest.approx(math.log((1 + math.e**2 + math.e**6) / 3) / 2)
    assert batch_loss(TERM(tau=1e-7), losses).item() == pytest.approx(4 / 3, abs=1e-5)
    assert batch_loss(TERM(tau=500.0), losses).item() == pytest.approx(3, abs=0.01)
    assert TERM().reduce is None
    assert batch_loss(TERM(), losses).item() == pytest.approx(4 / 3)


def test_the_tilt_between_examples_has_gradients_with_padding() -> None:
    losses = torch.tensor([0.0, 1.0, 3.0], requires_grad=True)
    loss = batch_loss(TERM(tau=2.0), losses, torch.tensor([0.5, 0.5, 0.0]))
    gradient = torch.autograd.grad(loss, losses)[0]
    assert gradient.isfinite().all()
    assert gradient[2] == 0
    assert gradient[1] > gradient[0]
