"""Small convex problems of server rules, in float64: on the simplex, common descent, Nash bargaining of updates.

They find K numbers from a K x K Gram matrix, which is often singular: clients may send equal or opposite updates. The
dense QP packages want it positive definite, the others are one more dependency for a few lines. The tests hold these
against Clarabel, SciPy and the optimality conditions.
"""

import math

import torch
from torch import Tensor

_MAX_ITERATIONS = 100
_RIDGE = 1e-10  # what is negligible beside vectors of length 1
_ROWS = 64  # problems that are solved together: memory grows with their number times K^2
_STATIONARY = 1e-4  # a convex combination of unit vectors this short leaves no direction in which all improve
_STILL = 1e-30  # updates shorter than this count as zero: their inverse does not fit into float32


def unit_gram(gram: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which of K vectors are not zero [M], their cosines [M, M] and their lengths [M], from the Gram matrix [K, K].

    >>> unit_gram(torch.tensor([[4.0, 0.0, -2.0], [0.0, 0.0, 0.0], [-2.0, 0.0, 1.0]]))[1]
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    norm = gram.diagonal().sqrt()
    moving = (norm > _STILL).nonzero().flatten()
    norm = norm[moving]
    return moving, gram[moving][:, moving] / norm.outer(norm), norm


def project_simplex(y: Tensor) -> Tensor:
    """The nearest point to y [n] with entries >= 0 and sum 1, by sorting (Held, Wolfe, Crowder, 1974).

    >>> project_simplex(torch.tensor([1.5, 0.4]))
    tensor([1., 0.])
    """
    y = y - y.max()  # moves nothing, and keeps the digits of large entries
    descending = y.sort(descending=True).values
    counts = torch.arange(1, len(y) + 1, dtype=y.dtype)
    shifts = (1 - descending.cumsum(0)) / counts
    last = int((descending + shifts > 0).sum()) - 1
    return (y + shifts[last]).clamp(min=0)


def stationary(cosines: Tensor) -> bool:
    """Whether some convex combination of the unit vectors vanishes: no direction makes progress on all of them.

    >>> stationary(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
    True
    """
    shortest = min_norm_weights(cosines, torch.full((len(cosines),), 1 / len(cosines), dtype=torch.float64), 1.0)
    return bool(shortest @ cosines.double() @ shortest < _STATIONARY**2)


def simplex_minimiser(quadratic: Tensor, linear: Tensor) -> Tensor:
    r"""The x [n] with entries >= 0 and sum 1 that has the least $\tfrac12 x^\top A x + b^\top x$.

    Args:
        quadratic: A [n, n], positive semidefinite and not 0.
        linear: b [n].

    >>> simplex_minimiser(torch.eye(2, dtype=torch.float64), torch.tensor([0.0, 0.5]))
    tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    scale = quadratic.diagonal().max()
    centre = torch.full_like(linear, 1 / len(linear), dtype=torch.float64)
    return _interior_point(quadratic.double() / scale, linear.double() / scale, centre, 1.0)


def min_norm_weights(gram: Tensor, centre: Tensor, radius: float) -> Tensor:
    r"""The convex combination of vectors that is shortest, with weights near given ones.

    $$\min_x x^\top G x \quad\text{with } x \ge 0,\ \textstyle\sum_k x_k = 1,\ |x_k - c_k| \le r$$

    A primal-dual interior-point method (Mehrotra's predictor-corrector), for which a semidefinite G is enough. Of many
    solutions it takes the one nearest to c, by a ridge of 1e-10, so that clients with equal updates get equal weights.

    Args:
        gram: G [K, K], positive semidefinite.
        centre: c [K], positive, with sum 1.
        radius: r >= 0.

    >>> min_norm_weights(torch.eye(3, dtype=torch.float64) * torch.tensor([1.0, 1, 2]), torch.full((3,), 1 / 3.0), 1.0)
    tensor([0.4000, 0.4000, 0.2000], dtype=torch.float64)
    """
    gram, centre = gram.double(), centre.double()
    scale = gram.diagonal().max()
    if len(centre) == 1 or radius < 1e-12 or not scale > 0:
        return centre
    ridge = _RIDGE * torch.eye(len(centre), dtype=centre.dtype)
    return _interior_point(gram / scale + ridge, -_RIDGE * centre, centre, radius)


def dual_cone_weights(cosines: Tensor) -> Tensor:
    r"""Each of K unit vectors, projected on the cone of directions that conflict with none of them.

    $$\min_{v \ge e_k} v^\top G v$$ for each k: row k of the result [K, K] is v, the projection as a combination of all
    vectors (Quinton and Rey, 2024, proposition 1). Where many weights give the same projection, a ridge of 1e-10
    chooses.

    Args:
        cosines: G [K, K], positive semidefinite with a diagonal of ones.

    >>> dual_cone_weights(torch.tensor([[1.0, -0.5], [-0.5, 1.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]], dtype=torch.float64)
    """
    one = torch.eye(len(cosines), dtype=torch.float64)
    gram = cosines.double() + _RIDGE * one
    return one + torch.cat([nonnegative_minimisers(gram, rows) for rows in torch.split(gram, _ROWS)])


def nonnegative_minimisers(quadratic: Tensor, linear: Tensor) -> Tensor:
    r"""For each row b of `linear` the x >= 0 that has the least $\tfrac12 x^\top A x + b^\top x$; [R, K].

    A primal-dual interior-point method (Mehrotra's predictor-corrector) on all rows at once.

    Args:
        quadratic: A [K, K], positive definite, with entries of about 1.
        linear: [R, K].

    >>> nonnegative_minimisers(torch.eye(2, dtype=torch.float64), torch.tensor([[-3.0, 2.0]]))
    tensor([[3., 0.]], dtype=torch.float64)
    """
    linear = linear.double()
    x, z = torch.ones_like(linear), torch.ones_like(linear)  # z: the multipliers of x >= 0
    for _ in range(_MAX_ITERATIONS):
        residual = x @ quadratic + linear - z
        gap = (x * z).mean(1, keepdim=True)
        if gap.max() < 1e-20 and residual.abs().max() < 1e-13:
            break
        factors = torch.linalg.lu_factor(quadratic + torch.diag_embed(z / x))
        dx = torch.linalg.lu_solve(*factors, (-residual - z).unsqueeze(2)).squeeze(2)
        dz = -z - z / x * dx
        reach = _reach((x, dx), (z, dz))
        after = ((x + reach * dx) * (z + reach * dz)).mean(1, keepdim=True)
        target = gap * (after / gap) ** 3 - dx * dz
        dx = torch.linalg.lu_solve(*factors, (-residual - z + target / x).unsqueeze(2)).squeeze(2)
        dz = (target - z * dx) / x - z
        step = 0.99 * _reach((x, dx), (z, dz))
        x, z = x + step * dx, z + step * dz
    return x


def at_length(weights: Tensor, gram: Tensor, length2: Tensor | float) -> Tensor:
    """The weights [K], scaled so that the weighted sum of updates has the squared length `length2`.

    All 0 where the updates cancel but for one part in ten thousand: what is left then is rounding, not a direction.

    >>> at_length(torch.tensor([1.0, 2.0]), torch.eye(2), 20.0)
    tensor([2., 4.])
    """
    found2 = weights @ gram @ weights
    longest2 = (weights.abs() @ gram.diagonal().sqrt()).square()  # if nothing cancelled
    if not found2 > _STATIONARY**2 * longest2:
        return torch.zeros_like(weights)
    return weights * torch.as_tensor(length2 / found2).clamp(min=0).sqrt()


def nash_weights(gram: Tensor, power: Tensor, alpha: float = 1.0) -> Tensor:
    r"""Weights w > 0 of vectors such that their sum d is an alpha-fair bargain about the progress <d_k, d> of each.

    $$G w = q\, w^{-1/\alpha}$$, the optimality condition of $\min_w \tfrac12 w^\top G w - \sum_k q_k
    \phi_{1/\alpha}(w_k)$, which is convex; damped Newton steps. alpha = 1 is the Nash bargaining solution, and then
    $\|d\|^2 = \sum_k q_k$. If a convex combination of the vectors vanishes there is no solution: test it before, with
    `min_norm_weights`. A tiny ridge keeps w finite even then.

    Args:
        gram: G [K, K], positive semidefinite with a diagonal of ones (vectors of unit length).
        power: q [K] > 0.
        alpha: > 0.

    >>> nash_weights(torch.eye(2, dtype=torch.float64), torch.tensor([0.8, 0.2]))
    tensor([0.8944, 0.4472], dtype=torch.float64)
    """
    gram = gram.double() + 1e-14 * torch.eye(len(power), dtype=torch.float64)
    largest, spread = float(power.max()), power.double() / power.max()
    stages = max(1, math.ceil(-math.log10(spread.min()) / 2))  # very unequal powers are approached from equal ones
    w: Tensor = largest ** (alpha / (1 + alpha)) * spread ** (alpha / (1 + alpha) / stages)  # exact if orthogonal
    for stage in range(1, stages + 1):
        w = _bargain(gram, largest * spread ** (stage / stages), alpha, w)
    return w


def _bargain(gram: Tensor, q: Tensor, alpha: float, w: Tensor) -> Tensor:
    """Solve G w = q w^(-1/alpha) by damped Newton steps from w."""

    def value(w: Tensor) -> Tensor:
        bargain = w.log() if alpha == 1 else w ** (1 - 1 / alpha) / (1 - 1 / alpha)
        return w @ gram @ w / 2 - q @ bargain

    for _ in range(_MAX_ITERATIONS):
        pull = q * w ** (-1 / alpha)
        gradient = gram @ w - pull
        if bool((gradient.abs() <= 1e-12 * pull).all()):
            break
        dw = -torch.linalg.solve(gram + torch.diag(pull / (alpha * w)), gradient)
        decrement = -(gradient @ dw)
        step = 0.99 * _reach((w, dw)) if bool((w + dw <= 0).any()) else torch.ones(())
        if decrement > 1e-8 * q.sum():  # closer than this full steps converge, and values are equal to the last digits
            here = value(w)
            while step > 1e-6 and value(w + step * dw) > here - 0.1 * step * decrement:
                step = step / 2
        w = w + step * dw
    return w


def _interior_point(quadratic: Tensor, linear: Tensor, x: Tensor, radius: float) -> Tensor:
    """The least x'Ax/2 + b'x with x >= 0, sum 1 and within `radius` of the given x: Mehrotra's predictor-corrector."""
    below, above = torch.minimum(x, torch.full_like(x, radius)), torch.full_like(x, radius)  # distances to the bounds
    z, w = torch.ones_like(x), torch.ones_like(x)  # multipliers of the lower and the upper bounds
    level = torch.zeros((), dtype=x.dtype)  # multiplier of the sum
    for _ in range(_MAX_ITERATIONS):
        residual = quadratic @ x + linear - level - z + w
        gap = (below @ z + above @ w) / (2 * len(x))
        if gap < 1e-20 and residual.abs().max() < 1e-13:
            break
        factors = torch.linalg.lu_factor(quadratic + torch.diag(z / below + w / above))
        bounds = (below, above, z, w)
        dx, _, dz, dw = _newton(factors, residual, bounds, torch.zeros_like(x), torch.zeros_like(x))
        reach = _reach((below, dx), (above, -dx), (z, dz), (w, dw))
        after = ((below + reach * dx) @ (z + reach * dz) + (above - reach * dx) @ (w + reach * dw)) / (2 * len(x))
        target = gap * (after / gap) ** 3
        dx, d_level, dz, dw = _newton(factors, residual, bounds, target - dx * dz, target + dx * dw)
        step = 0.99 * _reach((below, dx), (above, -dx), (z, dz), (w, dw))
        x, below, above, level = x + step * dx, below + step * dx, above - step * dx, level + step * d_level
        z, w = z + step * dz, w + step * dw
    x = x.clamp(min=0)
    return x / x.sum()


def _newton(
    factors: tuple[Tensor, Tensor], residual: Tensor, bounds: tuple[Tensor, ...], low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The step of x, the level and both multipliers towards below * z = low and above * w = high, at the same sum."""
    below, above, z, w = bounds
    right = -residual + (low / below - z) - (high / above - w)
    free, by_level = torch.linalg.lu_solve(*factors, torch.stack([right, torch.ones_like(right)], dim=1)).T
    d_level = -free.sum() / by_level.sum()
    dx = free + by_level * d_level
    return dx, d_level, low / below - z - z / below * dx, high / above - w + w / above * dx


def _reach(*pairs: tuple[Tensor, Tensor]) -> Tensor:
    """The longest step in [0, 1] that keeps every `value + step * direction` >= 0."""
    limits = [torch.where(direction < 0, -value / direction, 1.0).min() for value, direction in pairs]
    return torch.stack([*limits, torch.ones_like(limits[0])]).min()
