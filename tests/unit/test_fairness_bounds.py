import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from propfair.errors import ConfigError, DataError
from propfair.fairness import bounds
from propfair.fairness.bounds import BoundWarning, ConvergenceBound, Participation, fedavg_bound, propfair_bound

FEDAVG: dict[str, Any] = {
    "L": 1.0,
    "sigma": 0.5,
    "sigma_i": 1.0,
    "batch_size": 64,
    "shares": [0.5, 0.3, 0.2],
    "local_steps": [10, 6, 4],
    "gap": 2.0,
    "rounds": 100,
}
PROPFAIR: dict[str, Any] = {**FEDAVG, "M": 5.0, "L0": 1.0, "sigma_0": 0.5, "sigma_0i": 1.0, "gap": 0.5}


def quietly(call: Callable[..., ConvergenceBound], **arguments: Any) -> ConvergenceBound:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BoundWarning)
        return call(**arguments)


def test_default_step_size_is_the_largest_allowed() -> None:
    result = fedavg_bound(**FEDAVG)
    assert result.eta == result.limits.limit == min(result.limits.local_steps, result.limits.drift)
    assert result.limits.binding == "drift"
    assert result.warnings == ()
    assert (
        fedavg_bound(**{**FEDAVG, "shares": "uniform", "local_steps": 1} | {"sigma_i": [1, 1]}).limits.binding
        == "local_steps"
    )


def test_one_number_stands_for_all_clients() -> None:
    lists = fedavg_bound(**{**FEDAVG, "sigma_i": [1.0, 1.0, 1.0]}, eta=0.003)
    assert lists.bound == fedavg_bound(**FEDAVG, eta=0.003).bound


def test_step_size_above_the_limit_warns_and_says_so() -> None:
    with pytest.warns(BoundWarning, match="eta must be <= 0.003635"):
        result = fedavg_bound(**FEDAVG, eta=0.01)
    assert len(result.warnings) == 1


def test_batch_losses_above_half_the_baseline_warn() -> None:
    with pytest.warns(BoundWarning, match=r"M/2 = 2.5; the largest is 4.6"):
        propfair_bound(**PROPFAIR, max_batch_loss=4.6)
    assert propfair_bound(**PROPFAIR, max_batch_loss=2.5).warnings == ()


def test_printed_partial_form_warns_where_it_fails() -> None:
    with pytest.warns(BoundWarning, match="worst_subset"):
        printed = fedavg_bound(**FEDAVG, eta=0.003, participation="partial")
    repaired = quietly(fedavg_bound, **FEDAVG, eta=0.003, participation="worst_subset")
    assert repaired.bound > printed.bound
    # With equal clients, no cohort is worse than all of them, so the printed form stands.
    equal = {**FEDAVG, "shares": [1, 1, 1], "local_steps": 5}
    assert fedavg_bound(**equal, participation="partial").warnings == ()


def test_worst_subset_of_the_counterexample() -> None:
    # p = (1/2, 1/2), K = (1, 10): ||p||^2 sum K^4 is 5000.5 for both clients and 10000 for the second alone.
    case = {**FEDAVG, "shares": [0.5, 0.5], "local_steps": [1, 10], "sigma_i": 0.0}
    both = fedavg_bound(**case)
    alone = fedavg_bound(**case, participation="worst_subset", cohort_size=1)
    assert (both.limits.drift / alone.limits.drift) ** 2 == pytest.approx(10000 / 5000.5)


