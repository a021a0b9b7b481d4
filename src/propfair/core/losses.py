"""The loss of each example, from whatever criterion a user brings, and the task that follows from it."""

import copy
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from propfair.core.tasks import (
    SINGLE_LABEL,
    TASKS,
    Binary,
    LossFunction,
    MultiLabel,
    PerPosition,
    SingleLabel,
    Task,
    check_same,
    cross_entropy,
    places_of_classes,
    shape_of,
)
from propfair.errors import ConfigError, DataError, PropFairWarning, shown, unknown


@dataclass(frozen=True)
class ExampleLoss:
    """A criterion that gives one number for each example, checked at each call. A class, so that it can be pickled."""

    criterion: LossFunction
    task: Task

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        if self.task.elementwise or getattr(self.task, "elementwise_outputs", False):
            check_same(output, target)
            target = target.to(output.dtype)
        elif isinstance(self.task, PerPosition):
            output = self.task.classes_second(output, target)
        found = self.criterion(output, target)
        if not isinstance(found, Tensor) or found.ndim == 0 or len(found) != len(target):
            got = shape_of(found) if isinstance(found, Tensor) and found.ndim else "a single number"
            raise ConfigError(
                f"the loss must give one number for each example, [{len(target)}]; got {got}. "
                "Use reduction='none': propfair takes the mean itself."
            )
        if found.ndim == 1:
            return found
        if isinstance(self.task, PerPosition) and found.shape == target.shape:
            return self.task.mean_of_counted(found, target)
        return found.flatten(1).mean(1)


def choose_task(
    task: str | Task | None, loss: LossFunction | nn.Module | None, target: Tensor
) -> tuple[Task, LossFunction]:
    """The task and the loss of each example, from what the user says and the targets of some examples.

    Args:
        task: a name of `TASKS`; None: from the loss, else from the targets.
        loss: None: that of the task; a torch criterion, whose reduction is switched off, or a function to losses [B].
        target: of a few examples, [B, ...].
    """
    named = _named(task)
    if loss is None:
        chosen = named or _from_targets(target)
        return chosen, cross_entropy if isinstance(chosen, SingleLabel) else chosen.loss
    if isinstance(loss, type) or not callable(loss):
        way_out = f"Write {loss.__name__}()." if isinstance(loss, type) else "Try torch.nn.CrossEntropyLoss()."
        raise ConfigError(
            f"loss must be a function of (output, target), or a torch criterion; got {shown(loss)}. {way_out}"
        )
    chosen = _from_loss(loss, target) if named is None else named
    if isinstance(chosen, PerPosition) and isinstance(getattr(loss, "ignore_index", None), int):
        chosen = PerPosition(chosen.elementwise_outputs, int(loss.ignore_index))  # type: ignore[attr-defined]
    return chosen, ExampleLoss(_unreduced(loss), chosen)


def leaves_open(task: Task) -> bool:
    """Whether it is not settled where the classes of outputs are; see `PerPosition`."""
    return isinstance(task, PerPosition) and not task.elementwise_outputs and task.classes_last is None


def settle_classes(
    task: Task, loss: LossFunction, outputs: Iterable[tuple[Tensor, Tensor]]
) -> tuple[Task, LossFunction]:
    """The same task and loss with the place of the classes settled, by outputs and their targets.

    They are looked at until one does not fit both places. Where all do, it is the second, as torch has it, and a
    warning says so.
    """
    if not isinstance(task, PerPosition) or not leaves_open(task):
        return task, loss
    places, shape = set(), ""
    for output, target in outputs:
        places, shape = places_of_classes(output, target), shape_of(output)
        if len(places) == 1:
            break
    else:
        warnings.warn(
            f"the model's output {shape} may have its classes in the second or in the last place: they are taken to be "
            "in the second, as torch has it. If they are in the last, have the model put them second.",
            PropFairWarning,
            stacklevel=2,
        )
    known = dataclasses.replace(task, classes_last=places == {"last"})
    if isinstance(loss, ExampleLoss):
        return known, dataclasses.replace(loss, task=known)
    return known, known.loss if loss == task.loss else loss


def _named(task: str | Task | None) -> Task | None:
    if isinstance(task, str):
        if task not in TASKS:
            raise unknown("task", task, TASKS)
        return TASKS[task]
    return task


def _from_targets(target: Tensor) -> Task:
    if target.is_floating_point():
        raise DataError(
            f"targets are real numbers of shape {shape_of(target)}, and no loss was given. Pass task='regression' (or "
            "loss=torch.nn.MSELoss()) for regression, task='binary' or task='multi-label' for targets 0 and 1, or turn "
            "class labels into integers."
        )
    return SINGLE_LABEL if target.ndim == 1 else TASKS["per-position"]


_REGRESSION = ("MSE", "L1", "SmoothL1", "Huber", "PoissonNLL")


def _from_loss(loss: LossFunction | nn.Module, target: Tensor) -> Task:
    """By the kind of a torch criterion; a function that is not torch's own says nothing but what targets say."""
    kind = type(loss).__name__ if isinstance(loss, nn.Module) else _functional_name(loss)
    if kind in ("BCEWithLogitsLoss", "BCELoss"):
        logits = kind == "BCEWithLogitsLoss"
        if target.ndim == 1 or target.shape[1:].numel() == 1:
            return Binary(logits)
        if target.ndim == 2:
            return MultiLabel(logits)
        return PerPosition(elementwise_outputs=True)
    if kind.removesuffix("Loss") in _REGRESSION:
        return TASKS["regression"]
    if target.is_floating_point():
        return TASKS["other"]
    if kind in ("CrossEntropyLoss", "NLLLoss"):
        return SINGLE_LABEL if target.ndim == 1 else TASKS["per-position"]
    return SINGLE_LABEL if target.ndim == 1 else TASKS["other"]


def _functional_name(loss: LossFunction) -> str:
    """The name of the criterion that a function of torch.nn.functional belongs to; "" for others."""
    name = getattr(loss, "__name__", "")
    if getattr(functional, name, None) is not loss:
        return ""
    known = {"mse_loss": "MSELoss", "l1_loss": "L1Loss", "smooth_l1_loss": "SmoothL1Loss", "huber_loss": "HuberLoss",
             "poisson_nll_loss": "PoissonNLLLoss", "cross_entropy": "CrossEntropyLoss", "nll_loss": "NLLLoss",
             "binary_cross_entropy": "BCELoss", "binary_cross_entropy_with_logits": "BCEWithLogitsLoss"}  # fmt: skip
    return known.get(name, "")


def _unreduced(loss: LossFunction | nn.Module) -> LossFunction:
    """The same loss without the mean over a batch, where it says how."""
    if isinstance(loss, nn.Module):
        if hasattr(loss, "reduction"):
            loss = copy.deepcopy(loss)
            vars(loss)["reduction"] = "none"
        return loss
    if _functional_name(loss) or "reduction" in _arguments(loss):
        return functools.partial(loss, reduction="none")  # type: ignore[call-arg]
    return loss


def _arguments(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()
