"""FedFV (Wang, Fan, Qi, Wen, Wang, Yu, 2021)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Needs, Presets, State, register
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
    advice: ClassVar[Advice | None] = Advice(
        optimises="Nothing fixed: the average after conflicts are projected away.",
        tune="alpha and tau.",
        epochs="An update stands for a gradient: the promise holds for few local steps.",
        participation="Remembers absent clients for tau rounds.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"alpha": (0.1, 0.2, 0.5)}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS | Needs.GRAM

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha must be in [0, 1], a share of the clients; got alpha={self.alpha}. Try 0.1.")
        if not 0 <= self.tau < 2**31:
            raise ConfigError(f"tau must be a number of rounds, 0 or more; got tau={self.tau}. Try tau=1.")

    @property
    def remember(self) -> int:
        return self.tau

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        assert cohort.gram is not None
        K, share = len(cohort), cohort.shares(self.weighting)
        gram, nothing = cohort.gram[:K, :K], 1e-24 * cohort.gram.diagonal()[:K].max()
        weights = share @ self._without_conflicts(cohort, gram)
        length2, wanted2 = weights @ gram @ weights, (share @ gram @ share).clamp(min=0)
        if len(cohort.past) and length2 > nothing:
            gram = cohort.gram
            weights = self._spare_absent(torch.cat([weights, weights.new_zeros(len(cohort.past))]), cohort, gram)
            length2 = weights @ gram @ weights
        if length2 <= nothing:
            return weights.new_zeros(len(cohort.gram)), state
        return weights * (wanted2 / length2).sqrt(), state

    def _without_conflicts(self, cohort: Cohort, gram: Tensor) -> Tensor:
        """Each update without its conflicts with the others of the round, as a combination of all updates: [K, K]."""
        order = sorted(range(len(cohort)), key=lambda k: (float(cohort.loss[k]), cohort.clients[k]))
        projected = torch.eye(len(cohort), dtype=gram.dtype)
        fixed = torch.zeros(len(cohort), dtype=torch.bool)
        fixed[order[math.ceil((len(order) - 1) * (1 - self.alpha)) :] if self.alpha > 0 else []] = True
        for j in order:
            dots = projected @ gram[:, j]
            conflict = (dots < 0) & ~fixed & (gram[j, j] > 0)
            conflict[j] = False
            projected[:, j] -= torch.where(conflict, dots / gram[j, j], 0.0)
        return projected

    def _spare_absent(self, weights: Tensor, cohort: Cohort, gram: Tensor) -> Tensor:
        """The combination `weights` [K + R] without its conflicts with absent clients, the oldest updates first."""
        rounds = torch.tensor([cohort.round] * len(cohort) + list(cohort.past.rounds))
        for past in sorted({number for number in cohort.past.rounds if number >= cohort.round - self.tau}):
            dots = gram @ weights
            conflict = ((rounds == past) & (dots < 0)).to(weights)  # their sum, as a combination
            square = conflict @ gram @ conflict
            if square > 0:
                weights = weights - conflict * (conflict @ dots / square)
        return weights
