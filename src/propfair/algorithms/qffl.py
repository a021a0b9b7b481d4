"""What q-FedAvg and q-FedSGD share."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Algorithm, Cohort
from propfair.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class QFFL(Algorithm):
    """Weights from powers of losses.

    Args:
        q: the power.
        weighting: "samples" for p_i in the objective, "none" for equal p_i.
        loss_floor: added to losses, since $F^{q-1}$ has no value at 0 for q < 1.
    """

    q: float = 0.1
    weighting: Literal["samples", "none"] = "samples"
    loss_floor: float = 1e-10

    def __post_init__(self) -> None:
        if not (math.isfinite(self.q) and self.q >= 0):
            raise ConfigError(f"q must be >= 0; got q={self.q}. Use q=0 for plain averaging.")
        if not (math.isfinite(self.loss_floor) and self.loss_floor >= 0):
            raise ConfigError(f"loss_floor must be >= 0; got loss_floor={self.loss_floor}. Use 1e-10.")

    def fair_average(self, cohort: Cohort, turn: Tensor | None = None) -> Tensor:
        r"""The weights $p_i F_i^q / \sum_j p_j (F_j^q + q F_j^{q-1} t_j)$ [K] with t = ||gradient||^2 / L.

        Without t they sum to 1. Powers are of F / max F, so that none overflows. A client without loss that still moves
        stops all if q < 1.
        """
        share = cohort.shares(self.weighting)
        if self.q == 0:
            return share
        loss = self.floored(cohort)
        worst = loss.max()
        ratio = loss / worst if worst > 0 else torch.ones_like(loss)
        powers = share * ratio**self.q
        if turn is None:
            return powers / powers.sum()
        damping = torch.where(turn > 0, self.q * turn * ratio ** (self.q - 1) / worst, 0.0)
        return powers / (powers.sum() + share @ damping)

    def floored(self, cohort: Cohort) -> Tensor:
        """F [K]: the losses, never negative, plus the floor."""
        return cohort.loss.clamp(min=0) + self.loss_floor
