r"""The paper's two convergence theorems as calculators (Theorems 4.2 and 4.4).

Both bound the best squared gradient norm of T rounds of local SGD,

$$\min_t \mathbb{E}\|\nabla F(\theta_t)\|^2 \le \frac{12}{(11\mu - 9)\eta}\Big(\frac{\mathrm{gap}}{T} + \Psi\Big),$$

for F = sum p f (FedAvg) or F = -sum p log(M - f) (PropFair), if the step size eta is below two limits. `mu` is the mean
number of local steps; Psi is what noise and differences between clients leave over.

Where the printed proofs need repair, the repaired form is an option and the printed one the default:

- `safe=True` (FedAvg): noise and drift of several local steps are not independent, so their squared sum is bounded by
  twice the sum of squares. The first noise term doubles, and for mu < 2 the drift term grows by up to 1/6.
  The proof for PropFair does this already: both forms agree there.
- `participation="worst_subset"`: shares are renormalised over the cohort, so Psi can be larger for a few clients
  than for all. The maximum over all cohorts is used. `"partial"` is the printed form, which keeps the Psi of all.
"""

import itertools
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from propfair.errors import ConfigError
from propfair.fairness.arrays import FloatArray, Shares, normalized_shares, vector

Participation = Literal["full", "partial", "worst_subset"]
DRIFT = math.e - 2  # from sum_j ((1 + 1/K)^j - 1) <= (e - 2) K^2 / K
MAX_COHORTS = 20_000  # enumerated one by one; above, the product of two maxima bounds them all
ROUNDING = 1e-12


class BoundWarning(UserWarning):
    """A theorem is evaluated where its assumptions do not hold: the number is no bound there."""


@dataclass(frozen=True)
class StepSizeLimits:
    """The two upper limits on the step size.

    Attributes:
        local_steps: 1 / (6 L max K), so that one client's local steps stay small.
        drift: so that all clients' drift takes at most a quarter of the descent.
    """

    local_steps: float
    drift: float

    @property
    def limit(self) -> float:
        """The largest step size that the theorem allows."""
        return min(self.local_steps, self.drift)

    @property
    def binding(self) -> Literal["local_steps", "drift"]:
        """Which of the two is the smaller."""
        return "local_steps" if self.local_steps <= self.drift else "drift"


@dataclass(frozen=True, eq=False)
class Constants:
    """Of the functions that clients minimise: f_i for FedAvg, -log(M - f_i) for PropFair (in the paper, with a tilde).

    Attributes:
        L: Lipschitz constant of the gradients.
        sigma: Lipschitz constant of the differences between clients.
        sigma_i: [n], standard deviation of the gradient of one example.
    """

    L: float
    sigma: float
    sigma_i: FloatArray


@dataclass(frozen=True, eq=False)
class ConvergenceBound:
    """A theorem, evaluated.

    Attributes:
        theorem: "fedavg" or "propfair".
        bound: on min_t E ||grad||^2.
        eta: the step size.
        limits: on the step size.
        mu: mean number of local steps, or the smallest under partial participation.
        psi: the part that does not vanish with T.
        vanishing: the part of the bound that does, 12 gap / ((11 mu - 9) eta T).
        constants: of the function that is minimised.
        participation: the form in use.
        safe: the form in use.
        warnings: the assumptions that do not hold; empty if the number is a bound.
    """

    theorem: Literal["fedavg", "propfair"]
    bound: float
    eta: float
    limits: StepSizeLimits
    mu: float
    psi: float
    vanishing: float
    constants: Constants
    participation: Participation
    safe: bool
    warnings: tuple[str, ...]


def fedavg_bound(
    *,
    L: float,
    sigma: float,
    sigma_i: npt.ArrayLike,
    batch_size: int,
    shares: Shares,
    local_steps: npt.ArrayLike,
    gap: float,
    rounds: int,
    eta: float | None = None,
    participation: Participation = "full",
    cohort_size: int | None = None,
    safe: bool = False,
) -> ConvergenceBound:
    r"""Theorem 4.2: T rounds of FedAvg on F = sum p f.

    $$\Psi = \eta \|p\|^2 \Big[\sum_i K_i^2 \Big(\frac{L \eta \sigma_i^2}{2m} + \sigma^2\Big)
        + (e-2) \eta^2 L^2 \sum_i K_i^3 \Big(\frac{\sigma_i^2}{m} + 6 K_i \sigma^2\Big)\Big]$$

    Args:
        L: Lipschitz constant of every gradient of f_i.
        sigma: Lipschitz constant of every difference f_i - f_j.
        sigma_i: per client (or one number for all), the standard deviation of the gradient of one example.
        batch_size: m.
        shares: p.
        local_steps: K, per client or one number for all.
        gap: F(theta_0) - min F.
        rounds: T.
        eta: local step size; None takes the largest that the theorem allows.
        participation: "full", "partial" (as printed) or "worst_subset" (repaired).
        cohort_size: clients per round if not full; None allows any number.
        safe: the repaired noise term.

    >>> result = fedavg_bound(L=1, sigma=0.5, sigma_i=1, batch_size=64, shares=[0.5, 0.3, 0.2], local_steps=[10, 6, 4],
    ...                       gap=2, rounds=100, eta=0.003)
    >>> round(result.bound, 6), result.limits.binding
    (3.402247, 'drift')
    """
    clients, noise = _clients(local_steps, shares, sigma_i, participation, cohort_size)
    _check(L=L, sigma=sigma, gap=gap, batch_size=batch_size, rounds=rounds, eta=eta)
    K, mu, limits = clients.K, clients.mu, clients.limits(L, 24)
    step = limits.limit if eta is None else eta
    variance = noise**2 / batch_size
    # Printed: noise and drift apart. Safe: twice both, which L eta / 2 turns into these two factors.
    noise_factor, drift_factor = (1.0, max(1.0, 1 + L * step * (2 - mu))) if safe else (0.5, 1.0)
    per_client = K**2 * (noise_factor * L * step * variance + drift_factor * sigma**2)
    per_client += drift_factor * DRIFT * (step * L) ** 2 * K**3 * (variance + 6 * K * sigma**2)
    return _evaluate(
        clients,
        per_client,
        theorem="fedavg",
        constants=Constants(L, sigma, noise),
        limits=limits,
        eta=step,
        descent=11 * mu - 6 - 3 * drift_factor,
        gap_per_round=gap / rounds,
        safe=safe,
    )


