"""DRFL (Zhao, Joshi, 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from propfair.algorithms.base import Advice, Cohort, Needs, Presets, State, register
from propfair.algorithms.qffl import QFFL


@register("drfl")
@dataclass(frozen=True, kw_only=True)
class DRFL(QFFL):
    r"""Clients count in proportion to their loss, or to a power of it.

    $$\min_\theta \frac{1}{q+1} \sum_i p_i f_i^{q+1}(\theta), \qquad w_i = \frac{p_i f_i^q}{\sum_j p_j f_j^q}$$

    The objective is that of q-FFL, and this is q-FedAvg without the damping of its steps: weights sum to 1, no norms of
    updates are needed, and the server adds updates up as they come. Platforms that compare with DRFL run q = 1 without
    p_i and with the losses after local training; here they are those of the model received, as for all rules. The
    method also samples clients with large losses more often, which is left out. Not in the paper.

    Args:
        q: the power. q = 0 is FedAvg.
        weighting: "samples" for p_i, "none" for equal p_i.
        loss_floor: added to losses, so that losses of 0 still give weights.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])
    >>> DRFL(q=1.0).weigh(cohort, {})[0]
    tensor([0.2632, 0.3158, 0.4211], dtype=torch.float64)

    References:
        Z. Zhao, G. Joshi, A Dynamic Reweighting Strategy for Fair Federated Learning, ICASSP 2022.
    """

    q: float = 1.0

    presets: ClassVar[Presets] = {"platforms": {"q": 1.0, "weighting": "none"}}
    advice: ClassVar[Advice | None] = Advice(
        optimises="The (q+1)-th powers of the losses.",
        tune="q.",
        epochs="Keeps its weights; clients drift as in FedAvg.",
        participation="Fine.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"q": (0.5, 1.0, 2.0)}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS if self.q > 0 else Needs.NOTHING

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        return self.fair_average(cohort), state
