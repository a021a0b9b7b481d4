import pytest
import torch
from torch import Tensor

from propfair.algorithms import Cohort, State
from propfair.algorithms.base import as_floats
from propfair.algorithms.fedfv import FedFV


def by_vectors(deltas: Tensor, loss: list[float], alpha: float) -> Tensor:
    """The first paper's algorithm on vectors instead of coefficients, with uniform weights."""
    K = len(deltas)
    order = sorted(range(K), key=lambda k: loss[k])
    top = order[-int((K - 1) * alpha + 1) :] if alpha else []
    rows = []
    for i in range(K):
        row = deltas[i].clone()
        for j in order:
            dot = row @ deltas[j]
            if i not in top and i != j and dot < 0:
                row = row - dot / (deltas[j] @ deltas[j]) * deltas[j]
        rows.append(row)
    total = torch.stack(rows).mean(0)
    return torch.mul(total, deltas.mean(0).norm() / total.norm())


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("seed", range(5))
def test_coefficients_give_what_vectors_give(alpha: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    deltas, loss = torch.randn(6, 3, generator=rng, dtype=torch.float64), torch.rand(6, generator=rng).tolist()
    cohort = Cohort.of(share=[1 / 6] * 6, loss=loss, deltas=deltas.tolist())
    weights, _ = FedFV(alpha=alpha, weighting="uniform").weigh(cohort, {})
    assert torch.allclose(weights @ deltas, by_vectors(deltas, loss, alpha))


def test_without_conflicts_it_is_fedavg() -> None:
    cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[1.0, 2.0, 3.0], deltas=[[1, 0], [0, 1], [1, 1]])
    assert FedFV().weigh(cohort, {})[0].tolist() == pytest.approx([0.5, 0.3, 0.2])


def test_the_worst_client_keeps_its_direction() -> None:
    cohort = Cohort.of(share=[0.5, 0.5], loss=[1.0, 2.0], deltas=[[1.0, 0.0], [-1.0, 1.0]])
    step = FedFV(alpha=0.1).weigh(cohort, {})[0] @ as_floats([[1.0, 0.0], [-1.0, 1.0]])
    assert step @ as_floats([-1.0, 1.0]) > 0
    assert step @ as_floats([1.0, 0.0]) < 0  # it may hurt the better-off


def test_two_opposite_updates_stop() -> None:
    cohort = Cohort.of(share=[0.5, 0.5], loss=[1.0, 1.0], deltas=[[1.0, 0.0], [-1.0, 0.0]])
    assert FedFV(alpha=0).weigh(cohort, {})[0].tolist() == [0, 0]


def run(
    algorithm: FedFV, state: State, round_: int, clients: tuple[int, ...], deltas: list[list[float]]
) -> tuple[Tensor, State]:
    K = len(clients)
    cohort = Cohort.of(share=[1 / K] * K, loss=[1.0] * K, deltas=deltas, clients=clients, round_=round_)
    weights, state = algorithm.weigh(cohort, state)
    return algorithm.amend(weights @ as_floats(deltas), as_floats(deltas), cohort, state)


def test_updates_of_absent_clients_are_respected_for_tau_rounds() -> None:
    for tau, respected in ((1, True), (0, False)):
        fedfv = FedFV(tau=tau)
        _, state = run(fedfv, fedfv.init(torch.ones(3)), 1, (0,), [[1.0, 0.0]])
        step, state = run(fedfv, state, 2, (1,), [[-1.0, 1.0]])
        assert (step[0] >= 0) == respected
        assert float(step.norm()) == pytest.approx(2**0.5)  # as long as before
        step, _ = run(fedfv, state, 3, (1,), [[-1.0, 1.0]])
        assert step.tolist() == [-1, 1], "forgotten after tau rounds"


def test_a_client_that_takes_part_again_is_not_absent() -> None:
    fedfv = FedFV(tau=2)
    _, state = run(fedfv, fedfv.init(torch.ones(3)), 1, (0, 2), [[1.0, 0.0], [0.0, 1.0]])
    _, state = run(fedfv, state, 2, (0,), [[0.0, 1.0]])
    assert sorted(zip(state["past_clients"].tolist(), state["past_rounds"].tolist(), strict=True)) == [(0, 2), (2, 1)]


def test_nothing_is_remembered_while_all_take_part() -> None:
    fedfv = FedFV()
    _, state = run(fedfv, fedfv.init(torch.ones(2)), 1, (0, 1), [[1.0, 0.0], [0.0, 1.0]])
    assert state.keys() == {"num_clients"}
