r"""Nash bargaining over a convex set of utilities (paper, eq. 3.1, Proposition 3.1, Appendix F).

The Nash bargaining solution maximises $\sum_i p_i \log(u_i - d_i)$ over the utilities that clients can reach together;
d is what each has if they do not agree. On a convex set it is the one point that is proportionally fair:
$\sum_i p_i (u_i - u_i^*) / (u_i^* - d_i) \le 0$ for all u in the set.

The set is either the convex hull of points (models, and all mixtures of them) or an intersection of half-spaces.
Newton's method with a quadratic-program solver finds the solution; the certificate above, evaluated over the whole
set, proves it: its maximum, `gap`, bounds how far the logarithm of the Nash product can be from the best one.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from propfair.errors import ConfigError, DataError, MissingExtraError, PropFairError
from propfair.fairness.arrays import FloatArray, Shares, matrix, normalized_shares, vector

TOLERANCE = 1e-6  # on the gap; it is about 1e-13 as a rule
MAX_STEPS = 100


class BargainingError(PropFairError, RuntimeError):
    """The solver's answer is not proven to be the Nash bargaining solution."""


class UtilitySet(ABC):
    """A bounded convex set of utility vectors."""

    num_clients: int

    @abstractmethod
    def maximize(self, direction: FloatArray) -> FloatArray:
        """The point of the set that is farthest along `direction`."""

    @abstractmethod
    def _reach(self, d: FloatArray) -> FloatArray:
        """What each client could have at most: the scale of its utilities."""

    @abstractmethod
    def _form(self) -> "_Form":
        """The set in the form that the solver takes."""


class Hull(UtilitySet):
    """The convex hull of points: the utilities of models [m, n] and of random mixtures of them."""

    def __init__(self, points: npt.ArrayLike) -> None:
        self.points = matrix("points", points)
        self.num_clients = self.points.shape[1]

    def maximize(self, direction: FloatArray) -> FloatArray:
        best: FloatArray = self.points[int((self.points @ direction).argmax())]
        return best

    def _reach(self, d: FloatArray) -> FloatArray:
        reach: FloatArray = self.points.max(axis=0)
        return reach

    def _form(self) -> "_Form":
        m = len(self.points)
        return _Form(self.points.T, -np.eye(m), np.zeros(m), np.ones((1, m)), np.ones(1))


class HalfSpaces(UtilitySet):
    """All u with A u <= b. Above the disagreement point the set must be bounded.

    >>> HalfSpaces([[1.0, 1.0]], [1.0]).num_clients
    2
    """

    def __init__(self, A: npt.ArrayLike, b: npt.ArrayLike) -> None:
        self.A = matrix("A", A)
        self.b = vector("b", b, len(self.A))
        self.num_clients = self.A.shape[1]

    def maximize(self, direction: FloatArray) -> FloatArray:
        return _linear_program(-direction, self._form())

    def _reach(self, d: FloatArray) -> FloatArray:
        axes = np.eye(self.num_clients)
        above = self._form()._replace(A=np.vstack([self.A, -axes]), b=np.concatenate([self.b, -d]))
        return np.array([axis @ _linear_program(-axis, above) for axis in axes])

    def _form(self) -> "_Form":
        n = self.num_clients
        return _Form(np.eye(n), self.A, self.b, np.zeros((0, n)), np.zeros(0))


class _Form(NamedTuple):
    """The set {C x : A x <= b, E x = e}."""

    C: FloatArray
    A: FloatArray
    b: FloatArray
    E: FloatArray
    e: FloatArray


@dataclass(frozen=True, eq=False)
class BargainingSolution:
    """The Nash bargaining solution and its proof.

    Attributes:
        utilities: [n], u*.
        mixture: [m], the weights on the points of a `Hull`; None for half-spaces.
        disagreement: [n], d.
        shares: [n], p.
        log_nash_product: sum p log(u* - d).
        gap: max over the set of sum p (u - u*) / (u* - d), at most `TOLERANCE`. No point of the set has a larger
            `log_nash_product` than this one plus `gap`.
    """

    utilities: FloatArray
    mixture: FloatArray | None
    disagreement: FloatArray
    shares: FloatArray
    log_nash_product: float
    gap: float


