import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from propfair.algorithms import ALGORITHMS, Cohort
from propfair.algorithms.afl import AFL
from propfair.algorithms.base import as_floats

SHARE = as_floats([0.4, 0.3, 0.2, 0.1])
ALL = Cohort.of(share=SHARE.tolist(), loss=[0.5, 1.0, 2.0, 4.0])


@given(
    gamma=st.floats(0, 10),
    rounds=st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True), st.lists(st.floats(0, 1e6), min_size=4)
        ),
        min_size=1,
        max_size=4,
    ),
    dual=st.sampled_from(["projected", "eg"]),
)
def test_lambda_stays_on_the_simplex_of_all_clients_whoever_takes_part(
    gamma: float, rounds: list[tuple[list[int], list[float]]], dual: str
) -> None:
    afl = AFL(gamma=gamma, dual=dual)  # type: ignore[arg-type]
    state = afl.init(SHARE)
    for clients, losses in rounds:
        share = SHARE[clients] / SHARE[clients].sum()
        cohort = Cohort.of(share=share.tolist(), loss=losses[: len(clients)], clients=tuple(clients))
        weights, state = afl.weigh(cohort, state)
        assert (state["lambda"] >= 0).all()
        assert float(state["lambda"].sum()) == pytest.approx(1, abs=1e-9)
        assert float(weights.sum()) == pytest.approx(1, abs=1e-9)


def test_gamma_zero_is_fedavg() -> None:
    afl = AFL(gamma=0)
    weights, state = afl.weigh(ALL, afl.init(SHARE))
    assert weights.tolist() == pytest.approx(SHARE.tolist())
    assert state["lambda"].tolist() == pytest.approx(SHARE.tolist())


def test_a_large_gamma_leaves_only_the_worst_client() -> None:
    afl = AFL(gamma=10)
    assert afl.weigh(ALL, afl.init(SHARE))[0].tolist() == [0, 0, 0, 1]


def test_few_clients_a_round_move_lambda_further_so_that_it_is_right_on_average() -> None:
    cohort = Cohort.of(share=[0.6, 0.4], loss=[0.1, 0.2], clients=(1, 2))
    moved = AFL(gamma=0.1).weigh(cohort, {"lambda": SHARE})[1]["lambda"] - SHARE
    plain = AFL(gamma=0.1, unbiased=False).weigh(cohort, {"lambda": SHARE})[1]["lambda"] - SHARE
    assert torch.allclose(moved, 2 * plain)  # n/s = 2, and no coordinate reaches 0


def test_clients_without_weight_fall_back_to_their_shares() -> None:
    cohort = Cohort.of(share=[0.7, 0.3], loss=[0.0, 0.0], clients=(0, 1))
    weights, _ = AFL(gamma=0).weigh(cohort, {"lambda": as_floats([0, 0, 1, 0])})
    assert weights.tolist() == [0.7, 0.3]


def test_exponentiated_gradient() -> None:
    afl = AFL(gamma=0.5, dual="eg")
    expected = SHARE * torch.exp(0.5 * ALL.loss)
    assert torch.allclose(afl.weigh(ALL, afl.init(SHARE))[0], expected / expected.sum())


def test_the_first_paper_asks_for_the_average_of_all_models() -> None:
    assert ALGORITHMS.make("afl", {"preset": "original"}).average_iterates
    assert not AFL().average_iterates


def test_diagnostics() -> None:
    found = AFL().diagnose(ALL, SHARE, {"lambda": as_floats([0.5, 0.5, 0.0, 0.0])})
    assert found == {"lambda_min": 0, "lambda_max": 0.5, "lambda_zeros": 2, "lambda_effective": 2}