def propfair_bound(
    *,
    M: float,
    L: float,
    L0: float,
    sigma: float,
    sigma_i: npt.ArrayLike,
    sigma_0: float,
    sigma_0i: npt.ArrayLike,
    batch_size: int,
    shares: Shares,
    local_steps: npt.ArrayLike,
    gap: float,
    rounds: int,
    eta: float | None = None,
    participation: Participation = "full",
    cohort_size: int | None = None,
    safe: bool = False,
    max_batch_loss: float | None = None,
) -> ConvergenceBound:
    r"""Theorem 4.4: T rounds of PropFair on pi = -sum p log(M - f), for batch losses in [0, M/2].

    $$\tilde\Psi = \eta \|p\|^2 \Big[\sum_i K_i^2 \Big(\frac{\tilde\sigma_i^2}{m} + 2\tilde\sigma^2\Big)
        + 16 (e-2) \eta^2 \tilde L^2 \sum_i K_i^4 \Big(\frac{\tilde\sigma_i^2}{m} + \tilde\sigma^2\Big)\Big]$$

    Gradients of the logarithm of a batch loss are biased, so the noise term does not shrink with eta, as it does for
    FedAvg: even with equal clients the bound does not go to 0.

    Args:
        M: the baseline.
        L: Lipschitz constant of every gradient of f_i.
        L0: Lipschitz constant of every f_i.
        sigma: Lipschitz constant of every difference f_i - f_j.
        sigma_i: per client (or one number for all), the standard deviation of the gradient of one example.
        sigma_0: the largest |f_i - f_j|.
        sigma_0i: per client (or one number for all), the standard deviation of the loss of one example.
        batch_size: m.
        shares: p.
        local_steps: K, per client or one number for all.
        gap: pi(theta_0) - min pi.
        rounds: T.
        eta: local step size; None takes the largest that the theorem allows.
        participation: "full", "partial" (as printed) or "worst_subset" (repaired).
        cohort_size: clients per round if not full; None allows any number.
        safe: has no effect here; the printed proof is safe already.
        max_batch_loss: the largest batch loss seen, if known: above M/2 the theorem does not apply.
    """
    clients, noise = _clients(local_steps, shares, sigma_i, participation, cohort_size)
    K, mu = clients.K, clients.mu
    loss_noise = _per_client("sigma_0i", sigma_0i, K.size)
    _check(M=M, L=L, L0=L0, sigma=sigma, sigma_0=sigma_0, gap=gap, batch_size=batch_size, rounds=rounds, eta=eta)
    smooth = 4 / M**2 * (1.5 * M * L + L0**2)
    spread = 4 / M * (1.5 * sigma + L0 * sigma_0 / M)
    deviation = np.sqrt(8 / M**4 * (9 * M**2 * noise**2 + 4 * L0**2 * loss_noise**2))
    limits = clients.limits(smooth, 64)
    step = limits.limit if eta is None else eta
    variance = deviation**2 / batch_size
    per_client = K**2 * (variance + 2 * spread**2)
    per_client += 16 * DRIFT * (step * smooth) ** 2 * K**4 * (variance + spread**2)
    too_large = max_batch_loss is not None and max_batch_loss > M / 2
    return _evaluate(
        clients,
        per_client,
        theorem="propfair",
        constants=Constants(smooth, spread, deviation),
        limits=limits,
        eta=step,
        descent=11 * mu - 9,
        gap_per_round=gap / rounds,
        safe=safe,
        found=(f"batch losses must be <= M/2 = {M / 2:g}; the largest is {max_batch_loss:g}",) if too_large else (),
    )


