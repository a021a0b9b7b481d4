"""q-FFL by q-FedAvg (Li, Sanjabi, Beirami, Smith, 2020)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from propfair.algorithms.base import Advice, Cohort, Needs, Objective, Order, Presets, State, register
from propfair.algorithms.qffl import QFFL


@register("q-fedavg")
@dataclass(frozen=True, kw_only=True)
class QFedAvg(QFFL):
    r"""q-FFL: losses count by their (q+1)-th power.

    $$\min_\theta \frac{1}{q+1} \sum_i p_i f_i^{q+1}(\theta), \qquad w_i = \frac{p_i L F_i^q}{\sum_j p_j h_j}, \quad
      h_j = q F_j^{q-1} L^2 \|\Delta_j\|^2 + L F_j^q, \quad L = 1/\eta$$ (paper, eq. 2.7).

    q = 0 is FedAvg, q to infinity AFL. The weights sum to less than 1: the step is damped, the more the more local
    steps a client takes. The paper's code and the first one leave p_i out (`weighting="none"`: the objective is then
    that of equal p); the first one samples clients by p_i instead. The first one adds 1e-10 to losses; the paper's code
    nothing.

    Args:
        q: the power. The paper tries 0.1, 1 and 5.
        weighting: "samples" as in the objective, "none" as in both codes.
        placement: "server" as above; "client" differentiates $\ell^{q+1}/(q+1)$ of each batch and averages by p_i.
        damping: False lets the weights sum to 1; norms of updates are then not needed.
        loss_floor: added to losses, since $F^{q-1}$ has no value at 0 for q < 1.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0], deltas=[[1, 0], [0, 1], [-1, 1]])
    >>> QFedAvg(q=1.0).weigh(cohort, {})[0]
    tensor([0.0193, 0.0232, 0.0309], dtype=torch.float64)

    References:
        T. Li, M. Sanjabi, A. Beirami, V. Smith, Fair Resource Allocation in Federated Learning, ICLR 2020.
    """

    placement: Literal["server", "client"] = "server"
    damping: bool = True

    presets: ClassVar[Presets] = {
        "paper": {"weighting": "none", "loss_floor": 0.0, "damping": True, "placement": "server"},
        "original": {"weighting": "none", "loss_floor": 1e-10, "damping": True, "placement": "server"},
    }
    advice: ClassVar[Advice | None] = Advice(
        optimises="The (q+1)-th powers of the losses.",
        tune="q; local.lr, which also sets L.",
        epochs="Steps are damped the more, the more local steps there are.",
        participation="Fine.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"q": (0.1, 1.0, 5.0)}

    @property
    def needs(self) -> Needs:
        if self.q == 0 or self.placement == "client":
            return Needs.NOTHING
        return Needs.LOSS | Needs.NORMS if self.damping else Needs.LOSS

    @property
    def objective(self) -> Objective | None:
        return None if self.q == 0 or self.placement == "server" else self._power

    def _power(self, batch_loss: Tensor, order: Order) -> Tensor:
        return batch_loss.clamp(min=0) ** (self.q + 1) / (self.q + 1)

    def prior(self, cohort: Cohort, state: State) -> Tensor | None:
        return self.fair_average(cohort)

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        if self.placement == "client":
            return cohort.shares(self.weighting), state
        if Needs.NORMS not in self.needs:
            return self.fair_average(cohort), state
        assert cohort.norm2 is not None
        return self.fair_average(cohort, turn=cohort.norm2 / cohort.lr), state

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        return {"damping": 1 - float(weights.sum())}
