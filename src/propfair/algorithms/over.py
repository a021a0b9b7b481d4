"""Algorithms around another algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from propfair.algorithms.base import ALGORITHMS, Algorithm, ClientId, Cohort, Needs, Order, Personal, State


@dataclass(frozen=True, kw_only=True)
class Over(Algorithm):
    """Does all that the algorithm called `over` does. Subclasses change a part of it.

    Args:
        over: the name of any algorithm, which may be one around another.
        options: its hyper-parameters.
    """

    over: str = "fedavg"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _ = self.inner  # a wrong name or option is an error now, not in round 1

    @cached_property
    def inner(self) -> Algorithm:
        """The algorithm underneath."""
        return ALGORITHMS.make(self.over, self.options)

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    @property
    def personal(self) -> Personal | None:
        return self.inner.personal

    def init(self, share: Tensor) -> State:
        return self.inner.init(share)

    def order(self, client: ClientId, state: State) -> Order:
        return self.inner.order(client, state)

    def batch_loss(self, losses: Tensor, weight: Tensor | None = None) -> Tensor:
        return self.inner.batch_loss(losses, weight)

    def objective(self, batch_loss: Tensor, order: Order) -> Tensor:
        return self.inner.objective(batch_loss, order)

    def watch(self, batch_loss: Tensor, order: Order) -> dict[str, Tensor]:
        return self.inner.watch(batch_loss, order)

    def prior(self, cohort: Cohort, state: State) -> Tensor | None:
        return self.inner.prior(cohort, state)

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        return self.inner.weigh(cohort, state)

    def amend(self, update: Tensor, deltas: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        return self.inner.amend(update, deltas, cohort, state)

    def learn(self, cohort: Cohort, state: State) -> State:
        return self.inner.learn(cohort, state)

    def absorb(self, params: Tensor, state: State) -> State:
        return self.inner.absorb(params, state)

    def released(self, params: Tensor, state: State) -> Tensor:
        return self.inner.released(params, state)

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        return self.inner.diagnose(cohort, weights, state)
