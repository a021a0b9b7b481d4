"""FedMDFG (Pan, Wang, Li, Wang, Tang, Zhao, 2023)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Needs, Presets, State, register
from propfair.algorithms.solvers import at_length, min_norm_weights, unit_gram
from propfair.errors import ConfigError


@register("fedmdfg")
@dataclass(frozen=True, kw_only=True)
class FedMDFG(Algorithm):
    r"""A common descent direction that also turns the losses towards equality, once they are too far from it.

    $$d = \text{the shortest convex combination of } u_1, \dots, u_K \text{ and, if } \angle(f, 1) > \theta,\
      \sum_k h_k u_k, \qquad h \propto \cos\angle(f, 1) \frac{f}{\|f\|} - \frac{1}{\|1\|}$$

    with $u_k = \Delta_k / \|\Delta_k\|$. h is the direction of losses in which the angle grows most, so that d lessens
    both every loss and the angle between the losses and (1, ..., 1). The updates of clients that took part in the last
    tau rounds and are absent now join the combination, so that they are not forgotten. The step is as long as the plain
    average of the updates at their mean length.

    Differs from the first paper's code: clients send updates of local training instead of full gradients; there is no
    line search, since it asks all clients for the losses of up to a dozen trial models in a round and a rule here sees
    no model (lower `server.server_lr` instead); and the code also turns the guidance on when the loss of a client
    rises above the running mean of its own. theta = 90 is MGDA on directions.

    Args:
        theta: the angle in degrees that is still fair, 11.25 (pi/16) in the first paper.
        tau: for how many rounds the server remembers the update of an absent client; 1 in the first paper.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0], deltas=[[1, 0, 0], [0, 1, 0], [-1, 1, 1]])
    >>> FedMDFG().weigh(cohort, {})[0]
    tensor([ 0.7856, -0.6351,  0.7103], dtype=torch.float64)

    References:
        Z. Pan, S. Wang, C. Li, H. Wang, X. Tang, J. Zhao, FedMDFG: Federated Learning with Multi-Gradient Descent and
        Fair Guidance, AAAI 2023.
    """

    theta: float = 11.25
    tau: int = 1

    presets: ClassVar[Presets] = {"original": {"theta": 11.25, "tau": 1}}
    advice: ClassVar[Advice | None] = Advice(
        optimises="Nothing fixed: each step helps every client and equalises losses.",
        tune="theta; server.server_lr, for want of a line search.",
        epochs="An update stands for a gradient: the promise holds for few local steps.",
        participation="Remembers absent clients for tau rounds.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"theta": (5.0, 11.25, 25.0)}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS | Needs.GRAM

    def __post_init__(self) -> None:
        if not 0 <= self.theta <= 90:
            raise ConfigError(f"theta must be an angle in [0, 90] degrees; got theta={self.theta}. Try theta=11.25.")
        if self.tau < 0:
            raise ConfigError(f"tau must be >= 0, a number of rounds; got tau={self.tau}. Try tau=1.")

    @property
    def remember(self) -> int:
        return self.tau

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        assert cohort.gram is not None
        moving, cosines, norm = unit_gram(cohort.gram)
        weights = norm.new_zeros(len(cohort.gram))
        here = moving < len(cohort)  # the others are updates of clients that are absent
        if not here.any():
            return weights, state
        candidates = torch.eye(len(moving), dtype=norm.dtype)  # rows: vectors as combinations of the unit updates
        angle, guidance = _guidance(cohort.loss[moving[here]])
        if angle > self.theta:
            candidates = torch.cat([candidates, torch.zeros_like(norm).masked_scatter(here, guidance).unsqueeze(0)])
        centre = torch.full((len(candidates),), 1 / len(candidates), dtype=norm.dtype)
        shortest = min_norm_weights(candidates @ cosines @ candidates.T, centre, 1.0)
        weights[moving] = shortest @ candidates / norm
        wanted2 = norm[here].mean().square() * cosines[here][:, here].mean()
        return at_length(weights, cohort.gram, wanted2), state

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        return {"angle": _guidance(cohort.loss)[0]}


def _guidance(loss: Tensor) -> tuple[float, Tensor]:
    """The angle between the losses and (1, ..., 1) in degrees, and the unit vector h [K] in which it grows most."""
    equal = torch.full_like(loss, len(loss) ** -0.5)
    length = loss.norm()
    direction = loss / length if length > 0 else equal
    cosine = direction @ equal
    away = cosine * direction - equal
    angle = math.degrees(math.atan2(float(away.norm()), float(cosine)))
    return angle, torch.nn.functional.normalize(away, dim=0)
