"""The baseline without federation."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Personal, State, register


@register("local-only")
@dataclass(frozen=True, kw_only=True)
class LocalOnly(Algorithm):
    r"""Every client trains a model of its own on its own data; nothing is shared but the start.

    $$\min_{v_i} f_i(v_i), \qquad w_i = 0$$

    The global model never moves; look at the personal models. Their losses are a natural disagreement point for
    PropFair with one M for each client. A baseline, not in the paper.

    >>> LocalOnly().weigh(Cohort.of(share=[0.5, 0.3, 0.2]), {})[0]
    tensor([0., 0., 0.], dtype=torch.float64)
    >>> LocalOnly().personal
    Personal(lam=0.0, lr=None, candidates=())

    References:
        T. Li, S. Hu, A. Beirami, V. Smith, Ditto: Fair and Robust Federated Learning Through Personalization,
        ICML 2021, of which this is the limit lam = 0.
    """

    advice: ClassVar[Advice | None] = Advice(
        optimises="Each client's own loss.",
        tune="Nothing.",
        epochs="Made for it.",
        participation="Absent clients do not train.",
    )

    @property
    def personal(self) -> Personal | None:
        return Personal(lam=0.0)

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        return torch.zeros_like(cohort.share), state
