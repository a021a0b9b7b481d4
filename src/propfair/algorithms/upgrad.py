"""UPGrad (Quinton, Rey, 2024) on the updates of clients."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Needs, Presets, State, register
from propfair.algorithms.solvers import dual_cone_weights, unit_gram


@register("upgrad")
@dataclass(frozen=True, kw_only=True)
class UPGrad(Algorithm):
    r"""Every update is turned until it conflicts with no other, by as little as possible; then they are averaged.

    $$d = \sum_i p_i \Pi(\Delta_i), \qquad
      \Pi(x) = \arg\min \{\|x - y\| : \langle y, \Delta_j \rangle \ge 0 \text{ for all } j\}$$
    (first paper, eqs. 2 and 3).

    FedFV projects off one conflict after the other and depends on their order; here all are met at once. Where nothing
    conflicts this is FedAvg, and where no direction helps all clients nothing moves. The first paper is about the
    gradients of tasks, with equal weights (`preset="original"`); it has no clients, and the paper does not run it. The
    K projections solve a quadratic program with K unknowns each: about a second for 100 clients.

    Args:
        weighting: p_i in the average, "samples" or, as in the first paper, "uniform".

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], deltas=[[1, 0], [0, 1], [-1, 1]])
    >>> UPGrad().weigh(cohort, {})[0]
    tensor([0.7000, 0.3000, 0.4500], dtype=torch.float64)

    References:
        P. Quinton, V. Rey, Jacobian Descent for Multi-Objective Optimization, arXiv:2406.16232, 2024.
    """

    weighting: Literal["samples", "uniform"] = "samples"

    presets: ClassVar[Presets] = {"original": {"weighting": "uniform"}}
    advice: ClassVar[Advice | None] = Advice(
        optimises="The mean loss, by steps that harm no client.",
        tune="Nothing.",
        epochs="An update stands for a gradient: the promise holds for few local steps.",
        participation="Harms none of those present.",
    )

    @property
    def needs(self) -> Needs:
        return Needs.GRAM

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        assert cohort.gram is not None
        moving, cosines, norm = unit_gram(cohort.gram)
        weights = torch.zeros_like(cohort.share)
        if len(moving):
            weights[moving] = (cohort.shares(self.weighting)[moving] * norm) @ dual_cone_weights(cosines) / norm
        return weights, state

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        return {"turned": float((weights - cohort.shares(self.weighting)).abs().sum())}
