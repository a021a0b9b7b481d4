"""Alpha-fairness on utilities (Mo and Walrand, 2000)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Cohort, Needs, Objective, Presets, State, as_floats, order_for, register
from propfair.algorithms.propfair import PropFair
from propfair.algorithms.transforms import slope
from propfair.errors import ConfigError

_FLOAT32_DIGITS = 35  # of powers of ten, with room for a loss beside them


@register("alpha-fair")
@dataclass(frozen=True, kw_only=True)
class AlphaFair(PropFair):
    r"""Alpha-fair utilities: their sum (alpha = 0), Nash product (1), harmonic mean (2), minimum (towards infinity).

    $$\max_\theta \sum_i p_i \phi_\alpha(M - f_i(\theta)), \qquad
      \phi_1(u) = \log u, \quad \phi_\alpha(u) = \frac{u^{1-\alpha}}{1-\alpha}$$ (paper, eq. 2.8;
    the harmonic mean: eq. F.8).

    alpha = 0 is FedAvg, alpha = 1 is PropFair. Below the utility epsilon a straight line goes on, as for PropFair:
    with the slope epsilon^-alpha (`variant="huber"`) or M^-alpha ("practical").

    Args:
        alpha: the order of fairness, >= 0.
        placement: "client" transforms each batch loss, as PropFair does; "server" trains on the plain loss and weighs
            the updates by $p_i (M - f_i)^{-\alpha}$, normalised to sum to 1. With one full-batch step they agree up
            to the length of the step.
        M: the loss at which a client has no utility left: one number, or one for each client, or
            "auto", as for PropFair.
        epsilon: the utility below which the straight line begins.
        variant: the slope of that line.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])
    >>> AlphaFair(alpha=2.0, M=3.0, placement="server").weigh(cohort, {})[0]
    tensor([0.2254, 0.2113, 0.5634], dtype=torch.float64)

    References:
        J. Mo, J. Walrand, Fair End-to-End Window-Based Congestion Control, IEEE/ACM Transactions on Networking 2000.
    """

    alpha: float = 1.0
    placement: Literal["client", "server"] = "client"

    presets: ClassVar[Presets] = {}

    @property
    def fairness(self) -> float:
        return self.alpha

    @property
    def needs(self) -> Needs:
        return Needs.LOSS if self.placement == "server" else Needs.NOTHING

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise ConfigError(f"alpha must be >= 0; got alpha={self.alpha}. Use alpha=0 for plain averaging.")
        if self.placement == "client" and abs(self.alpha * math.log10(self.epsilon)) > _FLOAT32_DIGITS:
            raise ConfigError(
                f"epsilon^-alpha must fit into float32 for placement='client'; got epsilon={self.epsilon}, "
                f"alpha={self.alpha}. Use placement='server', or an alpha of at most "
                f"{_FLOAT32_DIGITS / abs(math.log10(self.epsilon)):.0f}."
            )

    @property
    def objective(self) -> Objective | None:
        return None if self.placement == "server" else self._negative_utility

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        if self.placement == "client":
            return cohort.share, state
        M = as_floats([self._baseline(order_for(self, client, state)) for client in cohort.clients])
        steepness = slope(cohort.loss, M, self.epsilon, self.variant)  # its power alpha may overflow
        return torch.softmax(cohort.share.log() + self.alpha * steepness.log(), 0), state
