"""FedDG-GA, generalization adjustment (Zhang, Xu, Yao, Zhang, Tian, Wang, 2023)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Needs, Order, Presets, State, register
from propfair.errors import ConfigError


@register("feddg-ga")
@dataclass(frozen=True, kw_only=True)
class FedDGGA(Algorithm):
    r"""Clients that lose more than others when models are averaged count for more in the next round.

    $$a_i \leftarrow \frac{\mathrm{clip}_{[0,1]}(a_i + s_t G_i / \max_j |G_j|)}{\sum_j \dots}, \qquad
      G_i = f_i(\theta_{t+1}) - f_i(\theta_i), \qquad w = a$$

    The gap G_i is the loss of client i under the new global model minus that under its own model of the round before.
    As in the authors' code, a starts at 1/n and s_t is `step` / n, in a straight line down to 0 over `decay_rounds`.

    Differs from that code: the loss of the own model is the mean over the batches of its local training, which clients
    see anyway, instead of another pass over validation examples after it; so with one local step a round G_i is the
    change of the loss from one round to the next. Only gaps of clients that took part before are known; the others keep
    their weight. Those who take part share the weights in proportion to a. Not in the paper.

    Args:
        step: the largest change of a weight in the first round, times n. 0 averages uniformly.
        decay_rounds: after so many rounds weights stay as they are; 0: never.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0], round_=2)
    >>> before = {**FedDGGA().init(cohort.share), "local_loss": torch.tensor([0.4, 0.8, 1.6])}
    >>> FedDGGA(step=0.2).weigh(cohort, before)[0]
    tensor([0.3134, 0.3284, 0.3582], dtype=torch.float64)

    References:
        R. Zhang, Q. Xu, J. Yao, Y. Zhang, Q. Tian, Y. Wang, Federated Domain Generalization with Generalization
        Adjustment, CVPR 2023.
    """

    step: float = 0.2
    decay_rounds: int = 0

    presets: ClassVar[Presets] = {"original": {"step": 0.2, "decay_rounds": 40}}
    advice: ClassVar[Advice | None] = Advice(
        optimises="The mean loss, with weights that even out what averaging costs each client.",
        tune="step.",
        epochs="Made for many local steps; with one there is little to see.",
        participation="Weights learn from those present only.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"step": (0.05, 0.1, 0.2)}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS

    def __post_init__(self) -> None:
        if not (math.isfinite(self.step) and self.step >= 0):
            raise ConfigError(f"step must be >= 0; got step={self.step}. Use step=0 to average uniformly.")
        if self.decay_rounds < 0:
            raise ConfigError(f"decay_rounds must be >= 0; got decay_rounds={self.decay_rounds}. Use 0 for no decay.")

    def init(self, share: Tensor) -> State:
        return {"weights": torch.full_like(share, 1 / len(share)), "local_loss": torch.full_like(share, torch.nan)}

    def watch(self, batch_loss: Tensor, order: Order) -> dict[str, Tensor]:
        return {"local_loss": batch_loss}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        clients, old = torch.tensor(cohort.clients), state["weights"]
        gap = cohort.loss - state["local_loss"][clients]
        gap = torch.where(gap.abs() > 1e-6 * cohort.loss, gap, 0.0)  # unknown (nan), or no more than rounding
        left = max(0.0, 1 - (cohort.round - 1) / self.decay_rounds) if self.decay_rounds else 1.0
        step = self.step * left / len(old) * gap / gap.abs().max().clamp(min=1e-300)
        moved = old.index_add(0, clients, step).clamp(0, 1)
        new = moved / moved.sum() if moved.sum() > 0 else old
        used = new[clients]
        return used / used.sum() if used.sum() > 0 else cohort.share, {**state, "weights": new}

    def learn(self, cohort: Cohort, state: State) -> State:
        seen = state["local_loss"].index_put((torch.tensor(cohort.clients),), cohort.observed["local_loss"])
        return {**state, "local_loss": seen}
