"""Delta-FL, also Simplicial-FL (Laguel, Pillutla, Malick, Harchaoui, 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Needs, State, register
from propfair.errors import ConfigError


@register("delta-fl")
@dataclass(frozen=True, kw_only=True)
class DeltaFL(Algorithm):
    r"""Only the tail counts: the mean loss of the theta share of clients that are worst off (superquantile, CVaR).

    $$\min_\theta \max \Big\{\sum_i \lambda_i f_i :\ \lambda \in \Delta,\ \lambda_i \le p_i / \vartheta\Big\}$$

    theta = 1 is FedAvg, theta to 0 AFL. Not in the paper. As in the method's own code, the clients whose loss is at or
    above the (1 - theta)-quantile are averaged by p_i. `boundary="split"` gives the client at the quantile only the
    rest of the mass, which is the maximiser above.

    Args:
        theta: the share of the data that counts, in (0, 1].
        boundary: "whole" or "split".

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])
    >>> DeltaFL(theta=0.4).weigh(cohort, {})[0]
    tensor([0.0000, 0.6000, 0.4000], dtype=torch.float64)

    References:
        Y. Laguel, K. Pillutla, J. Malick, Z. Harchaoui, A Superquantile Approach to Federated Learning with
        Heterogeneous Devices, CISS 2021.
    """

    theta: float = 0.5
    boundary: Literal["whole", "split"] = "whole"

    advice: ClassVar[Advice | None] = Advice(
        optimises="The mean loss of the worst share theta of the data.",
        tune="theta.",
        epochs="Keeps its weights; clients drift as in FedAvg.",
        participation="The worst of those present count.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"theta": (0.25, 0.5, 0.75)}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS

    def __post_init__(self) -> None:
        if not 0 < self.theta <= 1:
            raise ConfigError(f"theta must be in (0, 1]; got theta={self.theta}. Use theta=1 for plain averaging.")

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        losses, order = cohort.loss.sort()
        mass = cohort.share[order].cumsum(0)
        place = int(torch.searchsorted(mass, (1 - self.theta) * mass[-1] - 1e-12))  # rounding must not skip a client
        quantile = losses[min(place, len(losses) - 1)]
        tail = cohort.share * (cohort.loss >= quantile)
        if self.boundary == "split":
            above, at = cohort.share * (cohort.loss > quantile), cohort.share * (cohort.loss == quantile)
            tail = above + at * ((self.theta - above.sum()) / at.sum()).clamp(0, 1)
        return tail / tail.sum(), state
