r"""Generalised means of client losses, their conjugates and dual weights (paper, sections 2.4 and 3.2, Appendix E).

Minimising $\sum_i p_i \varphi(f_i)$ is minimising Kolmogorov's mean (eq. 2.9)

$$A_\varphi(f) = \varphi^{-1}(\sum_i p_i \varphi(f_i)) = \max_{\lambda \ge 0} \lambda^\top f - A^*_\varphi(\lambda),$$

so every such algorithm is FedAvg with weights $\lambda$ that depend on the losses. For all of them

$$\lambda_i = \partial A_\varphi / \partial f_i = p_i \varphi'(f_i) / \varphi'(A_\varphi(f)).$$

A member of the family says what $\varphi$, its inverse and its slope are; the rest follows here.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from propfair.errors import ConfigError, DataError
from propfair.fairness.arrays import FloatArray, Shares, normalized_shares, vector
from propfair.fairness.power import log, log_mean_exp, log_power_mean, power_mean, utility

TOLERANCE = 1e-9


class Constraint(NamedTuple):
    """One condition on the dual weights: it holds when `excess` <= 0 and is tight when `excess` is 0."""

    text: str
    excess: float


@dataclass(frozen=True)
class GeneralizedMean(ABC):
    """Kolmogorov's mean of an increasing function phi."""

    @abstractmethod
    def phi(self, t: FloatArray) -> FloatArray:
        """What is averaged instead of the loss."""

    @abstractmethod
    def inverse(self, y: float) -> float:
        """The loss t with phi(t) = y."""

    @abstractmethod
    def log_slope(self, t: FloatArray) -> FloatArray:
        """The logarithm of phi'(t), so that no loss is too large."""

    def check(self, f: FloatArray) -> None:  # noqa: B027
        """Raise if a loss is outside the domain of phi."""

    def objective(self, losses: npt.ArrayLike, shares: Shares) -> float:
        """What the algorithm minimises, sum p phi(f)."""
        f, p = self._arrays(losses, shares)
        return float(p @ self.phi(f))

    def mean(self, losses: npt.ArrayLike, shares: Shares) -> float:
        """A_phi(f), in the unit of the losses."""
        f, p = self._arrays(losses, shares)
        return self._mean(f, p)

    def dual_weights(self, losses: npt.ArrayLike, shares: Shares, *, normalize: bool = False) -> FloatArray:
        """The gradient of the mean, lambda = p phi'(f) / phi'(A). `normalize` scales it to sum 1, to compare rules.

        >>> ProportionalMean(M=2.0).dual_weights([0.3, 0.9, 1.4, 0.6], [0.4, 0.3, 0.2, 0.1]).round(4).tolist()
        [0.2795, 0.324, 0.396, 0.0849]
        """
        f, p = self._arrays(losses, shares)
        weights = self._dual(f, p)
        return weights / weights.sum() if normalize else weights

    def _arrays(self, losses: npt.ArrayLike, shares: Shares) -> tuple[FloatArray, FloatArray]:
        f = vector("losses", losses)
        self.check(f)
        return f, normalized_shares(shares, f.size)

    def _mean(self, f: FloatArray, p: FloatArray) -> float:
        return self.inverse(float(p @ self.phi(f)))

    def _dual(self, f: FloatArray, p: FloatArray) -> FloatArray:
        at_mean = self.log_slope(np.array([self._mean(f, p)]))
        weights: FloatArray = p * np.exp(self.log_slope(f) - at_mean)
        return weights


