"""FairGrad (Ban, Ji, 2024) and Nash-MTL (Navon et al., 2022) on the updates of clients."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Algorithm, Cohort, Needs, Presets, State, register
from propfair.algorithms.solvers import min_norm_weights, nash_weights, unit_gram
from propfair.errors import ConfigError

_STATIONARY = 1e-4  # a convex combination of unit vectors this short leaves no direction in which all improve


@register("fairgrad")
@dataclass(frozen=True, kw_only=True)
class FairGrad(Algorithm):
    r"""An alpha-fair bargain about the progress of a round: PropFair's twin on updates instead of losses.

    $$\max_{\|d\| \le 1} \sum_i p_i\, \phi_\alpha(\langle \Delta_i, d \rangle), \qquad d = \sum_i w_i \Delta_i, \quad
      \sum_j \langle \Delta_i, \Delta_j \rangle w_j \propto (p_i / w_i)^{1/\alpha}$$

    with $\phi_\alpha$ of eq. 2.8 in the paper, which does not run it. alpha = 1 is Nash-MTL, the default; large alpha
    comes close to MGDA. The first papers step along gradients by the learning rate. Updates have a length already, so
    the step here is as long as that of FedAvg. If no direction improves all clients, nothing moves.

    Args:
        alpha: the order of fairness, > 0.
        scale: the length of the step, "average" (that of FedAvg) or "unit" (1, times the server's learning rate).
        weighting: p_i in the bargain, "samples" or, as in the first papers, "uniform".

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], deltas=[[1, 0], [0, 1], [-1, 1]])
    >>> FairGrad().weigh(cohort, {})[0]
    tensor([0.5935, 0.2008, 0.3071], dtype=torch.float64)

    References:
        H. Ban, K. Ji, Fair Resource Allocation in Multi-Task Learning, ICML 2024.
        A. Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022.
    """

    alpha: float = 1.0
    scale: Literal["average", "unit"] = "average"
    weighting: Literal["samples", "uniform"] = "samples"

    presets: ClassVar[Presets] = {"original": {"scale": "unit", "weighting": "uniform"}}

    @property
    def needs(self) -> Needs:
        return Needs.GRAM

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ConfigError(f"alpha must be > 0; got alpha={self.alpha}. Use alpha=1 for Nash bargaining.")

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        assert cohort.gram is not None
        moving, cosines, norm = unit_gram(cohort.gram)
        weights = torch.zeros_like(cohort.share)
        if len(moving) == 0:
            return weights, state
        shortest = min_norm_weights(cosines, torch.full_like(norm, 1 / len(norm)), 1.0)
        if shortest @ cosines @ shortest < _STATIONARY**2:
            return weights, state
        share = cohort.shares(self.weighting)[moving]
        power = (share ** (1 / self.alpha) * (norm / norm.max()) ** (1 / self.alpha - 1)).clamp(min=1e-300)
        bargain = nash_weights(cosines, power / power.max(), self.alpha)  # of unit vectors instead of updates
        length = (bargain @ cosines @ bargain).sqrt()
        wanted = (cohort.share @ cohort.gram @ cohort.share).clamp(min=0).sqrt() if self.scale == "average" else 1.0
        weights[moving] = wanted * bargain / length / norm
        return weights, state
