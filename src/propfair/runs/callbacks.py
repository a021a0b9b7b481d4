"""What may look at a training between its rounds, and end it: early stopping, and whatever users write."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from propfair.errors import ConfigError
from propfair.fairness.statistics import more_is_better
from propfair.federation.federation import SPLITS
from propfair.runs.measures import Measure
from propfair.runs.progress import Progress


@dataclass
class Training:
    """A training between two rounds, for callbacks to look at.

    Attributes:
        round: rounds done so far.
        rounds: how many there will be.
        progress: what `after_round` is told; None before the first round.
        model: gives a copy of the state dict of the model that would be handed out now.
        vectors: gives the same model as flat vectors, "params" and "buffers".
        stopped: why the training ends after this round; "" if it goes on.
    """

    round: int
    rounds: int
    progress: Progress | None
    model: Callable[[], dict[str, Tensor]]
    vectors: Callable[[], dict[str, Tensor]]
    stopped: str = ""

    def stop(self, reason: str) -> None:
        """End the training cleanly after this round; the run counts as finished."""
        self.stopped = reason or "stopped by a callback"


class Callback:
    """Called before and after each round. Derive from it and override what you need.

    What must survive an interruption goes through `tensors` and `restore`, into checkpoints and out of them.
    """

    def before_round(self, training: Training) -> None:
        """Called before each round, which does not take place if the callback stops the training."""

    def after_round(self, training: Training) -> None:
        """Called after each round, evaluations included."""

    def final_vectors(self) -> dict[str, Tensor] | None:
        """What `Training.vectors` gave for the model to hand out in place of the last one; None: the last one."""
        return None

    def tensors(self) -> dict[str, Tensor]:
        """What a resume needs, by name."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on with what `tensors` gave."""


class EarlyStopping(Callback):
    """Ends a training when a statistic over clients has not become better for some evaluations; keeps the best model.

    Args:
        statistic: of the clients' values: "mean", "worst", "worst10", "weighted_mean" and so on.
        metric: of the clients: "accuracy", "loss", or any that is recorded; "": the leading one of the task.
        split: where it is measured; "": validation if there is any, else test, whose numbers are then optimistic.
        patience: evaluations without a better value before the end.
        min_delta: what counts as better.
        higher_is_better: the direction; None: as the name of the metric says.
        restore_best: hand out the best model rather than the last.
    """

    def __init__(
        self,
        statistic: str = "mean",
        metric: str = "",
        split: str = "",
        *,
        patience: int = 5,
        min_delta: float = 0.0,
        higher_is_better: bool | None = None,
        restore_best: bool = True,
    ) -> None:
        if patience < 1:
            raise ConfigError(f"patience must be at least 1; got patience={patience}")
        if split not in ("", *SPLITS):
            raise ConfigError(f"split must be one of {', '.join(SPLITS)}; got split={split!r}")
        self.statistic, self.metric, self.split = statistic, metric, split
        self.patience, self.min_delta, self.restore_best = patience, min_delta, restore_best
        self._higher = higher_is_better
        self._begin()
        self._chosen_on_test = split == "test"
        self._what = " ".join(filter(None, (split, statistic, metric)))

    def _begin(self) -> None:
        self.best_round, self.best_value, self._waited = 0, math.nan, 0
        self._best: dict[str, Tensor] = {}

    def before_round(self, training: Training) -> None:
        if training.round == 0:  # the same object may have looked at another training before
            self._begin()
        if self._waited >= self.patience:  # the run was killed between its last round and its end
            training.stop(self._reason(training.round))

    def after_round(self, training: Training) -> None:
        progress = training.progress
        if progress is None or not progress.evaluations:
            return
        split = next((split for split in progress.evaluations if self.split in ("", split)), None)
        if split is None:
            raise ConfigError(f"early stopping looks at {self.split!r}, which is not evaluated: see eval_splits")
        values = progress.evaluations[split].values()
        if self.metric and self.metric not in values:
            raise ConfigError(f"early stopping looks at {self.metric!r}; measured are: {', '.join(values)}")
        measure = Measure(split, self.metric, self._higher) if self.metric else None
        numbers = progress.summary(split, measure).as_dict()
        if self.statistic not in numbers:
            raise ConfigError(f"unknown statistic {self.statistic!r}; known: {', '.join(numbers)}")
        value = numbers[self.statistic]
        higher = (measure or progress.leading(split)).higher_is_better
        sign = 1 if more_is_better(self.statistic, higher_is_better=higher) else -1  # less spread is better
        if math.isnan(self.best_value) or sign * (value - self.best_value) > self.min_delta:
            self.best_round, self.best_value, self._waited = training.round, value, 0
            self._best = training.vectors() if self.restore_best else {}
            return
        self._waited += 1
        if self._waited >= self.patience:
            self._what = f"{split} {self.statistic} {(measure or progress.leading(split)).metric}"
            self._chosen_on_test = split == "test"
            training.stop(self._reason(training.round))

    def _reason(self, number: int) -> str:
        kept = ", whose model is kept" if self.restore_best else ""
        said = "; chosen on the test split, so its numbers are optimistic" if self._chosen_on_test else ""
        return f"stopped early after round {number}: {self._what} was best in round {self.best_round}{kept}{said}"

    def final_vectors(self) -> dict[str, Tensor] | None:
        return self._best or None

    def tensors(self) -> dict[str, Tensor]:
        numbers = torch.tensor([self.best_round, self.best_value, self._waited], dtype=torch.float64)
        return {"numbers": numbers, **{f"best.{name}": tensor for name, tensor in self._best.items()}}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        best_round, self.best_value, waited = tensors["numbers"].tolist()
        self.best_round, self._waited = int(best_round), int(waited)
        self._best = {name.removeprefix("best."): t for name, t in tensors.items() if name.startswith("best.")}


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """The section `early_stopping` of a config: see `EarlyStopping`.

    Args:
        statistic: of the clients' values: "mean", "worst", "worst10", "weighted_mean" and so on.
        metric: of the clients: "accuracy", "loss", or any that is recorded; "": the leading one of the task.
        split: where it is measured; "": validation if there is any, else test, whose numbers are then optimistic.
        patience: evaluations without a better value before the end.
        min_delta: what counts as better.
        restore_best: hand out the best model rather than the last.
    """

    statistic: str = "mean"
    metric: str = ""
    split: str = ""
    patience: int = 5
    min_delta: float = 0.0
    restore_best: bool = True

    def __post_init__(self) -> None:
        self.make()

    def make(self) -> EarlyStopping:
        """A callback for one training."""
        return EarlyStopping(
            self.statistic, self.metric, self.split, patience=self.patience, min_delta=self.min_delta,
            restore_best=self.restore_best,
        )  # fmt: skip


def callback_tensors(callbacks: Sequence[Callback]) -> dict[str, Tensor]:
    """What all callbacks want kept, by place and name."""
    return {f"callback.{k}.{name}": t for k, one in enumerate(callbacks) for name, t in one.tensors().items()}


def final_vectors(callbacks: Sequence[Callback]) -> dict[str, Tensor] | None:
    """The model that a callback wants to hand out in place of the last one; None: the last one."""
    return next(filter(None, (one.final_vectors() for one in callbacks)), None)


def restore_callbacks(callbacks: Sequence[Callback], tensors: dict[str, Any]) -> None:
    """The inverse of `callback_tensors`."""
    for k, one in enumerate(callbacks):
        prefix = f"callback.{k}."
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        if own:
            one.restore(own)