@dataclass(frozen=True)
class DualMean(GeneralizedMean):
    """A convex generalised mean whose conjugate is known in closed form."""

    @abstractmethod
    def constraints(self, weights: npt.ArrayLike, shares: Shares) -> tuple[Constraint, ...]:
        """The conditions on lambda of the paper's Table 1: the set on which the conjugate is finite."""

    @abstractmethod
    def _conjugate(self, weights: FloatArray, p: FloatArray) -> float:
        """A* where it is finite."""

    def is_feasible(self, weights: npt.ArrayLike, shares: Shares, tolerance: float = TOLERANCE) -> bool:
        """Whether the conjugate is finite at `weights`."""
        return all(constraint.excess <= tolerance for constraint in self.constraints(weights, shares))

    def conjugate(self, weights: npt.ArrayLike, shares: Shares, tolerance: float = TOLERANCE) -> float:
        """A*(lambda) = sup_f lambda'f - A(f); inf outside the constraints."""
        if not self.is_feasible(weights, shares, tolerance):
            return math.inf
        w = vector("weights", weights)
        return self._conjugate(w, normalized_shares(shares, w.size))

    def fenchel_gap(self, losses: npt.ArrayLike, weights: npt.ArrayLike, shares: Shares) -> float:
        """A(f) + A*(lambda) - lambda'f: never negative (Fenchel-Young), 0 exactly at the dual weights."""
        f, p = self._arrays(losses, shares)
        w = vector("weights", weights, f.size)
        return self._mean(f, p) + self.conjugate(w, p) - float(w @ f)


@dataclass(frozen=True)
class ArithmeticMean(DualMean):
    """FedAvg: phi(t) = t. The weights are the shares."""

    def phi(self, t: FloatArray) -> FloatArray:
        return t

    def inverse(self, y: float) -> float:
        return y

    def log_slope(self, t: FloatArray) -> FloatArray:
        return np.zeros_like(t)

    def constraints(self, weights: npt.ArrayLike, shares: Shares) -> tuple[Constraint, ...]:
        w, p = _weights(weights, shares)
        return (Constraint("lambda = p", float(np.abs(w - p).max())),)

    def _conjugate(self, weights: FloatArray, p: FloatArray) -> float:
        return 0.0


@dataclass(frozen=True)
class PowerMean(DualMean):
    """q-FFL: phi(t) = t^(q+1) / (q+1) for losses >= 0. q = 0 is FedAvg, q -> inf is AFL.

    lambda_i = p_i (f_i / A)^q. Where all losses are 0 the mean has a kink, and the shares are one of its subgradients.
    """

    q: float

    def __post_init__(self) -> None:
        if not 0 <= self.q < math.inf:
            raise ConfigError(
                f"q must be >= 0 and finite; got q={self.q}. Use q=0 for plain averaging, Maximum() for AFL."
            )

    def check(self, f: FloatArray) -> None:
        _require(f >= 0, f, "losses must be >= 0 for q-FFL")

    def phi(self, t: FloatArray) -> FloatArray:
        powers: FloatArray = t ** (self.q + 1) / (self.q + 1)
        return powers

    def inverse(self, y: float) -> float:
        return float(((self.q + 1) * y) ** (1 / (self.q + 1)))

    def log_slope(self, t: FloatArray) -> FloatArray:
        return self.q * log(t) if self.q > 0 else np.zeros_like(t)

    def constraints(self, weights: npt.ArrayLike, shares: Shares) -> tuple[Constraint, ...]:
        w, p = _weights(weights, shares)
        order = (self.q + 1) / self.q if self.q > 0 else math.inf
        bound = f"(sum p^(-1/q) lambda^((q+1)/q))^(q/(q+1)) <= 1, q={self.q:g}"
        return (_nonnegative(w), Constraint(bound, power_mean(np.maximum(w, 0) / p, p, order) - 1))

    def _conjugate(self, weights: FloatArray, p: FloatArray) -> float:
        return 0.0

    def _mean(self, f: FloatArray, p: FloatArray) -> float:
        return power_mean(f, p, self.q + 1)

    def _dual(self, f: FloatArray, p: FloatArray) -> FloatArray:
        return super()._dual(f, p) if f.any() else p


