"""What a model is trained to do: which outputs fit which targets, the loss of an example, and what is better.

The task follows from the loss and the targets, or is named. It decides what is checked before training, the score that
is recorded beside the loss, and how outputs are handed to metrics.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from propfair.data.base import IGNORED
from propfair.errors import ConfigError

LossFunction = Callable[[Any, Tensor], Tensor]  # (output, target) -> losses of the examples [B]


class Task(ABC):
    """One kind of target.

    Attributes:
        name: as in `train(task=...)`.
        score: the name of the number that is recorded of each client beside the loss; "" for none.
        higher_is_better: of the score.
        elementwise: output and target are compared number by number, and must have one shape.
    """

    name: ClassVar[str]
    score: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    elementwise: ClassVar[bool] = False

    def loss(self, output: Any, target: Tensor) -> Tensor:
        """The loss of each example [B] where the user gives none."""
        raise ConfigError(f"the task {self.name!r} has no loss of its own: pass loss=")

    def target_problem(self, targets: Tensor, num_classes: int) -> str:
        """Why all targets [N, ...] of a data set are not of this task; "" if they are."""
        return ""

    def num_outputs(self, target: Tensor, num_classes: int) -> int:
        """How many outputs a model needs for targets such as these [B, ...]."""
        return num_classes

    @abstractmethod
    def problem(self, output: Any, target: Tensor, num_classes: int) -> str:
        """Why these outputs and targets of a few examples can't be trained; "" if they can. 0 classes: not known."""

    @abstractmethod
    def scores(self, output: Any, target: Tensor) -> Tensor:
        """The score of each example [B]; that of a client is the mean over its examples."""

    @abstractmethod
    def pairs(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Output and target as metrics want them: probabilities [M, classes] with labels [M], or numbers with numbers.

        M counts what is judged: examples, or positions that are not ignored.
        """


class SingleLabel(Task):
    """One of several classes: outputs [B, classes] are logits, targets [B] labels. Cross-entropy by default."""

    name = "single-label"

    def loss(self, output: Any, target: Tensor) -> Tensor:
        return cross_entropy(output, target)

    def target_problem(self, targets: Tensor, num_classes: int) -> str:
        if targets.is_floating_point() or targets.ndim != 1:
            kind = "real numbers" if targets.is_floating_point() else "integers"
            return f"targets of the task 'single-label' must be one integer label each; got {kind} {shape_of(targets)}"
        low, high = int(targets.min()), int(targets.max())
        if low < 0 or (num_classes and high >= num_classes):
            return f"labels must lie in 0..{num_classes - 1}; found labels from {low} to {high}"
        return ""

    def problem(self, output: Any, target: Tensor, num_classes: int) -> str:
        if not isinstance(output, Tensor) or output.ndim != 2 or (num_classes and output.shape[1] != num_classes):
            wanted = f"[batch, {num_classes or 'classes'}]{f' for {num_classes} classes' if num_classes else ''}"
            one = isinstance(output, Tensor) and num_classes == 2 and output.numel() == len(target)
            way_out = ". For one logit of two classes pass task='binary'." if one else ""
            return f"the model's output must be {wanted}; got {shape_of(output)}{way_out}"
        return ""

    def scores(self, output: Any, target: Tensor) -> Tensor:
        right: Tensor = output.argmax(1) == target
        return right.float()

    def pairs(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return output.softmax(1), target


@dataclass(frozen=True)
class _Elementwise(Task):
    """Outputs and targets are compared number by number.

    Attributes:
        logits: outputs are logits, not probabilities.
    """

    logits: bool = True
    elementwise = True

    def num_outputs(self, target: Tensor, num_classes: int) -> int:
        return target.shape[1] if target.ndim > 1 else 1

    def problem(self, output: Any, target: Tensor, num_classes: int) -> str:
        if not isinstance(output, Tensor) or output.shape != target.shape:
            return _mismatch(output, target)
        return ""

    def target_problem(self, targets: Tensor, num_classes: int) -> str:
        low, high = float(targets.min()), float(targets.max())
        if low < 0 or high > 1:
            return f"targets of the task {self.name!r} must lie between 0 and 1; found {low:g} to {high:g}"
        return ""

    def _probabilities(self, output: Tensor) -> Tensor:
        return output.sigmoid() if self.logits else output


class Binary(_Elementwise):
    """One logit for each example, targets 0 and 1. Binary cross-entropy unless told otherwise."""

    name = "binary"

    def loss(self, output: Any, target: Tensor) -> Tensor:
        flat = _as_target(output, target)
        return functional.binary_cross_entropy_with_logits(flat, target.to(flat.dtype), reduction="none")

    def problem(self, output: Any, target: Tensor, num_classes: int) -> str:
        if not isinstance(output, Tensor) or output.numel() != len(target):
            return f"the task 'binary' needs one logit for each example, [batch] or [batch, 1]; got {shape_of(output)}"
        return ""

    def scores(self, output: Any, target: Tensor) -> Tensor:
        probability, target = self.pairs(output, target)
        return ((probability > 0.5) == (target > 0)).float()

    def pairs(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return self._probabilities(output.flatten()), target.flatten().round().long()


class MultiLabel(_Elementwise):
    """Any number of labels at once: logits [B, labels], targets 0 and 1 of the same shape. Binary cross-entropy."""

    name = "multi-label"

    def loss(self, output: Any, target: Tensor) -> Tensor:
        check_same(output, target)
        found = functional.binary_cross_entropy_with_logits(output, target.to(output.dtype), reduction="none")
        return found.flatten(1).mean(1)

    def scores(self, output: Any, target: Tensor) -> Tensor:
        probability, target = self.pairs(output, target)
        return ((probability > 0.5) == (target > 0)).float().flatten(1).mean(1)

    def pairs(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return self._probabilities(output), target.round().long()


class Regression(_Elementwise):
    """Real numbers: one output [B] or several [B, outputs]. Squared error unless told otherwise."""

    name = "regression"
    score = "mae"
    higher_is_better = False

    def target_problem(self, targets: Tensor, num_classes: int) -> str:
        return ""

    def loss(self, output: Any, target: Tensor) -> Tensor:
        flat = _as_target(output, target)
        found = (flat - target.to(flat.dtype)).square()
        return found if found.ndim == 1 else found.flatten(1).mean(1)

    def problem(self, output: Any, target: Tensor, num_classes: int) -> str:
        fits = isinstance(output, Tensor) and output.numel() == target.numel()
        return "" if fits else _mismatch(output, target)

    def scores(self, output: Any, target: Tensor) -> Tensor:
        found = (_as_target(output, target) - target).abs().float()
        return found if found.ndim == 1 else found.flatten(1).mean(1)

    def pairs(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        flat = _as_target(output, target).float()
        return (flat, target.float()) if target.ndim == 1 else (flat.flatten(1), target.float().flatten(1))


@dataclass(frozen=True)
class PerPosition(Task):
    """A target at each position: the pixels of a segmentation, the tokens of a text.

    Targets [B, positions ...] are labels, -100 where a position does not count; outputs are [B, classes, positions ...]
    as torch has them, or [B, positions ..., classes]. With `elementwise_outputs`, targets are 0 and 1 and outputs one
    logit of the same shape, for masks.

    Attributes:
        elementwise_outputs: one logit for each position.
        ignored: the label that does not count.
        classes_last: where the classes are; None: where they fit, and in the second place if both do. A batch of texts
            that are as long as there are classes fits both, so it is settled before training, by texts that do not.
    """

    elementwise_outputs: bool = False
    ignored: int = IGNORED
    classes_last: bool | None = None
    name = "per-position"

    def loss(self, output: Any, target: Tensor) -> Tensor:
        if self.elementwise_outputs:
            check_same(output, target)
            found = functional.binary_cross_entropy_with_logits(output, target.to(output.dtype), reduction="none")
            return found.flatten(1).mean(1)
        found = functional.cross_entropy(
            self.classes_second(output, target), target, reduction="none", ignore_index=self.ignored
        )
        return self.mean_of_counted(found, target)

    def classes_second(self, output: Tensor, target: Tensor) -> Tensor:
        """Logits with the classes in the second place, wherever they are."""
        last = self.classes_last if self.classes_last is not None else places_of_classes(output, target) == {"last"}
        return output.movedim(-1, 1) if last else output

    def mean_of_counted(self, losses: Tensor, target: Tensor) -> Tensor:
        """The means [B] over the positions of each example that count; 0 where none does."""
        counts = self._counted(target).flatten(1).sum(1)
        return losses.flatten(1).sum(1) / counts.clamp(min=1)

    def problem(self, output: Any, target: Tensor, num_classes: int) -> str:
        if self.elementwise_outputs:
            return "" if isinstance(output, Tensor) and output.shape == target.shape else _mismatch(output, target)
        found = self.classes_second(output, target) if isinstance(output, Tensor) else None
        if found is None or found.ndim != target.ndim + 1 or found.shape[2:] != target.shape[1:]:
            return (
                f"the model's output must have a number for each class and position, {shape_of(target)} with classes "
                f"in the second or the last place; got {shape_of(output)}. If targets are several labels at once, pass "
                "task='multi-label'."
            )
        if found.shape[1] < num_classes:
            return f"there are {num_classes} classes, but the model's output {shape_of(output)} has {found.shape[1]}"
        return ""

    def scores(self, output: Any, target: Tensor) -> Tensor:
        right: Tensor
        if self.elementwise_outputs:
            right = (output > 0) == (target > 0)
        else:
            right = self.classes_second(output, target).argmax(1) == target
        counted = self._counted(target)
        return (right & counted).flatten(1).sum(1).float() / counted.flatten(1).sum(1)

    def pairs(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if self.elementwise_outputs:
            return output.flatten().sigmoid(), target.flatten().round().long()
        last = self.classes_second(output, target).movedim(1, -1)
        counted = self._counted(target)
        return last[counted].softmax(-1), target[counted]

    def _counted(self, target: Tensor) -> Tensor:
        return torch.ones_like(target, dtype=torch.bool) if self.elementwise_outputs else target != self.ignored


class OtherTask(Task):
    """Whatever a loss of one's own makes of outputs and targets: only the loss and own metrics are recorded."""

    name = "other"
    score = ""

    def problem(self, output: Any, target: Tensor, num_classes: int) -> str:
        return ""

    def scores(self, output: Any, target: Tensor) -> Tensor:
        return torch.full((len(target),), torch.nan)

    def pairs(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return output, target


SINGLE_LABEL = SingleLabel()
TASKS: dict[str, Task] = {
    task.name: task for task in (SINGLE_LABEL, Binary(), MultiLabel(), Regression(), PerPosition(), OtherTask())
}


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """The default loss: cross-entropy of each example, [B]."""
    return functional.cross_entropy(output, target, reduction="none")


def places_of_classes(output: Tensor, target: Tensor) -> set[str]:
    """Where the classes of outputs may be, for a target at each position.

    >>> places_of_classes(torch.ones(2, 5, 3), torch.ones(2, 5))
    {'last'}
    >>> sorted(places_of_classes(torch.ones(2, 3, 3), torch.ones(2, 3)))
    ['last', 'second']
    """
    positions = {"second": (*output.shape[:1], *output.shape[2:]), "last": tuple(output.shape[:-1])}
    return {place for place, shape in positions.items() if output.ndim > 1 and shape == tuple(target.shape)}


def _as_target(output: Tensor, target: Tensor) -> Tensor:
    """Outputs [B, 1] for targets [B], and the other way round; nothing else is stretched."""
    if output.shape != target.shape and output.numel() == target.numel() and {output.ndim, target.ndim} == {1, 2}:
        return output.reshape(target.shape)
    check_same(output, target)
    return output


def check_same(output: Any, target: Tensor) -> None:
    """Refuse outputs and targets that torch would stretch to each other."""
    if not isinstance(output, Tensor) or output.shape != target.shape:
        raise ConfigError(_mismatch(output, target))


def _mismatch(output: Any, target: Tensor) -> str:
    return (
        f"the model's output has shape {shape_of(output)} and the target {shape_of(target)}: they must be equal, since "
        "torch would stretch one to the other and compare every example with every other. Reshape one of them: "
        "output.squeeze(1), or targets of shape [N, 1]."
    )


def shape_of(values: Any) -> str:
    """For messages."""
    return str(list(values.shape)) if isinstance(values, Tensor) else type(values).__name__
