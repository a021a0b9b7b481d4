"""FedFV (Wang, Fan, Qi, Wen, Wang, Yu, 2021)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Algorithm, Cohort, Needs, Presets, State, register
from propfair.errors import ConfigError


@register("fedfv")
@dataclass(frozen=True, kw_only=True)
class FedFV(Algorithm):
    r"""Conflicts between updates are projected away before they are averaged.

    $$\Delta_i \leftarrow \Delta_i - \frac{\langle \Delta_i, \Delta_j \rangle}{\|\Delta_j\|^2} \Delta_j \quad
      \text{if } \langle \Delta_i, \Delta_j \rangle < 0$$

    for j in order of increasing loss, and for all i but the alpha share with the largest losses. The average is then
    projected off the sum of those updates that it conflicts with, of clients last seen tau, ..., 1 rounds ago, and gets
    back the length of the plain average.

    Not in the paper. The authors' code counts the rounds from tau - 1 to 0, so that its tau = 1 looks at the current
    clients again and at nobody else; here tau = 1 is the round before. It averages uniformly. Equal losses are ordered
    by client. If nothing is left after projection, nothing moves.

    Args:
        alpha: share of clients, the worst off, whose updates stay as they are.
        tau: for how many rounds the server remembers the update of an absent client.
        weighting: of the average, "samples" or "uniform".

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0], deltas=[[1, 0], [0, 1], [-1, 1]])
    >>> FedFV(alpha=0.1, tau=0, weighting="uniform").weigh(cohort, {})[0]
    tensor([0.2615, 0.2615, 0.3922], dtype=torch.float64)

    References:
        Z. Wang, X. Fan, J. Qi, C. Wen, C. Wang, R. Yu, Federated Learning with Fair Averaging, IJCAI 2021.
    """

    alpha: float = 0.1
    tau: int = 1
    weighting: Literal["samples", "uniform"] = "samples"

    presets: ClassVar[Presets] = {"original": {"alpha": 0.1, "tau": 1, "weighting": "uniform"}}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS | Needs.GRAM

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha must be in [0, 1], a share of the clients; got alpha={self.alpha}. Try 0.1.")
        if self.tau < 0:
            raise ConfigError(f"tau must be >= 0, a number of rounds; got tau={self.tau}. Try tau=1.")

    def init(self, share: Tensor) -> State:
        return {"num_clients": torch.tensor(len(share))}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        gram = cohort.gram
        assert gram is not None
        share = cohort.shares(self.weighting)
        order = sorted(range(len(cohort)), key=lambda k: (float(cohort.loss[k]), cohort.clients[k]))
        projected = torch.eye(len(cohort), dtype=gram.dtype)  # row i: update i as a combination of all updates
        fixed = torch.zeros(len(cohort), dtype=torch.bool)
        fixed[order[math.ceil((len(order) - 1) * (1 - self.alpha)) :] if self.alpha > 0 else []] = True
        for j in order:
            dots = projected @ gram[:, j]
            conflict = (dots < 0) & ~fixed & (gram[j, j] > 0)
            conflict[j] = False
            projected[:, j] -= torch.where(conflict, dots / gram[j, j], 0.0)
        weights = share @ projected
        length2, wanted2 = weights @ gram @ weights, share @ gram @ share
        if length2 <= 1e-24 * gram.diagonal().max():
            return torch.zeros_like(share), state
        return weights * (wanted2.clamp(min=0) / length2).sqrt(), state

    def amend(self, update: Tensor, deltas: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        now, here = cohort.round, torch.tensor(cohort.clients)
        past = state.get("past_updates", deltas[:0])
        clients, rounds = state.get("past_clients", here[:0]), state.get("past_rounds", here[:0])
        absent = ~torch.isin(clients, here)
        revised = update
        for age in range(self.tau, 0, -1):
            candidates = past[absent & (rounds == now - age)]
            conflict = candidates[candidates @ revised < 0].sum(0)
            if conflict @ revised < 0:
                revised = revised - conflict * ((conflict @ revised) / (conflict @ conflict))
        length = revised.norm()
        revised = revised * (update.norm() / length) if length > 0 else revised
        if self.tau == 0 or len(cohort) == int(state["num_clients"]):  # nobody is absent: nothing to remember
            return revised, {"num_clients": state["num_clients"]}
        keep = absent & (rounds > now - self.tau)
        return revised, {
            **state,
            "past_updates": torch.cat([past[keep], deltas]),
            "past_clients": torch.cat([clients[keep], here]),
            "past_rounds": torch.cat([rounds[keep], torch.full_like(here, now)]),
        }
