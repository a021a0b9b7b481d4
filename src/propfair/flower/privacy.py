"""How much privacy a deployment has spent under Flower's wrappers for central differential privacy."""

import math
from collections.abc import Iterable

from scipy.optimize import brentq
from scipy.special import log_ndtr

from propfair.core.aggregator import Outcome
from propfair.errors import ConfigError


def epsilon_spent(outcomes: Iterable[Outcome], noise_multiplier: float, num_clients: int, delta: float = 1e-5) -> float:
    r"""The $\epsilon$ of client-level $(\epsilon, \delta)$-differential privacy for the models of these rounds.

    Flower's wrappers clip updates to length C and add noise of deviation `noise_multiplier` * C / `num_clients`, which
    is right for equal weights. A client with weight w moves the model by up to w C, so a round in which the largest
    weight is w has the noise multiplier $z_t = z / (w K)$. Gaussian mechanisms compose exactly: all rounds together
    are one of multiplier $(\sum_t z_t^{-2})^{-1/2}$, whose $\epsilon$ is that of the analytic formula (Balle and Wang,
    2018). No credit is given for sampling. What is protected is whether a client's update is there; the weights and
    losses that it takes are not covered, see docs/flower.md.

    Args:
        outcomes: of the strategy; a client that was left out is not exposed.
        noise_multiplier: as the wrapper was told.
        num_clients: as the wrapper was told, `num_sampled_clients`.
        delta: the probability with which more may leak.
    """
    if not 0 < delta < 1:
        raise ConfigError(f"delta must be between 0 and 1; got delta={delta}")
    largest = [float(outcome.weights.abs().max()) * num_clients for outcome in outcomes]
    if not any(largest):
        return 0.0
    if not noise_multiplier > 0:
        return math.inf
    mu = math.sqrt(sum(weight**2 for weight in largest)) / noise_multiplier

    def excess(epsilon: float) -> float:
        first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
        return float(math.exp(first) - math.exp(min(second, first)) - delta)

    if excess(0.0) <= 0:
        return 0.0
    most = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1  # the bound by Renyi divergences
    return float(brentq(excess, 0.0, most))
