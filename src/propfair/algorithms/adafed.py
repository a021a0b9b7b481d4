"""AdaFed (Hamidi, Yang, 2024)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Needs, Presets, State, register
from propfair.algorithms.solvers import nonnegative_minimisers, stationary, unit_gram
from propfair.errors import ConfigError

_INDEPENDENT = 1e-8  # relative residual up to which the progress that is asked for can be had


@register("adafed")
@dataclass(frozen=True, kw_only=True)
class AdaFed(Algorithm):
    r"""A common descent direction on which every client gains in proportion to a power of its loss.

    $$\tilde\Delta_k = \frac{\Delta_k - \sum_{i<k} a_{ki} \tilde\Delta_i}{f_k^\gamma - \sum_{i<k} a_{ki}}, \quad
      a_{ki} = \frac{\langle \Delta_k, \tilde\Delta_i \rangle}{\|\tilde\Delta_i\|^2}, \qquad
      d = \sum_k \frac{\tilde\Delta_k / \|\tilde\Delta_k\|^2}{\sum_j 1 / \|\tilde\Delta_j\|^2}$$
    (first paper, eqs. 5 to 13).

    This d is the only combination of the updates with $\langle \Delta_k, d \rangle = \|d\|^2 f_k^\gamma$ for all k: the
    weights are $w = G^{-1} f^\gamma / (f^\gamma \cdot G^{-1} f^\gamma)$ for the Gram matrix G, and no order of clients
    matters. So they are computed here, without the divisions above that can fail. The larger gamma, the more those gain
    that are worst off; gamma = 0 gives all the same progress.

    Not in the first paper, which takes the updates as independent: where they are not, such as with more clients than
    parameters, d is the shortest convex combination of the $\Delta_k / f_k^\gamma$. It still helps all clients, and
    nothing moves where none does. Losses are divided by their mean, so that the length of a step does not depend on the
    unit of the loss; `scale="absolute"` takes them as they are.

    Args:
        gamma: the power of the loss, >= 0. The first paper tries values up to 5.
        scale: "relative" losses or "absolute" ones.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0], deltas=[[1, 0, 0], [0, 1, 0], [-1, 1, 1]])
    >>> AdaFed(gamma=1.0).weigh(cohort, {})[0]
    tensor([ 0.6667, -0.1667,  0.5000], dtype=torch.float64)

    References:
        S. M. Hamidi, E.-H. Yang, AdaFed: Fair Federated Learning via Adaptive Common Descent Direction, TMLR 2024.
    """

    gamma: float = 1.0
    scale: Literal["relative", "absolute"] = "relative"

    presets: ClassVar[Presets] = {"original": {"scale": "absolute"}}
    advice: ClassVar[Advice | None] = Advice(
        optimises="Nothing fixed: progress in proportion to a power of the loss.",
        tune="gamma.",
        epochs="An update stands for a gradient: the promise holds for few local steps.",
        participation="Among those present.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"gamma": (0.5, 1.0, 2.0)}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS | Needs.GRAM

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gamma) and self.gamma >= 0):
            raise ConfigError(f"gamma must be >= 0; got gamma={self.gamma}. Use gamma=0 for equal progress of all.")

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        assert cohort.gram is not None
        moving, cosines, norm = unit_gram(cohort.gram)
        weights = torch.zeros_like(cohort.share)
        if len(moving) == 0:
            return weights, state
        loss = cohort.loss[moving].clamp(min=1e-10)
        if self.scale == "relative":
            loss = loss / loss.mean()
        wanted = loss**self.gamma / norm  # of the progress along each unit vector
        weights[moving] = _common_descent(cosines, wanted) / norm
        return weights, state


def _common_descent(cosines: Tensor, wanted: Tensor) -> Tensor:
    """Weights x of unit vectors with C x = |d|^2 wanted, or else C x >= |d|^2 wanted, for d = sum x_k u_k."""
    x: Tensor = torch.linalg.pinv(cosines, rtol=1e-12, hermitian=True) @ wanted
    if (cosines @ x - wanted).norm() > _INDEPENDENT * wanted.norm():
        if stationary(cosines):
            return torch.zeros_like(wanted)
        ridge = 1e-10 * torch.eye(len(wanted), dtype=wanted.dtype)
        x = nonnegative_minimisers(cosines + ridge, -wanted.unsqueeze(0) / wanted.max()).squeeze(0)
    return x / (wanted @ x)
