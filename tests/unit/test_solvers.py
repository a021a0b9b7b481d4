import clarabel
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import minimize
from torch import Tensor

from propfair.algorithms.solvers import (
    at_length,
    dual_cone_weights,
    min_norm_weights,
    nash_weights,
    project_simplex,
    simplex_minimiser,
    unit_gram,
)

entries = st.floats(-1e6, 1e6)


def unit_vectors(K: int, P: int, seed: int = 0) -> Tensor:
    vectors = torch.randn(K, P, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1
    return torch.nn.functional.normalize(vectors)


def uniform(K: int) -> Tensor:
    return torch.full((K,), 1 / K, dtype=torch.float64)


@given(st.lists(entries, min_size=1, max_size=20))
def test_the_projection_is_on_the_simplex_and_nearest(values: list[float]) -> None:
    y = torch.tensor(values, dtype=torch.float64)
    x = project_simplex(y)
    assert (x >= 0).all()
    assert float(x.sum()) == pytest.approx(1, abs=1e-9)
    gap = y - x  # optimality: the same number on the support, no larger elsewhere
    level = gap[x > 0].max()
    assert torch.allclose(gap[x > 0], level, rtol=1e-9, atol=1e-9)
    assert (gap <= level + 1e-9 * level.abs() + 1e-9).all()


@pytest.mark.parametrize(("y", "x"), [([1.5, 0.4], [1, 0]), ([1.2, 0.15], [1, 0]), ([0.3, 0.3], [0.5, 0.5])])
def test_the_projection_where_other_codes_leave_the_simplex(y: list[float], x: list[float]) -> None:
    assert project_simplex(torch.tensor(y, dtype=torch.float64)).tolist() == pytest.approx(x)


def by_clarabel(gram: Tensor, centre: Tensor, radius: float) -> Tensor:
    K = len(centre)
    constraints = sparse.csc_matrix(np.concatenate([np.ones((1, K)), -np.eye(K), np.eye(K)]))
    low, high = (centre - radius).clamp(min=0).numpy(), (centre + radius).numpy()
    cones = [clarabel.ZeroConeT(1), clarabel.NonnegativeConeT(2 * K)]
    precise = clarabel.DefaultSettings()
    precise.verbose = False
    precise.tol_gap_abs = precise.tol_gap_rel = precise.tol_feas = 1e-13
    bounds = np.concatenate([[1.0], -low, high])
    problem = sparse.triu(sparse.csc_matrix(gram.numpy()), format="csc"), np.zeros(K), constraints, bounds, cones
    return torch.tensor(clarabel.DefaultSolver(*problem, precise).solve().x, dtype=torch.float64)


def check_optimality(gram: Tensor, x: Tensor, centre: Tensor, radius: float) -> None:
    low, high = (centre - radius).clamp(min=0), centre + radius
    assert float(x.sum()) == pytest.approx(1, abs=1e-12)
    assert (x >= low - 1e-12).all()
    assert (x <= high + 1e-12).all()
    slope = gram @ x
    free = (x > low + 1e-9) & (x < high - 1e-9)
    if free.any():
        level = slope[free].mean()
        assert torch.allclose(slope[free], level, rtol=0, atol=1e-8)
        assert (slope[x <= low + 1e-9] >= level - 1e-8).all()
        assert (slope[x >= high - 1e-9] <= level + 1e-8).all()


@pytest.mark.parametrize("radius", [0.001, 0.05, 0.5, 1.0])
@pytest.mark.parametrize(("K", "P"), [(2, 9), (3, 9), (10, 40), (30, 100)])
def test_common_descent_agrees_with_clarabel(K: int, P: int, radius: float) -> None:
    vectors = unit_vectors(K, P)
    gram = vectors @ vectors.T
    x = min_norm_weights(gram, uniform(K), radius)
    assert torch.allclose(x, by_clarabel(gram, uniform(K), radius), atol=1e-8)
    check_optimality(gram, x, uniform(K), radius)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_common_descent_meets_its_optimality_conditions_for_singular_matrices(data: st.DataObject) -> None:
    K = data.draw(st.integers(1, 8))
    rows = st.lists(st.sampled_from([-1.0, 0.0, 1.0, 2.0]), min_size=2, max_size=2).filter(any)
    vectors = torch.tensor(data.draw(st.lists(rows, min_size=K, max_size=K)), dtype=torch.float64)
    vectors = torch.nn.functional.normalize(vectors)
    parts = torch.tensor(data.draw(st.lists(st.floats(0.1, 1), min_size=K, max_size=K)), dtype=torch.float64)
    centre, radius = parts / parts.sum(), data.draw(st.floats(0, 1))
    gram = vectors @ vectors.T
    x = min_norm_weights(gram, centre, radius)
    check_optimality(gram, x, centre, radius)
    other = by_clarabel(gram, centre, radius)
    assert float(x @ gram @ x) <= float(other @ gram @ other) + 1e-8  # the weights may differ, the length may not


def test_common_descent_of_a_thousand_clients() -> None:
    vectors = unit_vectors(1000, 300)
    gram = vectors @ vectors.T
    check_optimality(gram, min_norm_weights(gram, uniform(1000), 0.5), uniform(1000), 0.5)


def test_equal_vectors_get_equal_weights() -> None:
    vectors = torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]], dtype=torch.float64)
    x = min_norm_weights(vectors @ vectors.T, uniform(4), 1.0)
    assert x.tolist() == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2], abs=1e-6)


