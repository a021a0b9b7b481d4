"""FedAvg (McMahan et al., 2017)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, State, register


@register("fedavg")
@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    r"""Plain averaging: every client counts by its data.

    $$\min_\theta \sum_i p_i f_i(\theta), \qquad w_i = p_i$$ (paper, eq. 2.3 and Algorithm 2).

    Args:
        weighting: "samples" for p_i = n_i / n; "uniform" for one client, one vote.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2])
    >>> FedAvg().weigh(cohort, {})[0].tolist()
    [0.5, 0.3, 0.2]

    References:
        H. B. McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
    """

    weighting: Literal["samples", "uniform"] = "samples"

    advice: ClassVar[Advice | None] = Advice(
        optimises="The mean loss, by data share.",
        tune="Nothing.",
        epochs="Clients drift towards their own optima: see scaffold, feddyn, fednova.",
        participation="Fine.",
    )

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        return cohort.shares(self.weighting), state