def nash_bargaining(
    utilities: UtilitySet,
    shares: Shares = "uniform",
    disagreement: npt.ArrayLike | None = None,
) -> BargainingSolution:
    """The Nash bargaining solution over a convex set.

    Args:
        utilities: `Hull(points)` or `HalfSpaces(A, b)`.
        shares: bargaining power p; Nash's own solution is "uniform".
        disagreement: [n], d; 0 by default. Some point of the set must give every client more.

    >>> solution = nash_bargaining(Hull([[1.0, 0.0], [0.0, 1.0]]), shares=[0.7, 0.3])
    >>> solution.utilities.round(6).tolist()
    [0.7, 0.3]
    """
    n = utilities.num_clients
    p = normalized_shares(shares, n)
    d = np.zeros(n) if disagreement is None else vector("disagreement", disagreement, n)
    form = utilities._form()
    x = _solve(form, p, d, utilities._reach(d) - d)
    mixture = None
    if isinstance(utilities, Hull):
        mixture = x = np.maximum(x, 0) / np.maximum(x, 0).sum()
    point = form.C @ x
    gains = point - d
    best = utilities.maximize(p / gains)
    gap = max(0.0, float((best - point) @ (p / gains)))
    if gap > TOLERANCE:
        raise BargainingError(
            f"the solver stopped with a gap of {gap:.1e}, more than {TOLERANCE:g}. Rescale the points."
        )
    return BargainingSolution(point, mixture, d, p, float(p @ np.log(gains)), gap)


@dataclass(frozen=True)
class Equivalence:
    """Both sides of Proposition 3.1 for one candidate among finitely many models.

    Attributes:
        nash_gap: how much larger the logarithm of the Nash product of the best model is.
        hull_nash_gap: the same for the best mixture of models.
        pf_gap: the largest sum p (u - u*) / (u* - d) over models, and so over mixtures.
        best: the row of the model with the largest Nash product.
    """

    nash_gap: float
    hull_nash_gap: float
    pf_gap: float
    best: int

    @property
    def is_nash(self) -> bool:
        """The candidate has the largest Nash product of all models (not of their mixtures)."""
        return self.nash_gap <= TOLERANCE

    @property
    def is_hull_nash(self) -> bool:
        """The candidate has the largest Nash product of all mixtures of models: a convex set."""
        return self.hull_nash_gap <= TOLERANCE

    @property
    def is_proportionally_fair(self) -> bool:
        """No model improves the average relative gain. Same as `is_hull_nash`; implies `is_nash`, not conversely."""
        return self.pf_gap <= TOLERANCE


def check_equivalence(
    points: npt.ArrayLike,
    candidate: npt.ArrayLike,
    shares: Shares = "uniform",
    disagreement: npt.ArrayLike | None = None,
) -> Equivalence:
    """Is `candidate` the Nash bargaining solution, is it proportionally fair, and do the two agree?

    On a convex set they are the same; among finitely many models proportional fairness is the stronger one.
    """
    hull = Hull(points)
    solution = nash_bargaining(hull, shares, disagreement)
    gains = vector("candidate", candidate, hull.num_clients) - solution.disagreement
    if not (gains > 0).all():
        client = int(gains.argmin())
        raise DataError(
            f"candidate must give every client more than its disagreement utility; client {client} does not."
        )
    table = hull.points - solution.disagreement
    rational = (table > 0).all(axis=1)
    value = float(solution.shares @ np.log(gains))
    products = np.where(rational, np.log(np.where(table > 0, table, 1.0)) @ solution.shares, -math.inf)
    return Equivalence(
        nash_gap=max(0.0, float(products.max()) - value),
        hull_nash_gap=max(0.0, solution.log_nash_product - value),
        pf_gap=max(0.0, float((table / gains - 1).dot(solution.shares).max())),
        best=int(products.argmax()),
    )


def bargaining_weights(losses: npt.ArrayLike, baselines: npt.ArrayLike, shares: Shares) -> FloatArray:
    """The weights lambda ~ p / (M_i - f_i), summing to 1, of PropFair with a baseline M_i for each client.

    M_i is the client's loss if it does not take part: of a local model, of the initial model, or the nadir point.
    """
    f = vector("losses", losses)
    M = vector("baselines", baselines, f.size)
    if (f >= M).any():
        client = int(np.flatnonzero(f >= M)[0])
        raise DataError(f"losses must be below baselines; got {f[client]:g} >= {M[client]:g} for client {client}.")
    weights = normalized_shares(shares, f.size) / (M - f)
    normalized: FloatArray = weights / weights.sum()
    return normalized


