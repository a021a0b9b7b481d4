"""FedNova's step-count correction (Wang, Liu, Liang, Joshi, Poor, 2020)."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Cohort, State, as_floats, register
from propfair.algorithms.over import Over


@register("fednova")
@dataclass(frozen=True, kw_only=True)
class FedNova(Over):
    r"""Clients that take more local steps no longer count for more. Around any other algorithm.

    $$\Delta_i \leftarrow \frac{\bar K}{K_i} \Delta_i, \qquad \bar K = \sum_j p_j K_j$$ and then the rule of `over`.

    With an epoch a round, K_i grows with the data of client i, which p_i counts already: FedAvg and PropFair count data
    twice. The rule underneath sees the rescaled norms and Gram matrix; FedMGDA+, which looks at directions only, gives
    the same step with and without. Not in the paper.

    Args:
        over: the algorithm underneath.
        options: its hyper-parameters.

    >>> FedNova().weigh(Cohort.of(share=[0.5, 0.3, 0.2], num_steps=[5, 3, 2]), {})[0]
    tensor([0.3800, 0.3800, 0.3800], dtype=torch.float64)

    References:
        J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor, Tackling the Objective Inconsistency Problem in Heterogeneous
        Federated Optimization, NeurIPS 2020.
    """

    advice: ClassVar[Advice | None] = Advice(
        optimises="What `over` does.",
        tune="What `over` needs.",
        epochs="Made for it: more local steps no longer count for more.",
        participation="As `over`.",
    )

    def prior(self, cohort: Cohort, state: State) -> Tensor | None:
        prior = self.inner.prior(cohort, state)
        return None if prior is None else prior / cohort.num_steps

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        factor, corrected = _correct(cohort)
        weights, state = self.inner.weigh(corrected, state)
        return weights * factor, state

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        factor, corrected = _correct(cohort)
        return self.inner.diagnose(corrected, weights / factor, state)


def _correct(cohort: Cohort) -> tuple[Tensor, Cohort]:
    """The factors [K + R] on the updates, and the cohort as if the clients had sent the rescaled ones."""
    num_steps = torch.cat([cohort.num_steps, as_floats(cohort.past.num_steps)])
    factor = cohort.share @ cohort.num_steps / num_steps
    return factor, dataclasses.replace(
        cohort,
        norm2=None if cohort.norm2 is None else cohort.norm2 * factor[: len(cohort)].square(),
        gram=None if cohort.gram is None else cohort.gram * factor.outer(factor),
    )
