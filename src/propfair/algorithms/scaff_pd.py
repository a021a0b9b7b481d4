"""Scaff-PD (Yu, Karimireddy, Ma, Jordan, 2023)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Drift, Needs, State, effective_clients, register
from propfair.algorithms.solvers import project_simplex
from propfair.errors import ConfigError


@register("scaff-pd")
@dataclass(frozen=True, kw_only=True)
class ScaffPD(Algorithm):
    r"""A penalised worst mixture of clients counts, its ascent looks ahead, and local steps are those of SCAFFOLD.

    $$\min_\theta \max_{\lambda \in \Delta} \sum_i \lambda_i f_i(\theta) - \frac{\rho n}{2} \|\lambda - \tfrac1n\|^2,$$
    $$\lambda_{t+1} = \arg\max_{\lambda \in \Delta} \langle \lambda, (1 + \vartheta) f_t - \vartheta f_{t-1} \rangle
      - \frac{\rho n}{2} \|\lambda - \tfrac1n\|^2 - \frac{1}{2 \sigma} \|\lambda - \lambda_t\|^2$$

    theta = 0 and rho = 0 are AFL from equal weights, with corrected local steps; a large rho averages all clients
    equally. The corrections have the weights lambda, see `scaffold`.

    Differs from the first paper: it asks clients for fresh gradients before the local steps of every round, which is a
    second exchange of messages; here they are the mean gradients of the round before, with the lambda of then. Its
    steps change from round to round as the analysis wants; here they stay. With s of n clients taking part, sigma is
    multiplied by n/s for those who do, as for AFL. Not in the paper.

    Args:
        sigma: step of the weights.
        theta: how far losses are extrapolated, in [0, 1].
        rho: the penalty on unequal weights.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])
    >>> ScaffPD(sigma=0.1).weigh(cohort, ScaffPD().init(cohort.share))[0]
    tensor([0.2686, 0.3172, 0.4142], dtype=torch.float64)

    References:
        Y. Yu, S. P. Karimireddy, Y. Ma, M. I. Jordan, Scaff-PD: Communication Efficient Fair and Robust Federated
        Learning, arXiv:2307.13381, 2023.
    """

    sigma: float = 0.1
    theta: float = 1.0
    rho: float = 0.1

    advice: ClassVar[Advice | None] = Advice(
        optimises="A penalised worst mixture of clients.",
        tune="sigma and rho.",
        epochs="Made for it: local steps are corrected.",
        participation="Corrections of absent clients grow old.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"sigma": (0.01, 0.1, 1.0)}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS

    @property
    def drift(self) -> Drift | None:
        return Drift(variates="scaffold")

    def __post_init__(self) -> None:
        for name, value in (("sigma", self.sigma), ("rho", self.rho)):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} must be >= 0; got {name}={value}. Try {name}=0.1.")
        if not 0 <= self.theta <= 1:
            raise ConfigError(f"theta must be in [0, 1]; got theta={self.theta}. Use theta=0 for no extrapolation.")

    def init(self, share: Tensor) -> State:
        return {"lambda": torch.full_like(share, 1 / len(share)), "last_loss": torch.full_like(share, torch.nan)}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        old, clients = state["lambda"], torch.tensor(cohort.clients)
        last = state["last_loss"][clients]
        ahead = cohort.loss + self.theta * (cohort.loss - torch.where(last.isnan(), cohort.loss, last))
        rise = torch.zeros_like(old).index_put((clients,), self.sigma * len(old) / len(cohort) * ahead)
        pull = self.sigma * self.rho
        new = project_simplex((old + rise + pull) / (1 + pull * len(old)))
        used = new[clients]
        seen = state["last_loss"].index_put((clients,), cohort.loss)
        return used / used.sum() if used.sum() > 0 else cohort.share, {"lambda": new, "last_loss": seen}

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        return {"lambda_max": float(state["lambda"].max()), "lambda_effective": effective_clients(state["lambda"])}
