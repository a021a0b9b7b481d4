"""GIFAIR-FL (Yue, Nouiehed, Al Kontar, 2022)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import (
    Advice,
    Algorithm,
    ClientId,
    Cohort,
    MakeOrder,
    Needs,
    Order,
    Presets,
    State,
    register,
)
from propfair.errors import ConfigError


@register("gifair")
@dataclass(frozen=True, kw_only=True)
class GIFAIR(Algorithm):
    r"""A penalty on the spread of losses between clients, or between groups of them.

    $$\min_\theta \sum_i p_i f_i + \lambda \sum_{a < b} |L_a - L_b|, \qquad w_i = p_i + \lambda \frac{r_i}{|A_i|}, \quad
      r_i = \sum_{b} \operatorname{sign}(L_{A_i} - L_b)$$

    L_a is the mean loss of group a, A_i the group of client i, d the number of groups in the cohort; lambda = coeff
    lambda_max, and lambda_max = min_i p_i |A_i| / (d - 1) keeps all weights >= 0. By default each client is its own
    group, as in the paper (Appendix D.2). The first paper scales the client's learning rate by w_i / p_i instead, from
    the loss that each client had last, and averages as FedAvg does (`side="client"`); with one full-batch step this is
    the same. Its code samples clients by p_i and averages uniformly (`preset="original"`), and its losses are those
    seen while training (`loss_source="running_mean"` of the rounds).

    Args:
        coeff: the share of lambda_max to use, in [0, 1]. The paper tries 0.1, 0.5 and 0.9; which is best varies.
        side: "server", or "client".
        groups: the group of each of the n clients, as numbers from 0; None: each its own.
        ties: "sign": equal losses get equal ranks; "argsort": the smaller client number ranks lower.
        weighting: of the average for side="client": "samples" or "uniform".

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])
    >>> GIFAIR(coeff=0.5).weigh(cohort, {})[0]
    tensor([0.4000, 0.3000, 0.3000], dtype=torch.float64)

    References:
        X. Yue, M. Nouiehed, R. Al Kontar, GIFAIR-FL: A Framework for Group and Individual Fairness in Federated
        Learning, INFORMS Journal on Data Science 2022.
    """

    coeff: float = 0.5
    side: Literal["server", "client"] = "server"
    groups: tuple[int, ...] | None = None
    ties: Literal["sign", "argsort"] = "sign"
    weighting: Literal["samples", "uniform"] = "samples"

    presets: ClassVar[Presets] = {
        "paper": {"side": "server", "ties": "argsort", "weighting": "samples"},
        "original": {"side": "client", "coeff": 0.5, "weighting": "uniform"},
    }
    advice: ClassVar[Advice | None] = Advice(
        optimises="The mean loss plus the differences between losses of clients or groups.",
        tune="coeff.",
        epochs="Keeps its weights; clients drift as in FedAvg.",
        participation="Ranks are among those present.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"coeff": (0.1, 0.5, 0.9)}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS

    def __post_init__(self) -> None:
        if not 0 <= self.coeff <= 1:
            raise ConfigError(f"coeff must be in [0, 1], a share of lambda_max; got coeff={self.coeff}. Try 0.5.")
        if self.side == "server" and self.weighting == "uniform":
            raise ConfigError(
                "weighting='uniform' goes with side='client'; got side='server'. Use weighting='samples'."
            )

    def init(self, share: Tensor) -> State:
        if self.groups is not None and len(self.groups) != len(share):
            raise ConfigError(f"groups must have one entry for each of {len(share)} clients; got {len(self.groups)}")
        if self.side == "server":
            return {}
        return {"share": share, "loss": torch.full_like(share, torch.nan), "lr_scale": torch.ones_like(share)}

    @property
    def order(self) -> MakeOrder | None:
        return None if self.side == "server" else self._scale_lr

    def _scale_lr(self, client: ClientId, state: State) -> Order:
        return Order(lr_scale=float(state["lr_scale"][client]))

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        clients = torch.tensor(cohort.clients)
        if self.side == "server":
            return cohort.share + self._shift(clients, cohort.share, cohort.loss), state
        loss = state["loss"].index_put((clients,), cohort.loss)
        seen = loss.isfinite().nonzero().flatten()
        shift = self._shift(seen, state["share"][seen], loss[seen])
        lr_scale = torch.ones_like(loss).index_put((seen,), 1 + shift / state["share"][seen])
        return cohort.shares(self.weighting), {**state, "loss": loss, "lr_scale": lr_scale}

    def _shift(self, clients: Tensor, share: Tensor, loss: Tensor) -> Tensor:
        """The product lambda r_i / |A_i| for these clients."""
        groups = clients if self.groups is None else torch.tensor(self.groups)[clients]
        names, member = torch.unique(groups, return_inverse=True)
        size = torch.bincount(member).double()
        mean = torch.zeros_like(size).index_add(0, member, loss) / size
        if len(names) == 1:
            return torch.zeros_like(share)
        lam = self.coeff * (share * size[member]).min() / (len(names) - 1)
        return lam * (self._ranks(mean) / size)[member]

    def _ranks(self, values: Tensor) -> Tensor:
        """How many are smaller minus how many are larger."""
        ordered = values.sort(stable=True)
        if self.ties == "argsort":
            places = torch.empty_like(values).index_put((ordered.indices,), torch.arange(len(values)).double())
            return 2 * places - (len(values) - 1)
        below = torch.searchsorted(ordered.values, values)
        not_above = torch.searchsorted(ordered.values, values, right=True)
        return (below + not_above - len(values)).double()