def test_the_shortest_combination_of_no_vectors_is_the_centre() -> None:
    assert min_norm_weights(torch.zeros(3, 3), uniform(3), 0.5).tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
@pytest.mark.parametrize(("K", "P"), [(1, 5), (2, 5), (10, 100), (200, 800)])
def test_bargaining_weights_solve_their_equation(K: int, P: int, alpha: float) -> None:
    vectors = unit_vectors(K, P)
    gram = vectors @ vectors.T
    power = torch.rand(K, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    w = nash_weights(gram, power, alpha)
    assert (w > 0).all()
    assert torch.allclose(gram @ w, power * w ** (-1 / alpha), rtol=1e-6)


def test_bargaining_weights_are_those_of_a_general_solver() -> None:
    vectors = unit_vectors(4, 10)
    gram, power = (vectors @ vectors.T).numpy(), np.array([0.4, 0.3, 0.2, 0.1])
    found = minimize(
        lambda w: w @ gram @ w / 2 - power @ np.log(w), np.ones(4), bounds=[(1e-6, None)] * 4, options={"ftol": 1e-15}
    )
    assert nash_weights(torch.tensor(gram), torch.tensor(power)).tolist() == pytest.approx(found.x.tolist(), abs=1e-5)


def test_bargaining_weights_stay_finite_without_a_solution() -> None:
    opposite = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    assert nash_weights(opposite, uniform(2)).isfinite().all()


def test_zero_vectors_are_left_out() -> None:
    gram = torch.tensor([[4.0, 0, 2], [0, 0, 0], [2, 0, 1]], dtype=torch.float64)
    moving, cosines, norm = unit_gram(gram)
    assert moving.tolist() == [0, 2]
    assert cosines.tolist() == [[1, 1], [1, 1]]
    assert norm.tolist() == [2, 1]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 8), tilt=st.floats(0, 100))
def test_the_least_of_a_quadratic_on_the_simplex(seed: int, n: int, tilt: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    root = torch.randn(n, n, generator=rng, dtype=torch.float64)
    A, b = root @ root.T + 0.1 * torch.eye(n, dtype=torch.float64), tilt * torch.randn(n, generator=rng)
    x = simplex_minimiser(A, b)
    slope = A @ x + b
    assert float(x.sum()) == pytest.approx(1)
    assert (x >= 0).all()
    scale = 1e-6 * (1 + tilt)
    assert (slope >= slope[x > 1e-6].max() - scale).all()  # nobody outside the support would lower it


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), K=st.integers(1, 8), P=st.integers(1, 8))
def test_projections_on_the_cone_without_conflict(seed: int, K: int, P: int) -> None:
    vectors = unit_vectors(K, P, seed)
    weights = dual_cone_weights(vectors @ vectors.T)
    more, projected = weights - torch.eye(K), weights @ vectors
    assert (projected @ vectors.T > -1e-6).all()
    assert (more > -1e-9).all()
    error = ((projected - vectors) * projected).sum(1).abs()  # what is added is orthogonal to the projection
    assert (error < 1e-6 * (1 + more.sum(1))).all()  # an almost empty cone takes thousands


def test_a_length_is_given_only_to_a_direction() -> None:
    gram = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    assert at_length(uniform(2), gram, 1.0).tolist() == [0, 0]
    longer = at_length(torch.tensor([1.0, 0.5], dtype=torch.float64), gram, 9.0)
    assert float(longer @ gram @ longer) == pytest.approx(9)