@dataclass(frozen=True)
class Maximum(DualMean):
    """AFL: the largest loss, the limit of q-FFL and TERM. It has no phi of its own.

    Any weights on the worst clients are dual weights; here they share by p, as in the limits.
    """

    def phi(self, t: FloatArray) -> FloatArray:
        raise ConfigError(
            "the maximum is no mean of a function phi. Use PowerMean or TiltedMean with a large parameter."
        )

    def inverse(self, y: float) -> float:
        raise ConfigError(
            "the maximum is no mean of a function phi. Use PowerMean or TiltedMean with a large parameter."
        )

    def log_slope(self, t: FloatArray) -> FloatArray:
        raise ConfigError("the maximum has no slope of its own. Use PowerMean or TiltedMean with a large parameter.")

    def objective(self, losses: npt.ArrayLike, shares: Shares) -> float:
        """The largest loss."""
        return self.mean(losses, shares)

    def constraints(self, weights: npt.ArrayLike, shares: Shares) -> tuple[Constraint, ...]:
        w, _ = _weights(weights, shares)
        return (_nonnegative(w), Constraint("sum lambda <= 1", float(w.sum()) - 1))

    def check(self, f: FloatArray) -> None:
        _require(f >= 0, f, "losses must be >= 0 for AFL's dual")

    def _conjugate(self, weights: FloatArray, p: FloatArray) -> float:
        return 0.0

    def _mean(self, f: FloatArray, p: FloatArray) -> float:
        return float(f.max())

    def _dual(self, f: FloatArray, p: FloatArray) -> FloatArray:
        worst = np.where(f == f.max(), p, 0.0)
        weights: FloatArray = worst / worst.sum()
        return weights


@dataclass(frozen=True)
class TiltedMean(DualMean):
    """TERM: phi(t) = exp(alpha t). alpha -> 0 is FedAvg, alpha -> inf AFL; alpha < 0, not in the paper, is concave."""

    alpha: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha != 0):
            raise ConfigError(
                f"alpha must be finite and not 0; got alpha={self.alpha}. Use ArithmeticMean() for alpha=0."
            )

    def phi(self, t: FloatArray) -> FloatArray:
        values: FloatArray = np.sign(self.alpha) * np.exp(self.alpha * t)
        return values

    def inverse(self, y: float) -> float:
        return math.log(math.copysign(1.0, self.alpha) * y) / self.alpha

    def log_slope(self, t: FloatArray) -> FloatArray:
        return self.alpha * t

    def constraints(self, weights: npt.ArrayLike, shares: Shares) -> tuple[Constraint, ...]:
        self._require_convex()
        w, _ = _weights(weights, shares)
        return (_nonnegative(w), Constraint("sum lambda = 1", abs(float(w.sum()) - 1)))

    def _conjugate(self, weights: FloatArray, p: FloatArray) -> float:
        some = weights > 0
        return float(weights[some] @ np.log(weights[some] / p[some])) / self.alpha

    def _mean(self, f: FloatArray, p: FloatArray) -> float:
        return log_mean_exp(self.alpha * f, p) / self.alpha

    def _require_convex(self) -> None:
        if self.alpha < 0:
            raise ConfigError(f"the dual view needs alpha > 0: for alpha={self.alpha} the mean is concave.")


