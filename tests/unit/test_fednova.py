import pytest
import torch

from propfair.algorithms import ALGORITHMS, Cohort
from propfair.algorithms.base import as_floats
from propfair.algorithms.fednova import FedNova

DELTAS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]]
STEPS = [8.0, 4.0, 2.0]
COHORT = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0], deltas=DELTAS, num_steps=STEPS)


def test_over_fedavg_it_is_the_printed_formula() -> None:
    expected = [p * (0.5 * 8 + 0.3 * 4 + 0.2 * 2) / steps for p, steps in zip([0.5, 0.3, 0.2], STEPS, strict=True)]
    assert FedNova().weigh(COHORT, {})[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["propfair", "afl", "term", "q-fedavg", "delta-fl", "fedfv", "fedmgda+", "nash-mtl"])
def test_equal_steps_change_nothing(name: str) -> None:
    cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0], deltas=DELTAS, num_steps=[7.0] * 3)
    inner, outer = ALGORITHMS.make(name), FedNova(over=name)
    state = inner.init(cohort.share)
    assert torch.allclose(outer.weigh(cohort, state)[0], inner.weigh(cohort, state)[0])


@pytest.mark.parametrize("name", ["fedavg", "term", "q-fedavg", "fedmgda+", "nash-mtl", "fedfv"])
def test_the_rule_underneath_sees_the_rescaled_updates(name: str) -> None:
    factor = (COHORT.share @ COHORT.num_steps) / COHORT.num_steps
    rescaled = factor.unsqueeze(1) * as_floats(DELTAS)
    cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0], deltas=rescaled.tolist())
    expected = ALGORITHMS.make(name).weigh(cohort, {})[0] @ rescaled
    assert torch.allclose(FedNova(over=name).weigh(COHORT, {})[0] @ as_floats(DELTAS), expected)


def test_fedmgda_does_not_care() -> None:
    plain = ALGORITHMS.make("fedmgda+").weigh(COHORT, {})[0]
    assert torch.allclose(FedNova(over="fedmgda+").weigh(COHORT, {})[0], plain)


def test_hooks_on_vectors_see_rescaled_updates_too() -> None:
    nova = FedNova(over="fedfv")
    state = nova.init(torch.ones(9))
    weights, state = nova.weigh(COHORT, state)
    _, state = nova.amend(weights @ as_floats(DELTAS), as_floats(DELTAS), COHORT, state)
    factor = (COHORT.share @ COHORT.num_steps) / COHORT.num_steps
    assert torch.allclose(state["past_updates"], factor.unsqueeze(1) * as_floats(DELTAS))
