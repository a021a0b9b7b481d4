"""FedMGDA+ (Hu, Shaloudegi, Zhang, Yu, 2022)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Needs, Presets, State, register
from propfair.algorithms.solvers import min_norm_weights, unit_gram
from propfair.errors import ConfigError


@register("fedmgda+")
@dataclass(frozen=True, kw_only=True)
class FedMGDAPlus(Algorithm):
    r"""A common descent direction: the shortest convex combination of the normalised updates.

    $$\lambda = \arg\min_{\lambda \in \Delta,\ |\lambda_i - c_i| \le \epsilon}
      \Big\|\sum_i \lambda_i \frac{\Delta_i}{\|\Delta_i\|}\Big\|^2, \qquad
      w_i = \frac{\eta_g \lambda_i}{\|\Delta_i\|}$$ (named in section 2 and run in Appendix D.2 of the paper).

    epsilon = 0 averages the normalised updates; epsilon = 1 is MGDA on them. Each round moves by at most eta_g. The
    paper fixes eta_g = 1; the first one decays it every 100 rounds, or takes the median norm of the updates. A client
    that sends a zero update is at its optimum: it is left out by default, where the paper's code divides by zero.

    Args:
        epsilon: half-width of the box around c. The paper tries 0.05, 0.1 and 0.5.
        centre: c, "uniform" (1/K) or "samples" (p).
        global_lr: eta_g, a number or "median_norm".
        decay: factor on eta_g after every 100 rounds.
        zero_update: "drop" clients with a zero update, or "stop" in such a round, for then no direction improves all.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], deltas=[[1, 0], [0, 1], [-1, 1]])
    >>> FedMGDAPlus(epsilon=0.1).weigh(cohort, {})[0]
    tensor([0.4317, 0.2333, 0.2369], dtype=torch.float64)

    References:
        Z. Hu, K. Shaloudegi, G. Zhang, Y. Yu, Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022.
        J.-A. Désidéri, Multiple-Gradient Descent Algorithm, Comptes Rendus Mathématique 2012.
    """

    epsilon: float = 0.1
    centre: Literal["uniform", "samples"] = "uniform"
    global_lr: float | Literal["median_norm"] = 1.0
    decay: float = 1.0
    zero_update: Literal["drop", "stop"] = "drop"

    presets: ClassVar[Presets] = {
        "paper": {"centre": "uniform", "global_lr": 1.0, "decay": 1.0},
        "original": {"centre": "uniform", "global_lr": "median_norm"},
    }
    advice: ClassVar[Advice | None] = Advice(
        optimises="Nothing fixed: each step is to help every client.",
        tune="epsilon; global_lr, the length of a step.",
        epochs="An update stands for a gradient: the promise holds for few local steps.",
        participation="Helps those present.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"epsilon": (0.05, 0.1, 0.5)}

    @property
    def needs(self) -> Needs:
        return Needs.GRAM

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise ConfigError(f"epsilon must be in [0, 1]; got epsilon={self.epsilon}. Use 0 for equal weights.")
        if self.global_lr != "median_norm" and not (math.isfinite(self.global_lr) and self.global_lr > 0):
            raise ConfigError(f"global_lr must be a positive number or 'median_norm'; got global_lr={self.global_lr}")
        if not 0 < self.decay <= 1:
            raise ConfigError(f"decay must be in (0, 1]; got decay={self.decay}. Use decay=1 for a constant rate.")

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        assert cohort.gram is not None
        moving, cosines, norm = unit_gram(cohort.gram)
        weights = torch.zeros_like(cohort.share)
        if len(moving) == 0 or (self.zero_update == "stop" and len(moving) < len(cohort)):
            return weights, state
        centre = cohort.shares(self.centre)[moving]
        lam = min_norm_weights(cosines, centre / centre.sum(), self.epsilon)
        rate = float(norm.quantile(0.5)) if self.global_lr == "median_norm" else self.global_lr
        weights[moving] = rate * self.decay ** ((cohort.round - 1) // 100) * lam / norm
        return weights, state

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        assert cohort.gram is not None
        return {"direction_norm": float((weights @ cohort.gram @ weights).clamp(min=0).sqrt())}