@dataclass(frozen=True)
class AlphaFairMean(DualMean):
    """alpha-fairness of utilities u = M - f (paper, eq. 2.8): phi(t) = -u^(1-alpha) / (1-alpha), -log u for alpha = 1.

    alpha = 0 is FedAvg, 1 PropFair, 2 the harmonic mean of utilities, inf the worst client.
    lambda_i = p_i (U / u_i)^alpha with U = M - A, the power mean of order 1 - alpha of the utilities. The conjugate is
    M (sum lambda - 1) where the power mean of order (alpha-1)/alpha of lambda/p, under p, is at least 1. The paper has
    it for alpha = 1; for the others it follows from the reverse Hoelder inequality.
    """

    alpha: float
    M: float

    def __post_init__(self) -> None:
        if not 0 <= self.alpha < math.inf:
            raise ConfigError(f"alpha must be >= 0 and finite; got alpha={self.alpha}. Use alpha=1 for PropFair.")
        if not 0 < self.M < math.inf:
            raise ConfigError(f"M must be a positive number above all losses; got M={self.M}.")

    def check(self, f: FloatArray) -> None:
        _require(f < self.M, f, f"losses must be < M={self.M:g}, so that every utility M - loss is positive")

    def phi(self, t: FloatArray) -> FloatArray:
        return -utility(self.M - t, self.alpha)

    def inverse(self, y: float) -> float:
        if self.alpha == 1:
            return self.M - math.exp(-y)
        return self.M - float((-y * (1 - self.alpha)) ** (1 / (1 - self.alpha)))

    def log_slope(self, t: FloatArray) -> FloatArray:
        return -self.alpha * np.log(self.M - t)

    def constraints(self, weights: npt.ArrayLike, shares: Shares) -> tuple[Constraint, ...]:
        w, p = _weights(weights, shares)
        order = (self.alpha - 1) / self.alpha if self.alpha > 0 else -math.inf
        bound = "prod (lambda/p)^p >= 1" if self.alpha == 1 else f"power mean of order {order:g} of lambda/p >= 1"
        return (_nonnegative(w), Constraint(bound, 1 - power_mean(np.maximum(w, 0) / p, p, order)))

    def _conjugate(self, weights: FloatArray, p: FloatArray) -> float:
        return self.M * (float(weights.sum()) - 1)

    def _mean(self, f: FloatArray, p: FloatArray) -> float:
        logs = np.log1p(-f / self.M)  # of u / M; keeps its digits when M is huge
        return -self.M * math.expm1(log_power_mean(logs, p, 1 - self.alpha))


@dataclass(frozen=True)
class ProportionalMean(AlphaFairMean):
    """PropFair: phi(t) = -log(M - t). The mean is M minus the weighted Nash welfare of the utilities M - f.

    M -> inf is FedAvg. lambda_i = p_i (M - A) / (M - f_i), with prod (lambda/p)^p = 1 (paper, Proposition 3.2).
    """

    alpha: float = field(default=1.0, init=False)


@dataclass(frozen=True)
class HuberizedMean(GeneralizedMean):
    """alpha-fairness that goes on as a straight line below the utility epsilon (paper, eq. 3.8 for alpha = 1).

    Any loss is allowed. The dual weights have the same closed form; the conjugate has none.
    """

    M: float
    epsilon: float = 0.2
    alpha: float = 1.0

    def __post_init__(self) -> None:
        AlphaFairMean(self.alpha, self.M)
        if not 0 < self.epsilon <= self.M:
            raise ConfigError(f"epsilon must satisfy 0 < epsilon <= M; got epsilon={self.epsilon}, M={self.M}.")

    def phi(self, t: FloatArray) -> FloatArray:
        u = self.M - t
        past = np.maximum(self.epsilon - u, 0)
        values: FloatArray = past / self.epsilon**self.alpha - utility(np.maximum(u, self.epsilon), self.alpha)
        return values

    def inverse(self, y: float) -> float:
        at_threshold = -float(utility(np.array(self.epsilon), self.alpha))
        if y <= at_threshold:
            return AlphaFairMean(self.alpha, self.M).inverse(y)
        return self.M - self.epsilon + (y - at_threshold) * math.pow(self.epsilon, self.alpha)

    def log_slope(self, t: FloatArray) -> FloatArray:
        return -self.alpha * np.log(np.maximum(self.M - t, self.epsilon))


MEANS: dict[str, type[GeneralizedMean]] = {
    "fedavg": ArithmeticMean,
    "afl": Maximum,
    "q-ffl": PowerMean,
    "term": TiltedMean,
    "propfair": ProportionalMean,
    "alpha-fair": AlphaFairMean,
}


def _weights(weights: npt.ArrayLike, shares: Shares) -> tuple[FloatArray, FloatArray]:
    w = vector("weights", weights)
    return w, normalized_shares(shares, w.size)


def _nonnegative(w: FloatArray) -> Constraint:
    return Constraint("lambda >= 0", max(0.0, -float(w.min())))


def _require(holds: npt.NDArray[np.bool_], f: FloatArray, requirement: str) -> None:
    if not holds.all():
        client = int(np.flatnonzero(~holds)[0])
        raise DataError(f"{requirement}; got {f[client]:g} for client {client}.")