def nadir_point(losses: npt.ArrayLike, margin: float = 0.0) -> FloatArray:
    """The nadir point q_i = max_j f_i(x_j*) plus a margin: baselines for PropFair (paper, Appendix F).

    Args:
        losses: [n, n], row j holds every client's loss under the best model for client j.
        margin: added, because at the nadir itself some utility is 0.

    >>> nadir_point([[0.1, 0.9], [0.7, 0.2]]).tolist()
    [0.7, 0.9]
    """
    table = matrix("losses", losses)
    if table.shape[0] != table.shape[1]:
        raise DataError(f"losses must have one row and one column per client; got shape {table.shape}.")
    if margin < 0:
        raise ConfigError(f"margin must be >= 0; got margin={margin}.")
    worst: FloatArray = table.max(axis=0) + margin
    return worst


def _solve(form: _Form, p: FloatArray, d: FloatArray, room: FloatArray) -> FloatArray:
    """X with u = C x, by Newton's method: each step maximises the quadratic model of sum p log(u - d) over the set.

    With r the gains relative to the current ones, log r ~ (r - 1) - (r - 1)^2 / 2, so the step is the least-squares
    problem min sum p (r - 2)^2. Damped steps keep all gains positive and always improve; full ones square the error.
    """
    x = _start(form, d, room)
    for _ in range(MAX_STEPS):
        gains = form.C @ x - d
        better = _newton_target(form, p, d, gains)
        change = (form.C @ better - d) / gains - 1
        largest = float(np.abs(change).max())
        x = x + (better - x) / (1.0 if largest < 0.25 else 1 + largest)
        if largest < 1e-9:
            break
    return x


def _start(form: _Form, d: FloatArray, room: FloatArray) -> FloatArray:
    """The point at which the client that gains least, as a share of its room, gains most."""
    if (room <= 0).any():
        client = int(room.argmin())
        raise DataError(
            f"client {client} can't have more than its disagreement utility {d[client]:g}: there is nothing to bargain "
            "about. Lower it, or leave the client out."
        )
    n, k = form.C.shape
    shared = _Form(
        C=np.zeros((n, k + 1)),
        A=np.block([[form.A, np.zeros((len(form.A), 1))], [-form.C / room[:, None], np.ones((n, 1))]]),
        b=np.concatenate([form.b, -d / room]),
        E=np.hstack([form.E, np.zeros((len(form.E), 1))]),
        e=form.e,
    )
    solution = _linear_program(-np.eye(k + 1)[k], shared)
    if solution[k] <= 1e-12:
        raise DataError(
            "no point of the set gives every client more than its disagreement utility: there is nothing to bargain "
            "about. Lower the disagreement, or add points."
        )
    start: FloatArray = solution[:k]
    return start


def _newton_target(form: _Form, p: FloatArray, d: FloatArray, gains: FloatArray) -> FloatArray:
    clarabel, sparse = _solvers()
    n, k = form.C.shape
    # Variables (x, r): E x = e, r = (C x - d) / gains, A x <= b; minimise sum p r^2 / 2 - 2 p r.
    equal = np.block([[form.E, np.zeros((len(form.E), n))], [form.C / gains[:, None], -np.eye(n)]])
    rows = np.vstack([equal, np.hstack([form.A, np.zeros((len(form.A), n))])])
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-13
    solver = clarabel.DefaultSolver(
        sparse.diags(np.concatenate([np.zeros(k), p]), format="csc"),
        np.concatenate([np.zeros(k), -2 * p]),
        sparse.csc_matrix(rows),
        np.concatenate([form.e, d / gains, form.b]),
        [clarabel.ZeroConeT(len(equal)), clarabel.NonnegativeConeT(len(form.A))],
        settings,
    )
    return np.asarray(solver.solve().x[:k], dtype=np.float64)


def _linear_program(cost: FloatArray, form: _Form) -> FloatArray:
    """The x of the form that has the least cost'x."""
    from scipy.optimize import linprog  # here: it takes longer to import than the theory

    result = linprog(cost, A_ub=form.A, b_ub=form.b, A_eq=form.E, b_eq=form.e, bounds=(None, None), method="highs")
    if result.status == 2:
        raise DataError(
            "no point of the set A u <= b gives every client its disagreement utility. Lower it, or check A and b."
        )
    if not result.success:
        raise DataError(f"the set of utilities must be bounded above the disagreement point: {result.message}")
    return np.asarray(result.x, dtype=np.float64)


def _solvers() -> tuple[Any, Any]:
    from scipy import sparse

    try:
        import clarabel
    except ImportError as error:
        raise MissingExtraError("Nash bargaining", "solvers") from error
    return clarabel, sparse
