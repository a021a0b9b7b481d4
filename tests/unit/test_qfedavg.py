import pytest
import torch

from propfair.algorithms import Cohort, Needs, Order
from propfair.algorithms.base import as_floats
from propfair.algorithms.qfedavg import QFedAvg
from propfair.algorithms.qfedsgd import QFedSGD
from propfair.core.client import transformed

DELTAS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0]]
COHORT = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0], deltas=DELTAS)


def test_a_small_q_is_fedavg() -> None:
    assert QFedAvg(q=1e-9).weigh(COHORT, {})[0].tolist() == pytest.approx([0.5, 0.3, 0.2], abs=1e-6)
    assert QFedAvg(q=0).needs == Needs.NOTHING


def test_a_large_q_without_damping_is_afl() -> None:
    assert QFedAvg(q=1e4, damping=False).weigh(COHORT, {})[0].tolist() == pytest.approx([0, 0, 1])


def test_undamped_weights_are_the_damped_ones_scaled_to_one() -> None:
    damped, plain = QFedAvg(q=2).weigh(COHORT, {})[0], QFedAvg(q=2, damping=False).weigh(COHORT, {})[0]
    assert torch.allclose(plain, damped / damped.sum())
    assert QFedAvg(q=2, damping=False).needs == Needs.LOSS


def test_the_damping_is_recorded() -> None:
    weights, _ = QFedAvg(q=1).weigh(COHORT, {})
    assert QFedAvg().diagnose(COHORT, weights, {})["damping"] == pytest.approx(1 - float(weights.sum()))


@pytest.mark.parametrize("q", [0.1, 1.0, 5.0])
def test_weights_by_the_formula_as_printed(q: float) -> None:
    F, p, L = COHORT.loss, COHORT.share, 1 / COHORT.lr
    assert COHORT.norm2 is not None
    h = q * F ** (q - 1) * L**2 * COHORT.norm2 + L * F**q
    expected = p * L * F**q / (p @ h)
    assert torch.allclose(QFedAvg(q=q, loss_floor=0).weigh(COHORT, {})[0], expected)


def test_a_client_without_loss_that_still_moves_stops_the_step_if_q_is_small() -> None:
    cohort = Cohort.of(share=[0.5, 0.5], loss=[0.0, 1.0], deltas=[[1.0], [1.0]])
    assert QFedAvg(q=0.1, loss_floor=0).weigh(cohort, {})[0].tolist() == [0, 0]
    assert QFedAvg(q=0.1).weigh(cohort, {})[0].sum() < 1e-6
    assert QFedAvg(q=2, loss_floor=0).weigh(cohort, {})[0].tolist() == pytest.approx([0, 1 / (1 + 20)])


def test_no_loss_and_no_updates() -> None:
    cohort = Cohort.of(share=[0.5, 0.5], loss=[0.0, 0.0], deltas=[[0.0], [0.0]])
    assert QFedAvg(q=0.1, loss_floor=0).weigh(cohort, {})[0].tolist() == [0.5, 0.5]


def test_on_the_client_the_batch_loss_is_raised_and_the_server_averages() -> None:
    qffl = QFedAvg(q=2.0, placement="client")
    loss = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    value = transformed(qffl, loss, Order())
    assert value.detach().tolist() == pytest.approx([0, 0.125 / 3, 8 / 3])
    assert torch.autograd.grad(value.sum(), loss)[0].tolist() == pytest.approx([0, 0.25, 4])
    assert qffl.needs == Needs.NOTHING
    assert qffl.weigh(COHORT, {})[0].tolist() == [0.5, 0.3, 0.2]


def test_one_full_batch_step_gives_the_same_direction_on_either_side() -> None:
    """delta is -lr * slope * gradient, so that the client's slope and the server's weight are interchangeable."""
    slopes = COHORT.loss**2.0
    server = QFedAvg(q=2.0, damping=False, loss_floor=0).weigh(COHORT, {})[0] @ as_floats(DELTAS)
    client = QFedAvg(q=2.0, placement="client").weigh(COHORT, {})[0] @ (slopes.unsqueeze(1) * as_floats(DELTAS))
    assert torch.allclose(torch.nn.functional.normalize(server, dim=0), torch.nn.functional.normalize(client, dim=0))


def test_qfedsgd_with_one_step_is_qfedavg() -> None:
    assert torch.allclose(QFedSGD(q=1.5).weigh(COHORT, {})[0], QFedAvg(q=1.5).weigh(COHORT, {})[0])


def test_qfedsgd_by_the_formula_as_printed() -> None:
    q, L, lr, K = 2.0, 7.0, 0.1, 4.0
    cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0], deltas=DELTAS, num_steps=[K] * 3)
    F, p, gradients = cohort.loss, cohort.share, -as_floats(DELTAS) / (lr * K)
    h = q * F ** (q - 1) * gradients.square().sum(1) + L * F**q
    step = -(p * F**q) @ gradients / (p @ h)
    assert torch.allclose(QFedSGD(q=q, L=L, loss_floor=0).weigh(cohort, {})[0] @ as_floats(DELTAS), step)


def test_qfedsgd_with_a_static_step() -> None:
    weights, _ = QFedSGD(q=2.0, static_step=True, weighting="none", loss_floor=0).weigh(COHORT, {})
    assert weights.tolist() == pytest.approx([0.25 / 3, 1 / 3, 4 / 3])
    assert QFedSGD(static_step=True).needs == Needs.LOSS
