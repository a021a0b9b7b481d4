"""Nash-MTL (Navon et al., 2022) on the updates of clients, and its alpha-fair kin (Ban, Ji, 2024)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Needs, Presets, State, register
from propfair.algorithms.solvers import at_length, nash_weights, stationary, unit_gram
from propfair.errors import ConfigError


@register("nash-mtl", formerly="fairgrad")
@dataclass(frozen=True, kw_only=True)
class NashMTL(Algorithm):
    r"""An alpha-fair bargain about the progress of a round: PropFair's twin on updates instead of losses.

    $$\max_{\|d\| \le 1} \sum_i p_i\, \phi_\alpha(\langle \Delta_i, d \rangle), \qquad d = \sum_i w_i \Delta_i, \quad
      \sum_j \langle \Delta_i, \Delta_j \rangle w_j \propto (p_i / w_i)^{1/\alpha}$$

    with $\phi_\alpha$ of eq. 2.8 in the paper, which does not run it. alpha = 1 is Nash-MTL, the default; Ban and Ji
    call the others FairGrad, a name that other methods have, too. Large alpha comes close to MGDA. The first papers
    step along gradients by the learning rate. Updates have a length already, so the step here is as long as that of
    FedAvg. If no direction improves all clients, nothing moves.

    Args:
        alpha: the order of fairness, > 0.
        scale: the length of the step, "average" (that of FedAvg) or "unit" (1, times the server's learning rate).
        weighting: p_i in the bargain, "samples" or, as in the first papers, "uniform".

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], deltas=[[1, 0], [0, 1], [-1, 1]])
    >>> NashMTL().weigh(cohort, {})[0]
    tensor([0.5935, 0.2008, 0.3071], dtype=torch.float64)

    References:
        A. Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022.
        H. Ban, K. Ji, Fair Resource Allocation in Multi-Task Learning, ICML 2024.
    """

    alpha: float = 1.0
    scale: Literal["average", "unit"] = "average"
    weighting: Literal["samples", "uniform"] = "samples"

    presets: ClassVar[Presets] = {"original": {"scale": "unit", "weighting": "uniform"}}
    advice: ClassVar[Advice | None] = Advice(
        optimises="An alpha-fair bargain about the progress of each round.",
        tune="alpha.",
        epochs="An update stands for a gradient: the promise holds for few local steps.",
        participation="Bargains between those present.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"alpha": (0.5, 1.0, 2.0)}

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
        if stationary(cosines):
            return weights, state
        share = cohort.shares(self.weighting)[moving]
        power = (share ** (1 / self.alpha) * (norm / norm.max()) ** (1 / self.alpha - 1)).clamp(min=1e-300)
        weights[moving] = nash_weights(cosines, power / power.max(), self.alpha) / norm  # a bargain of unit vectors
        wanted2 = cohort.share @ cohort.gram @ cohort.share if self.scale == "average" else 1.0
        return at_length(weights, cohort.gram, wanted2), state
