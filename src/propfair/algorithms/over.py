"""Algorithms around another algorithm."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from propfair.algorithms.base import (
    Algorithm,
    Cohort,
    Drift,
    MakeOrder,
    Needs,
    Objective,
    Personal,
    Reduce,
    State,
    Watch,
    build_algorithm,
)
from propfair.errors import ConfigError


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
        return build_algorithm(self.over, self.options)

    @property
    def needs(self) -> Needs:
        return self.inner.needs

    @property
    def personal(self) -> Personal | None:
        return self.inner.personal

    @property
    def drift(self) -> Drift | None:
        return self.inner.drift

    @property
    def remember(self) -> int:
        return self.inner.remember

    @property
    def average_iterates(self) -> bool:
        return self.inner.average_iterates

    def init(self, share: Tensor) -> State:
        return self.inner.init(share)

    @property
    def order(self) -> MakeOrder | None:
        return self.inner.order

    @property
    def reduce(self) -> Reduce | None:
        return self.inner.reduce

    @property
    def objective(self) -> Objective | None:
        return self.inner.objective

    @property
    def watch(self) -> Watch | None:
        return self.inner.watch

    def prior(self, cohort: Cohort, state: State) -> Tensor | None:
        return self.inner.prior(cohort, state)

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        return self.inner.weigh(cohort, state)

    def learn(self, cohort: Cohort, state: State) -> State:
        return self.inner.learn(cohort, state)

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        return self.inner.diagnose(cohort, weights, state)


def without_variates(outer: Over) -> None:
    """Refuse a second algorithm that corrects the same gradients."""
    inner = outer.inner.drift
    if inner is not None and inner.variates != "none":
        raise ConfigError(
            f"{outer.name} over {outer.over!r}: both correct the gradients of clients, and only one of them can. "
            f"Put {outer.name} around the algorithm below."
        )
