"""Semi-VRed and VRed (Malekmohammadi, Yu, 2024)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Needs, State, register
from propfair.errors import ConfigError


@register("semi-vred")
@dataclass(frozen=True, kw_only=True)
class SemiVRed(Algorithm):
    r"""A penalty on the (semi-)variance of losses across clients.

    $$\min_\theta \bar f + b \sum_i p_i (f_i - \bar f)_+^2, \qquad \bar f = \sum_i p_i f_i, \qquad
      w_i = p_i \Big(1 + 2b \big[(f_i - \bar f)_+ - \sum_j p_j (f_j - \bar f)_+\big]\Big)$$

    and with `side="both"` the whole variance (VRed): $w_i = p_i (1 + 2b (f_i - \bar f))$. Not in the paper. The weights
    are the gradient of the objective and sum to 1. A large b would make some of them negative, and the model forget the
    clients that do well: b is lowered in such a round so far that none is (`nonnegative`).

    Args:
        b: weight of the penalty; 0 is FedAvg.
        side: "above" counts losses above the mean only, "both" all.
        nonnegative: keep weights >= 0.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])
    >>> SemiVRed(b=0.5).weigh(cohort, {})[0]
    tensor([0.3875, 0.2475, 0.3650], dtype=torch.float64)

    References:
        S. Malekmohammadi, Y. Yu, Semi-Variance Reduction for Fair Federated Learning, arXiv:2406.16193, 2024.
    """

    b: float = 0.1
    side: Literal["above", "both"] = "above"
    nonnegative: bool = True

    advice: ClassVar[Advice | None] = Advice(
        optimises="The mean loss plus the semi-variance of the losses.",
        tune="b.",
        epochs="Keeps its weights; clients drift as in FedAvg.",
        participation="Fine.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"b": (0.05, 0.1, 0.5)}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS

    def __post_init__(self) -> None:
        if not (math.isfinite(self.b) and self.b >= 0):
            raise ConfigError(f"b must be >= 0; got b={self.b}. Use b=0 for plain averaging.")

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        spread = cohort.loss - cohort.share @ cohort.loss
        if self.side == "above":
            spread = spread.clamp(min=0)
        tilt = 2 * self.b * (spread - cohort.share @ spread)
        if self.nonnegative and tilt.min() < -1:
            tilt = tilt / -tilt.min()
        return cohort.share * (1 + tilt), state
