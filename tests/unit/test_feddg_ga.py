import dataclasses

import pytest
import torch
from torch import Tensor

from propfair.algorithms import Cohort, Order, State
from propfair.algorithms.base import as_floats
from propfair.algorithms.feddg_ga import FedDGGA

SHARE = as_floats([0.5, 0.3, 0.2])


def after(rule: FedDGGA, local_loss: list[float], clients: tuple[int, ...] = (0, 1, 2)) -> State:
    """The state after a round in which clients saw these losses while they trained."""
    cohort = Cohort.of(share=[1 / len(clients)] * len(clients), loss=[1.0] * len(clients), clients=clients)
    _, state = rule.weigh(cohort, rule.init(SHARE))
    return rule.learn(dataclasses.replace(cohort, observed={"local_loss": as_floats(local_loss)}), state)


def weigh(rule: FedDGGA, state: State, loss: list[float], round_: int = 2) -> Tensor:
    return rule.weigh(Cohort.of(share=SHARE.tolist(), loss=loss, round_=round_), state)[0]


def test_by_hand() -> None:
    """Gaps .1, .2 and .4 over .4, times .2/3, on top of 1/3; then normalised by 1.11667."""
    rule = FedDGGA(step=0.2)
    found = weigh(rule, after(rule, [0.4, 0.8, 1.6]), [0.5, 1.0, 2.0])
    expected = [1 / 3 + 0.2 / 3 * gap for gap in (0.25, 0.5, 1.0)]
    assert found.tolist() == pytest.approx([value / sum(expected) for value in expected])


def test_the_first_round_is_uniform() -> None:
    assert weigh(FedDGGA(), FedDGGA().init(SHARE), [0.5, 1.0, 2.0], 1).tolist() == pytest.approx([1 / 3] * 3)


def test_unknown_gaps_leave_a_weight_alone() -> None:
    rule = FedDGGA(step=0.3)
    state = after(rule, [1.0, 1.0], clients=(0, 2))
    found = weigh(rule, state, [1.1, 5.0, 0.9])
    expected = [1 / 3 + 0.1, 1 / 3, 1 / 3 - 0.1]
    assert found.tolist() == pytest.approx(expected)


def test_steps_fade_and_end() -> None:
    rule = FedDGGA(step=0.3, decay_rounds=4)
    state = after(rule, [1.0, 1.0, 1.0])
    for round_, left in ((2, 0.75), (4, 0.25), (5, 0.0), (50, 0.0)):
        found = weigh(rule, state, [1.1, 1.0, 0.9], round_)
        assert found.tolist() == pytest.approx([1 / 3 + 0.1 * left, 1 / 3, 1 / 3 - 0.1 * left])


def test_a_step_of_nothing_averages_uniformly() -> None:
    rule = FedDGGA(step=0.0)
    assert weigh(rule, after(rule, [0.4, 0.8, 1.6]), [0.5, 1.0, 2.0]).tolist() == pytest.approx([1 / 3] * 3)


def test_what_clients_report_is_the_loss_of_their_batches() -> None:
    batches = torch.tensor([1.0, 0.5])
    assert torch.equal(FedDGGA().watch(batches, Order())["local_loss"], batches)
