import pytest
import torch

from propfair.algorithms import ALGORITHMS, Cohort
from propfair.algorithms.base import PastRows, as_floats
from propfair.algorithms.fedfv import FedFV
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


def test_the_rule_underneath_sees_rescaled_updates_of_absent_clients_too() -> None:
    past = PastRows(clients=(7, 8), rounds=(2, 2), num_steps=(4.0, 1.0))
    deltas = as_floats([*DELTAS, [-1.0, -0.5], [0.2, -0.9]])
    factor = (COHORT.share @ COHORT.num_steps) / as_floats([*STEPS, 4.0, 1.0])
    rescaled = factor.unsqueeze(1) * deltas
    given = {"share": [0.5, 0.3, 0.2], "loss": [0.5, 1.0, 2.0], "round_": 3, "past": past}
    expected = FedFV().weigh(Cohort.of(**given, deltas=rescaled.tolist()), {})[0] @ rescaled  # type: ignore[arg-type]
    cohort = Cohort.of(**given, deltas=deltas.tolist(), num_steps=STEPS)  # type: ignore[arg-type]
    weights, _ = FedNova(over="fedfv").weigh(cohort, {})
    assert (weights[3:] != 0).any()
    assert torch.allclose(weights @ deltas, expected)
