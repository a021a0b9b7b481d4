import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from propfair.errors import ConfigError, DataError, MissingExtraError
from propfair.fairness import bargaining
from propfair.fairness.bargaining import (
    BargainingError,
    HalfSpaces,
    Hull,
    bargaining_weights,
    check_equivalence,
    nadir_point,
    nash_bargaining,
)
from propfair.fairness.certificate import certificate


def test_closed_form_on_a_hyperplane() -> None:
    # max sum p log(u - d) with a'u <= b: everyone gets d plus its share of what is left.
    a, b = np.array([1.0, 2.0, 3.0]), 6.0
    p, d = np.array([0.5, 0.25, 0.25]), np.array([0.1, -0.4, 0.2])
    solution = nash_bargaining(HalfSpaces([a], [b]), p, d)
    np.testing.assert_allclose(solution.utilities, d + p * (b - a @ d) / a, rtol=1e-10)
    assert solution.gap <= 1e-10
    assert solution.mixture is None


def test_closed_form_on_a_simplex_of_points() -> None:
    p = np.array([0.4, 0.3, 0.2, 0.1])
    solution = nash_bargaining(Hull(np.diag([1.0, 10.0, 100.0, 0.01])), p)
    assert solution.mixture is not None
    np.testing.assert_allclose(solution.mixture, p, rtol=1e-9)
    np.testing.assert_allclose(solution.utilities, p * [1.0, 10.0, 100.0, 0.01], rtol=1e-9)


def test_closed_form_on_a_disc() -> None:
    # On u1^2 + u2^2 <= 1 the solution is (sqrt p1, sqrt p2).
    angles = np.linspace(0, np.pi / 2, 2001)
    solution = nash_bargaining(Hull(np.c_[np.cos(angles), np.sin(angles)]), [0.8, 0.2])
    np.testing.assert_allclose(solution.utilities, np.sqrt([0.8, 0.2]), atol=1e-3)


def test_figure_1_is_the_middle_of_the_utilitarian_edge() -> None:
    solution = nash_bargaining(HalfSpaces([[1, 1], [1, 0], [0, 1]], [1.0, 0.8, 0.7]))
    np.testing.assert_allclose(solution.utilities, [0.5, 0.5], rtol=1e-10)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 2**32 - 1), st.sampled_from([1e-4, 1.0, 100.0]))
