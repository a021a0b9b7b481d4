from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from propfair.algorithms import Cohort
from propfair.algorithms.base import as_floats
from propfair.algorithms.fedfv import FedFV
from propfair.core.updates import PastUpdates


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


class Rounds:
    """Rounds with given updates: what is kept of them is what the server keeps."""

    def __init__(self, algorithm: FedFV, num_params: int = 2) -> None:
        self.algorithm, self.round = algorithm, 0
        self.past = PastUpdates.none(torch.zeros(num_params, dtype=torch.float64))

    def run(self, clients: tuple[int, ...], deltas: Sequence[Sequence[float]]) -> Tensor:
        """The step."""
        self.round, K = self.round + 1, len(clients)
        absent = self.past.absent(clients)
        updates = torch.cat([as_floats(deltas), absent.updates])
        cohort = Cohort.of(
            [1 / K] * K, [1.0] * K, updates.tolist(), clients=clients, round_=self.round, past=absent.rows
        )
        weights, _ = self.algorithm.weigh(cohort, {})
        assert weights.shape == (len(updates),)
        self.past = absent.followed_by(as_floats(deltas), cohort, self.algorithm.remember)
        return weights @ updates


def test_updates_of_absent_clients_are_respected_for_tau_rounds() -> None:
    for tau, respected in ((1, True), (0, False)):
        rounds = Rounds(FedFV(tau=tau))
        rounds.run((0,), [[1.0, 0.0]])
        step = rounds.run((1,), [[-1.0, 1.0]])
        assert (step[0] >= -1e-12) == respected
        assert float(step.norm()) == pytest.approx(2**0.5)  # as long as before
        assert rounds.run((1,), [[-1.0, 1.0]]).tolist() == [-1, 1], "forgotten after tau rounds"


def by_vectors_of_the_past(update: Tensor, past: Tensor, rounds: Tensor, now: int, tau: int) -> Tensor:
    """What version 0.1.0 did with the vectors themselves."""
    revised = update
    for age in range(tau, 0, -1):
        candidates = past[rounds == now - age]
        conflict = candidates[candidates @ revised < 0].sum(0)
        if conflict @ revised < 0:
            revised = revised - conflict * ((conflict @ revised) / (conflict @ conflict))
    return torch.mul(revised, update.norm() / revised.norm())


@pytest.mark.parametrize("tau", [1, 2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_the_gram_matrix_give_what_vectors_of_the_past_give(tau: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    rounds, plain = Rounds(FedFV(tau=tau), 6), FedFV(tau=0)
    for _ in range(8):
        clients = tuple(torch.randperm(9, generator=rng)[:3].sort().values.tolist())
        deltas = torch.randn(3, 6, generator=rng, dtype=torch.float64)
        past = rounds.past.absent(clients)
        alone = Cohort.of([1 / 3] * 3, [1.0] * 3, deltas.tolist(), clients=clients)
        update = plain.weigh(alone, {})[0] @ deltas
        expected = by_vectors_of_the_past(update, past.updates, past.rounds, rounds.round + 1, tau)
        assert torch.allclose(rounds.run(clients, deltas.tolist()), expected, rtol=1e-10, atol=1e-10)


def test_a_client_that_takes_part_again_is_not_absent() -> None:
    rounds = Rounds(FedFV(tau=2))
    rounds.run((0, 2), [[1.0, 0.0], [0.0, 1.0]])
    rounds.run((0,), [[0.0, 1.0]])
    assert sorted(zip(rounds.past.rows.clients, rounds.past.rows.rounds, strict=True)) == [(0, 2), (2, 1)]
