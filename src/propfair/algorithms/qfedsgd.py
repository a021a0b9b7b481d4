"""q-FFL by q-FedSGD (Li, Sanjabi, Beirami, Smith, 2020)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from propfair.algorithms.base import Advice, Cohort, Needs, Presets, State, register
from propfair.algorithms.qffl import QFFL
from propfair.errors import ConfigError


@register("q-fedsgd")
@dataclass(frozen=True, kw_only=True)
class QFedSGD(QFFL):
    r"""q-FFL from gradients rather than from trained models.

    $$\theta \leftarrow \theta - \frac{\sum_i p_i F_i^q g_i}{\sum_j p_j h_j}, \qquad
      h_j = q F_j^{q-1} \|g_j\|^2 + L F_j^q$$ for the objective of q-FedAvg (paper, eq. 2.7).

    g_i is the update over minus the learning rate and the number of local steps: the gradient, if clients take one
    full-batch step (`steps=1` and a batch size as large as the data, what the method is meant for); else the mean
    gradient on their way. With one step and L = 1/lr it equals q-FedAvg.

    Args:
        q: the power.
        weighting: "samples" as in the objective; "none" as in the first paper's code, which samples by p_i instead.
        L: the Lipschitz constant of the gradients; None: 1 / learning rate.
        static_step: step by $\eta \sum_i p_i F_i^q g_i$ instead.
        loss_floor: added to losses, since $F^{q-1}$ has no value at 0 for q < 1.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0], deltas=[[1, 0], [0, 1], [-1, 1]])
    >>> QFedSGD(q=1.0, L=20.0).weigh(cohort, {})[0]
    tensor([0.0180, 0.0216, 0.0288], dtype=torch.float64)

    References:
        T. Li, M. Sanjabi, A. Beirami, V. Smith, Fair Resource Allocation in Federated Learning, ICLR 2020.
    """

    L: float | None = None
    static_step: bool = False

    presets: ClassVar[Presets] = {"original": {"weighting": "none", "loss_floor": 1e-10, "static_step": False}}
    advice: ClassVar[Advice | None] = Advice(
        optimises="The (q+1)-th powers of the losses.",
        tune="q and L.",
        epochs="Meant for one full-batch step a round.",
        participation="Fine.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"q": (0.1, 1.0, 5.0)}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS if self.static_step else Needs.LOSS | Needs.NORMS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.L is not None and not (math.isfinite(self.L) and self.L > 0):
            raise ConfigError(f"L must be a positive number, or None for 1/lr; got L={self.L}")

    def prior(self, cohort: Cohort, state: State) -> Tensor | None:
        return self.fair_average(cohort) / cohort.num_steps

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        if self.static_step:
            return cohort.shares(self.weighting) * self.floored(cohort) ** self.q / cohort.num_steps, state
        assert cohort.norm2 is not None
        rate = 1.0 if self.L is None else cohort.lr * self.L  # eta L
        turn = cohort.norm2 / (cohort.num_steps.square() * cohort.lr * rate)
        return self.fair_average(cohort, turn) / (cohort.num_steps * rate), state