def test_certificate_proves_the_solution(n: int, m: int, seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    points = rng.uniform(0.01, 1.0, (m, n)) * scale
    p = rng.dirichlet(np.ones(n) * 2) + 1e-3
    solution = nash_bargaining(Hull(points), p)
    assert solution.gap <= 1e-9
    mixtures = rng.dirichlet(np.ones(m), 100) @ points
    assert certificate(mixtures, solution.utilities, p).maximum <= 1e-9
    assert (mixtures @ np.ones(n) > 0).all()
    assert (np.log(mixtures) @ solution.shares).max() <= solution.log_nash_product + 1e-9


def test_nashs_axioms() -> None:
    rng = np.random.default_rng(3)
    points = rng.uniform(0.1, 1.0, (8, 3))
    base = nash_bargaining(Hull(points)).utilities
    scale, shift = np.array([2.0, 0.1, 50.0]), np.array([1.0, -3.0, 0.5])
    moved = nash_bargaining(Hull(points * scale + shift), disagreement=shift).utilities
    np.testing.assert_allclose(moved, base * scale + shift, rtol=1e-8)
    np.testing.assert_allclose(nash_bargaining(Hull(points[:, [2, 0, 1]])).utilities, base[[2, 0, 1]], rtol=1e-8)
    dominated = np.vstack([points, 0.5 * points[:2]])
    np.testing.assert_allclose(nash_bargaining(Hull(dominated)).utilities, base, rtol=1e-8)


def test_both_descriptions_of_a_set_agree() -> None:
    corners = [[0.0, 0.0], [0.9, 0.0], [0.9, 0.2], [0.4, 0.7], [0.0, 0.7]]
    rows = [[1, 1], [1, 0], [0, 1], [-1, 0], [0, -1]]
    p, d = [0.7, 0.3], [0.1, 0.3]
    hull = nash_bargaining(Hull(corners), p, d)
    spaces = nash_bargaining(HalfSpaces(rows, [1.1, 0.9, 0.7, 0.0, 0.0]), p, d)
    np.testing.assert_allclose(hull.utilities, spaces.utilities, rtol=1e-9)


def test_equivalence_on_the_hull_and_not_among_points() -> None:
    points = [[1.0, 0.1], [0.1, 1.0], [0.4, 0.4]]
    best = nash_bargaining(Hull(points)).utilities
    np.testing.assert_allclose(best, [0.55, 0.55], rtol=1e-9)
    at_best = check_equivalence(points, best)
    assert at_best.is_proportionally_fair
    assert at_best.is_hull_nash
    # The best single model maximises the Nash product of the three, and is not proportionally fair: the set has a hole.
    alone = check_equivalence(points, [0.4, 0.4])
    assert alone.is_nash
    assert alone.best == 2
    assert not alone.is_hull_nash
    assert not alone.is_proportionally_fair
    assert alone.pf_gap == pytest.approx(0.5 * (1.0 / 0.4 + 0.1 / 0.4) - 1)
    assert alone.hull_nash_gap == pytest.approx(np.log(0.55 / 0.4))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_proportional_fairness_implies_nash(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, p = rng.uniform(0.05, 1.0, (6, 3)), rng.dirichlet(np.ones(3)) + 0.01
    for row in points:
        check = check_equivalence(points, row, p)
        assert check.hull_nash_gap <= check.pf_gap + 1e-9  # log x <= x - 1
        assert check.is_nash or not check.is_proportionally_fair
        assert check.is_hull_nash == check.is_proportionally_fair or check.pf_gap < 1e-2


def test_models_below_disagreement_do_not_count_alone() -> None:
    check = check_equivalence([[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]], [0.6, 0.6], disagreement=[0.1, 0.1])
    assert check.best == 2
    assert check.is_nash
    assert check.is_proportionally_fair


def test_weights_and_nadir() -> None:
    losses = [[0.1, 0.9], [0.7, 0.2]]
    np.testing.assert_allclose(nadir_point(losses, margin=0.5), [1.2, 1.4])
    weights = bargaining_weights([0.5, 0.5], [1.0, 2.5], [0.5, 0.5])
    np.testing.assert_allclose(weights, [0.8, 0.2])


def test_without_solvers_the_error_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clarabel", None)
    with pytest.raises(MissingExtraError, match=r"propfair\[solvers\]"):
        nash_bargaining(Hull([[1.0, 0.5]]))


def test_an_unproven_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bargaining, "MAX_STEPS", 0)
    with pytest.raises(BargainingError, match="gap"):
        nash_bargaining(Hull([[1.0, 0.1], [0.2, 0.9]]), [0.9, 0.1])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nash_bargaining(Hull(np.eye(2)), disagreement=[0.6, 0.6]), DataError, "nothing to bargain about"),
        (lambda: nash_bargaining(Hull([[1.0, 0.0], [2.0, 0.0]])), DataError, "client 1 can't have more"),
        (lambda: nash_bargaining(HalfSpaces([[1.0, -1.0]], [1.0])), DataError, "bounded"),
        (lambda: nash_bargaining(HalfSpaces([[1.0], [-1.0]], [1.0, -2.0])), DataError, "check A and b"),
        (lambda: nash_bargaining(Hull(np.eye(2)), [1.0]), DataError, "each of 2 clients"),
        (lambda: nash_bargaining(Hull(np.eye(2)), disagreement=[0.1]), DataError, "each of 2 clients"),
        (lambda: Hull([[np.nan, 1.0]]), DataError, "finite"),
        (lambda: HalfSpaces(np.eye(2), [1.0]), DataError, "each of 2"),
        (lambda: check_equivalence(np.eye(2), [1.0, 0.0]), DataError, "client 1 does not"),
        (lambda: bargaining_weights([1.0], [1.0], "uniform"), DataError, "below baselines"),
        (lambda: nadir_point([[1.0, 2.0]]), DataError, "one row and one column"),
        (lambda: nadir_point([[1.0]], margin=-1.0), ConfigError, "margin"),
    ],
)
def test_errors_say_what_to_do(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]
