"""AAggFF, adaptive aggregation for fair federated learning (Hahn, Kim, Lee, 2024)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Needs, State, effective_clients, register
from propfair.algorithms.solvers import simplex_minimiser


@register("aaggff")
@dataclass(frozen=True, kw_only=True)
class AAggFF(Algorithm):
    r"""Weights as a portfolio that is invested in losses: an online learner decides anew in each round.

    $$\ell_t(\lambda) = -\log(1 + \langle \lambda, r \rangle), \qquad r_i = c\, \mathrm{CDF}(f_i / \bar f), \qquad
      g = \nabla \ell_t(\lambda_t), \qquad w = \lambda_{t+1}$$

    `setting="silo"`, for a few clients that all take part: an online Newton step,
    $\lambda_{t+1} = \arg\min_\Delta \langle \sum g, \lambda \rangle + \frac a2 \|\lambda\|^2 + \frac b2 \lambda^\top
    (aI + \sum g g^\top) \lambda$ with a = 4, b = n/4 and c = 1/n.

    `setting="device"`, for a few of many clients at a time: linearised follow-the-regularised-leader,
    $\lambda_{t+1} \propto \exp(-\frac{\sqrt{\log n / (t+1)}}{2 + C} \sum g)$ with c = C, the share of clients that take
    part. r is doubly robust: the mean over those present, plus (r_i - mean)/C for each of them.

    The state learns from the losses of the model received, before it weighs the round, as in the authors' code. Differs
    from that code: it leaves the mean out for clients that are present, starts at weights that sum to n C instead of 1,
    and takes erfc for erf in the normal CDF. Not in the paper. In a silo, who is absent counts as average.

    Args:
        setting: "silo" or "device".
        cdf: how losses over their mean become numbers in [0, 1]. "weibull" soonest takes all large losses for equal,
            "frechet" last. The authors choose it anew for each data set.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])
    >>> AAggFF().weigh(cohort, AAggFF().init(cohort.share))[0]
    tensor([0.3252, 0.3331, 0.3417], dtype=torch.float64)

    References:
        S.-J. Hahn, G.-S. Kim, J. Lee, Pursuing Overall Welfare in Federated Learning through Sequential Decision
        Making, ICML 2024.
    """

    setting: Literal["silo", "device"] = "silo"
    cdf: Literal["weibull", "exponential", "frechet", "normal", "gumbel", "logistic"] = "exponential"

    advice: ClassVar[Advice | None] = Advice(
        optimises="The growth of a portfolio invested in losses, which shifts weight to the worst off.",
        tune="cdf.",
        epochs="Keeps its weights; clients drift as in FedAvg.",
        participation='setting="device" is made for it.',
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"cdf": ("weibull", "exponential", "frechet")}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS

    def init(self, share: Tensor) -> State:
        state = {"lambda": torch.full_like(share, 1 / len(share)), "gradient": torch.zeros_like(share)}
        if self.setting == "silo":
            state["curvature"] = torch.zeros(len(share), len(share), dtype=share.dtype)
        return state

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        old, clients = state["lambda"], torch.tensor(cohort.clients)
        total, part = len(old), len(cohort) / len(old)
        mean = cohort.loss.mean()
        response = self._bounded(cohort.loss / mean if mean > 0 else torch.ones_like(cohort.loss))
        state = dict(state)
        if self.setting == "silo":
            seen = response / total
            filled = torch.full_like(old, float(seen.mean())).index_put((clients,), seen)
            gradient = -filled / (1 + old @ filled)
            state["gradient"] = state["gradient"] + gradient
            state["curvature"] = state["curvature"] + gradient.outer(gradient)
            one = torch.eye(total, dtype=old.dtype)
            quadratic = 4 * one + total / 4 * (4 * one + state["curvature"])
            state["lambda"] = simplex_minimiser(quadratic, state["gradient"])
        else:
            seen = response * part
            usual = seen.mean()
            excess = torch.zeros_like(old).index_put((clients,), (seen - usual) / part)  # over the mean, unbiased
            gradient = -(usual + excess) / (1 + usual) + usual * (old @ excess) / (1 + usual).square()
            state["gradient"] = state["gradient"] + gradient
            rate = math.sqrt(math.log(total) / (cohort.round + 1)) / (2 + part)
            state["lambda"] = torch.softmax(-rate * state["gradient"], 0)
        used = state["lambda"][clients]
        return used / used.sum() if used.sum() > 0 else cohort.share, state

    def _bounded(self, ratio: Tensor) -> Tensor:
        """The CDF of losses over their mean [K]; its place, if it has one, and its scale are 1."""
        if self.cdf == "normal":
            return 0.5 * (1 + torch.erf((ratio - 1) / math.sqrt(2)))
        if self.cdf == "gumbel":
            return torch.exp(-torch.exp(1 - ratio))
        if self.cdf == "logistic":
            return torch.sigmoid(ratio - 1)
        if self.cdf == "frechet":
            return torch.exp(-1 / ratio)
        return -torch.expm1(-ratio if self.cdf == "exponential" else -ratio.square())

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        return {"lambda_max": float(state["lambda"].max()), "lambda_effective": effective_clients(state["lambda"])}
