"""PropFair (Zhang, Malekmohammadi, Chen, Yu, 2023): the algorithm of the paper."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import (
    Algorithm,
    ClientId,
    Cohort,
    MakeOrder,
    Objective,
    Order,
    Presets,
    State,
    as_floats,
    register,
)
from propfair.algorithms.transforms import Variant, check_baseline, negative_utility, slope
from propfair.errors import ConfigError

AUTO_START, AUTO_LEAST, AUTO_FACTOR = 10.0, 2.0, 0.9  # the schedule of M="auto"


@register("propfair")
@dataclass(frozen=True, kw_only=True)
class PropFair(Algorithm):
    r"""Proportional fairness: maximise the Nash product of the clients' utilities M - loss.

    $$\min_\theta -\sum_i p_i \log_{[\epsilon]}(M - f_i(\theta)), \qquad w_i = p_i$$ (paper, eq. 3.8, Algorithm 1).

    The transform is applied to the mean loss of each batch on the client; the server averages as FedAvg does.
    The printed objective is `variant="huber"`. The paper's experiments, and so the default, use `"practical"`.
    epsilon = M is FedAvg with learning rate lr/M, and a large M comes close to it.

    One M for each client makes it Nash bargaining with a disagreement point: M_i is the loss of client i if nobody
    agrees, say that of its local-only model; or the nadir point, its worst loss under a model trained for another
    client alone (eqs. F.3 and F.4, `propfair.fairness.nadir_point`).

    `M="auto"` makes a schedule of the paper's rule of thumb, to start with M = 10 and to reduce it: whenever no client
    reports a batch past the threshold M - epsilon, the next round has 0.9 M, but never under 2, the least M that the
    paper tries. It looks at nothing but the sum over clients of the share of such batches.

    Args:
        M: the loss at which a client has no utility left; above the losses to expect, yet as low as training allows.
            One number, or one for each client, or "auto".
        epsilon: the utility below which the logarithm goes on as a straight line.
        variant: the slope of that line, 1/M ("practical") or 1/epsilon ("huber").

    >>> import torch
    >>> PropFair(M=2.0).watch(torch.tensor([0.5, 1.0, 2.0]), Order())["past_threshold"]
    tensor([0., 0., 1.])
    >>> PropFair(M=(2.0, 3.0, 4.0)).order(1, {}).numbers["M"]
    3.0
    >>> PropFair(M="auto").order(1, PropFair(M="auto").init(torch.ones(3))).numbers["M"]
    10.0

    References:
        G. Zhang, S. Malekmohammadi, X. Chen, Y. Yu, Proportional Fairness in Federated Learning, TMLR 2023.
    """

    M: float | tuple[float, ...] | Literal["auto"] = 5.0
    epsilon: float = 0.2
    variant: Variant = "practical"

    presets: ClassVar[Presets] = {
        "paper": {"variant": "practical", "epsilon": 0.2},
        "original": {"variant": "huber", "epsilon": 0.2},
    }

    @property
    def fairness(self) -> float:
        """The alpha of alpha-fairness."""
        return 1.0

    def __post_init__(self) -> None:
        if self.M == ():
            raise ConfigError("M must be one number, or one for each client; got M=(). Try M=5.")
        baselines = self.M if isinstance(self.M, tuple) else (AUTO_LEAST if self.M == "auto" else self.M,)
        for M in baselines:
            check_baseline(M, self.epsilon)

    def init(self, share: Tensor) -> State:
        if isinstance(self.M, tuple) and len(self.M) != len(share):
            raise ConfigError(
                f"M must be one number, or one for each of the {len(share)} clients; got {len(self.M)} numbers"
            )
        return {"M": as_floats([AUTO_START])} if self.M == "auto" else {}

    @property
    def order(self) -> MakeOrder | None:
        return None if isinstance(self.M, (int, float)) else self._tell_baseline

    def _tell_baseline(self, client: ClientId, state: State) -> Order:
        return Order(numbers={"M": self.M[client] if isinstance(self.M, tuple) else float(state["M"])})

    def learn(self, cohort: Cohort, state: State) -> State:
        if self.M != "auto" or float(cohort.observed["past_threshold"].sum()) > 0:
            return state
        return {"M": torch.clamp(AUTO_FACTOR * state["M"], min=AUTO_LEAST)}

    @property
    def objective(self) -> Objective | None:
        return self._negative_utility

    def _negative_utility(self, batch_loss: Tensor, order: Order) -> Tensor:
        return negative_utility(batch_loss, self._baseline(order), self.epsilon, self.variant, self.fairness)

    def watch(self, batch_loss: Tensor, order: Order) -> dict[str, Tensor]:
        M = self._baseline(order)
        return {
            "past_threshold": (batch_loss > M - self.epsilon).float(),
            "slope": slope(batch_loss, M, self.epsilon, self.variant, self.fairness),
            **({"M": torch.zeros_like(batch_loss) + M} if self.M == "auto" else {}),
        }

    def _baseline(self, order: Order) -> float:
        return self.M if isinstance(self.M, (int, float)) else order.numbers["M"]