@pytest.mark.parametrize("cohort_size", [None, 1, 2, 4])
def test_worst_subset_is_the_maximum_over_cohorts(cohort_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    p, K = rng.dirichlet(np.ones(6)), rng.integers(1, 12, 6)
    case = {**FEDAVG, "shares": p, "local_steps": K, "participation": "worst_subset", "cohort_size": cohort_size}
    sizes = range(1, 7) if cohort_size is None else [cohort_size]
    cohorts = [list(c) for size in sizes for c in itertools.combinations(range(6), size)]
    spreads = [float((p[c] ** 2).sum() / p[c].sum() ** 2 * (K[c] ** 4.0).sum()) for c in cohorts]
    exact = fedavg_bound(**case)
    assert exact.limits.drift == pytest.approx(1 / math.sqrt(24 * (math.e - 2) * max(spreads)))
    monkeypatch.setattr(bounds, "MAX_COHORTS", 0)
    assert fedavg_bound(**case).limits.drift <= exact.limits.drift * (1 + 1e-12)


def test_many_equal_clients_need_no_enumeration() -> None:
    case = {**FEDAVG, "shares": "uniform", "local_steps": np.arange(1, 101), "participation": "worst_subset"}
    result = fedavg_bound(**case, cohort_size=10)
    mean_of_top_ten = float((np.arange(91, 101) ** 4.0).mean())
    assert result.limits.drift == pytest.approx(1 / math.sqrt(24 * (math.e - 2) * mean_of_top_ten))


def test_safe_form() -> None:
    printed, safe = fedavg_bound(**FEDAVG, eta=0.003), fedavg_bound(**FEDAVG, eta=0.003, safe=True)
    assert safe.bound > printed.bound
    # One local step each, mu = 1 < 2: drift costs up to 7/6.
    one = {**FEDAVG, "local_steps": 1}
    assert fedavg_bound(**one, safe=True).bound > fedavg_bound(**one).bound
    assert propfair_bound(**PROPFAIR, safe=True).bound == propfair_bound(**PROPFAIR).bound
    assert quietly(fedavg_bound, **one, eta=10.0, safe=True).bound == math.inf


def test_rates() -> None:
    def scaled(call: Callable[..., ConvergenceBound], case: dict[str, Any], rounds: int) -> float:
        return call(**{**case, "rounds": rounds}, eta=1e-4 / math.sqrt(rounds)).bound

    alike = {**FEDAVG, "sigma": 0.0, "gap": 0.0}
    assert scaled(fedavg_bound, alike, 10_000) < 0.02 * scaled(fedavg_bound, alike, 1)
    biased = {**PROPFAIR, "sigma": 0.0, "sigma_0": 0.0, "gap": 0.0}
    assert scaled(propfair_bound, biased, 10_000) > 0.9 * scaled(propfair_bound, biased, 1)


class Quadratics:
    """Clients f_i = E (theta - c_i - z)' H (theta - c_i - z) / 2, z uniform on a cube: every constant is known."""

    H = np.array([1.0, 0.5, 0.2])
    half_width = 0.3

    def __init__(self, spread: float) -> None:
        rng = np.random.default_rng(5)
        self.p = np.array([0.4, 0.3, 0.2, 0.1])
        self.c = rng.uniform(-spread, spread, (4, 3))
        self.start = np.array([0.5, -0.5, 0.5])
        self.z_variance = self.half_width**2 / 3
        self.floor = 0.5 * self.H.sum() * self.z_variance
        pairs = list(itertools.combinations(range(4), 2))
        self.sigma = max(float(np.linalg.norm(self.H * (self.c[i] - self.c[j]))) for i, j in pairs)
        self.sigma_i = math.sqrt(float((self.H**2).sum()) * self.z_variance)
        # On the ball around 0 in which the runs stay:
        self.radius = 1.5
        self.L0 = self.radius + float(np.linalg.norm(self.c, axis=1).max())
        offsets = 0.5 * (self.c**2 @ self.H)
        self.sigma_0 = self.sigma * self.radius + float(np.ptp(offsets))
        self.sigma_0i = math.sqrt(2 * self.L0**2 * self.z_variance + 0.5 * (self.H.sum() * self.half_width**2) ** 2)

    def losses(self, theta: np.ndarray) -> np.ndarray:
        return np.asarray(0.5 * (theta - self.c) ** 2 @ self.H + self.floor)

    def run(
        self, M: float | None, eta: float, K: np.ndarray, cohort: int, rounds: int, batch: int, seed: int
    ) -> np.ndarray:
        """Squared gradient norms of the global objective before each round."""
        rng = np.random.default_rng(seed)
        theta, norms = self.start, []
        for _ in range(rounds):
            slopes = np.ones(4) if M is None else 1 / (M - self.losses(theta))
            norms.append(float((((self.p * slopes)[:, None] * self.H * (theta - self.c)).sum(0) ** 2).sum()))
            members = rng.choice(4, cohort, replace=False)
            ends = []
            for i in members:
                x = theta
                for _ in range(K[i]):
                    residual = x - self.c[i] - rng.uniform(-self.half_width, self.half_width, (batch, 3))
                    loss = float((0.5 * residual**2 @ self.H).mean())
                    slope = 1.0 if M is None else 1 / (M - loss)
                    assert M is None or (loss <= M / 2 and np.linalg.norm(x) <= self.radius)
                    x = x - eta * slope * self.H * residual.mean(axis=0)
                ends.append(x)
            weights = self.p[members] / self.p[members].sum()
            theta = weights @ np.array(ends)
        return np.array(norms)

    def minimum(self, M: float | None) -> float:
        theta = self.start
        for _ in range(3000):
            slopes = np.ones(4) if M is None else 1 / (M - self.losses(theta))
            theta = theta - 0.5 * ((self.p * slopes)[:, None] * self.H * (theta - self.c)).sum(axis=0)
        return self.objective(theta, M)

    def objective(self, theta: np.ndarray, M: float | None) -> float:
        losses = self.losses(theta)
        return float(self.p @ (losses if M is None else -np.log(M - losses)))

    def bound(self, M: float | None, **more: Any) -> ConvergenceBound:
        common = {
            "L": 1.0,
            "sigma": self.sigma,
            "sigma_i": self.sigma_i,
            "shares": self.p,
            "gap": self.objective(self.start, M) - self.minimum(M),
        }
        if M is None:
            return quietly(fedavg_bound, **common, **more)
        extra = {"M": M, "L0": self.L0, "sigma_0": self.sigma_0, "sigma_0i": self.sigma_0i}
        return quietly(propfair_bound, **common, **extra, **more)


@pytest.mark.parametrize("spread", [0.0, 0.4], ids=["equal clients", "different clients"])
@pytest.mark.parametrize("M", [None, 4.0], ids=["fedavg", "propfair"])
@pytest.mark.parametrize(
    ("participation", "cohort", "safe"),
    [("full", 4, False), ("full", 4, True), ("partial", 2, False), ("worst_subset", 2, True)],
)
def test_measured_gradients_stay_under_the_bound(
    spread: float, M: float | None, participation: Participation, cohort: int, safe: bool
) -> None:
    problem = Quadratics(spread)
    K, rounds, batch = np.array([3, 2, 2, 1]), 40, 8
    result = problem.bound(
        M, local_steps=K, batch_size=batch, rounds=rounds, participation=participation, cohort_size=cohort, safe=safe
    )
    assert result.eta <= result.limits.limit
    runs = [problem.run(M, result.eta, K, cohort, rounds, batch, seed) for seed in range(6)]
    measured = np.mean(runs, axis=0)
    assert measured.min() < measured[0]
    assert measured.min() <= result.bound


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"L": 0.0}, ConfigError, "L must be finite and > 0"),
        ({"sigma": -1.0}, ConfigError, "sigma must be finite and >= 0"),
        ({"sigma_i": -1.0}, ConfigError, "sigma_i"),
        ({"gap": math.nan}, ConfigError, "gap"),
        ({"eta": 0.0}, ConfigError, "eta"),
        ({"local_steps": [1, 2]}, DataError, "each of 3 clients"),
        ({"local_steps": 0}, ConfigError, "whole numbers >= 1"),
        ({"local_steps": [1, 1.5, 2]}, ConfigError, "whole numbers >= 1"),
        ({"participation": "some"}, ConfigError, "participation must be one of"),
        ({"cohort_size": 4}, ConfigError, "from 1 to 3"),
        ({"shares": "uniform", "local_steps": 1}, ConfigError, "number of clients is unknown"),
    ],
)
def test_errors_say_what_to_do(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        fedavg_bound(**{**FEDAVG, **change})