def _evaluate(
    clients: "_Clients",
    per_client: FloatArray,
    *,
    theorem: Literal["fedavg", "propfair"],
    constants: Constants,
    limits: StepSizeLimits,
    eta: float,
    descent: float,
    gap_per_round: float,
    safe: bool,
    found: tuple[str, ...] = (),
) -> ConvergenceBound:
    """The outer formula, 12 / (descent eta) (gap / T + Psi), and the checks that both theorems share."""
    psi = eta * clients.spread(per_client)
    factor = 12 / (descent * eta) if descent > 0 else math.inf
    if eta > limits.limit * (1 + ROUNDING):
        found += (f"eta must be <= {limits.limit:.6g} (the limit by {limits.binding}); got eta={eta:g}",)
    if clients.participation == "partial" and eta * clients.worst_spread(per_client) > psi * (1 + ROUNDING):
        found += ('Psi of some cohorts is larger than that of all clients; use participation="worst_subset"',)
    for text in found:
        warnings.warn(f"the {theorem} theorem does not apply: {text}", BoundWarning, stacklevel=3)
    return ConvergenceBound(
        theorem=theorem,
        bound=factor * (gap_per_round + psi),
        vanishing=factor * gap_per_round,
        eta=eta,
        limits=limits,
        mu=clients.mu,
        psi=psi,
        constants=constants,
        participation=clients.participation,
        safe=safe,
        warnings=found,
    )


@dataclass(frozen=True, eq=False)
class _Clients:
    """Shares, local steps, and which sets of clients may train together."""

    p: FloatArray
    K: FloatArray
    participation: Participation
    sizes: range

    @property
    def mu(self) -> float:
        return float(self.p @ self.K) if self.participation == "full" else float(self.K.min())

    def limits(self, L: float, constant: float) -> StepSizeLimits:
        drift = 1 / (L * math.sqrt(constant * DRIFT * self.spread(self.K**4)))
        return StepSizeLimits(1 / (6 * L * float(self.K.max())), drift)

    def spread(self, x: FloatArray) -> float:
        """||p||^2 sum x, as the form in use has it."""
        if self.participation == "worst_subset":
            return self.worst_spread(x)
        return float(self.p @ self.p) * float(x.sum())

    def worst_spread(self, x: FloatArray) -> float:
        """Its maximum over cohorts, p renormalised; if they are too many, the product of both factors' maxima."""
        if sum(math.comb(self.p.size, size) for size in self.sizes) <= MAX_COHORTS:
            return max(_squares(self.p[cohort]) * float(x[cohort].sum()) for cohort in self._all())
        descending = np.sort(x)[::-1].cumsum()
        return max(self._most_unequal(size) * float(descending[size - 1]) for size in self.sizes)

    def _all(self) -> Iterator[list[int]]:
        for size in self.sizes:
            yield from map(list, itertools.combinations(range(self.p.size), size))

    def _most_unequal(self, size: int) -> float:
        """The largest ||p||^2 of a cohort. It is quasi-convex in each share, so the extremes of the order make it."""
        ordered = np.sort(self.p)
        tops = range(size + 1)
        return max(_squares(np.concatenate([ordered[: size - top], ordered[ordered.size - top :]])) for top in tops)


def _squares(p: FloatArray) -> float:
    return float(p @ p) / float(p.sum()) ** 2


def _clients(
    local_steps: npt.ArrayLike,
    shares: Shares,
    sigma_i: npt.ArrayLike,
    participation: Participation,
    cohort_size: int | None,
) -> tuple[_Clients, FloatArray]:
    lists = [item for item in (shares, local_steps, sigma_i) if np.ndim(item)]
    if not lists:
        raise ConfigError("the number of clients is unknown: give shares, local_steps or sigma_i as a list.")
    n = len(np.asarray(lists[0]))
    K = _per_client("local_steps", local_steps, n)
    if (K < 1).any() or (np.round(K) != K).any():
        raise ConfigError(f"local_steps must be whole numbers >= 1; got {K.tolist()}.")
    if participation not in get_args(Participation):
        raise ConfigError(f"participation must be one of {get_args(Participation)}; got {participation!r}.")
    if cohort_size is not None and not 1 <= cohort_size <= n:
        raise ConfigError(f"cohort_size must be from 1 to {n}, the number of clients; got {cohort_size}.")
    sizes = range(1, n + 1) if cohort_size is None else range(cohort_size, cohort_size + 1)
    return _Clients(normalized_shares(shares, n), K, participation, sizes), _per_client("sigma_i", sigma_i, n)


def _per_client(name: str, values: npt.ArrayLike, length: int) -> FloatArray:
    x = vector(name, np.full(length, values) if np.ndim(values) == 0 else values, length)
    if (x < 0).any():
        raise ConfigError(f"{name} must be >= 0; got {x.tolist()}.")
    return x


def _check(**numbers: float | None) -> None:
    strict = {"M", "L", "batch_size", "rounds", "eta"}
    for name, value in numbers.items():
        if value is not None and not (math.isfinite(value) and (value > 0 if name in strict else value >= 0)):
            raise ConfigError(f"{name} must be finite and {'> 0' if name in strict else '>= 0'}; got {name}={value}.")
