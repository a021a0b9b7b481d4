"""Further numbers of each client: F1, AUC, RMSE and the like, by torchmetrics, or any function of output and target."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from propfair.core.tasks import Task
from propfair.errors import ConfigError, MissingExtraError, TrainingError, shown
from propfair.registry import import_path

LOWER_IS_BETTER = frozenset({"loss", "mae", "rmse", "perplexity"})
_BY_TASK: dict[str, tuple[str, ...]] = {
    "single-label": ("balanced_accuracy", "f1", "auc", "perplexity"),
    "binary": ("balanced_accuracy", "f1", "auc"),
    "multi-label": ("f1", "auc"),
    "regression": ("rmse", "r2"),
    "per-position": ("balanced_accuracy", "f1", "iou", "perplexity"),
    "other": (),
}


class Meter(Protocol):
    """Collects what a model does for one client."""

    def update(self, output: Any, target: Tensor) -> None:
        """Look at one batch."""

    def compute(self) -> Any:
        """The number for all batches so far."""


@dataclass(frozen=True)
class Metric:
    """A number for each client.

    Args:
        name: in records and tables.
        function: of (output, target) over all examples of a client to a number; or a metric object of torchmetrics,
            which gets probabilities (numbers, in regression) and targets; None: the metric of this name, see `named`.
        higher_is_better: the direction.

    >>> Metric("bias", lambda output, target: (output - target).mean().abs(), higher_is_better=False).name
    'bias'
    """

    name: str
    function: Any = None
    higher_is_better: bool = True

    def meter(self, task: Task) -> Meter:
        """A new meter."""
        if self.function is None:
            return _NamedMeter(self.name, task)
        if hasattr(self.function, "update") and hasattr(self.function, "compute"):
            return _TorchMeter(self.function.clone(), task)
        return _FunctionMeter(self.function)


def choose_metrics(wanted: Sequence[Any], task: Task) -> tuple[Metric, ...]:
    """The metrics that a user asks for beside the loss and the score of the task.

    Args:
        wanted: names, `Metric`s, metric objects of torchmetrics, functions of (output, target), or texts
            "module:function".
        task: decides which names there are.
    """
    measured = ("loss", task.score)
    found = [_metric(item, task) for item in wanted if not (isinstance(item, str) and item in measured)]
    names = [metric.name for metric in found]
    for name in names:
        if not isinstance(name, str) or not name or not name.isprintable():  # no reader of records would take it
            raise ConfigError(f"the name of a metric must be a text in one line; got {shown(name)}")
    twice = {name for name in names if names.count(name) > 1 or name in ("loss", "accuracy", task.score)}
    if twice:
        raise ConfigError(f"two metrics are called {min(twice)!r}. Give one another name: Metric('name', function).")
    if any(metric.function is None for metric in found):
        _torchmetrics()
    return tuple(found)


def _metric(wanted: Any, task: Task) -> Metric:
    if isinstance(wanted, Metric):
        return wanted
    if isinstance(wanted, str):
        if ":" in wanted:
            return _metric(import_path(wanted, "metric"), task)
        if wanted not in _BY_TASK[task.name]:
            known = ", ".join(filter(None, (task.score, *_BY_TASK[task.name]))) or "none"
            raise ConfigError(
                f"the task {task.name!r} has no metric {wanted!r}; it has: {known}. Others can be given as "
                "module:function, or from Python as a function of (output, target)."
            )
        return Metric(wanted, None, wanted not in LOWER_IS_BETTER)
    if hasattr(wanted, "update") and hasattr(wanted, "compute"):
        if wanted.higher_is_better is None:
            raise ConfigError(
                f"{type(wanted).__name__} does not say whether more is better. Pass Metric('name', the metric, "
                "higher_is_better=...)."
            )
        return Metric(type(wanted).__name__, wanted, bool(wanted.higher_is_better))
    if callable(wanted):
        higher = getattr(wanted, "higher_is_better", True)
        return Metric(getattr(wanted, "__name__", type(wanted).__name__), wanted, bool(higher))
    raise ConfigError(f"a metric is a name, a function or an object of torchmetrics; got {wanted!r}")


def read_meter(metric: Metric, meter: Meter, where: str) -> float:
    """The number of a meter; anything but a single number is an error that names the metric."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about clients without examples of a class, which count as nan
            found = meter.compute()
    except Exception as error:
        raise TrainingError(f"metric {metric.name!r} failed for {where}: {type(error).__name__}: {error}") from error
    value = torch.as_tensor(found)
    if value.numel() != 1:
        raise TrainingError(
            f"metric {metric.name!r} must give one number for a client; for {where} it gave shape {list(value.shape)}"
        )
    return float(value)


class _FunctionMeter:
    """A function of all outputs and targets of a client at once."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        self._function = function
        self._parts: list[tuple[Tensor, Tensor]] = []

    def update(self, output: Any, target: Tensor) -> None:
        self._parts.append((output.cpu(), target.cpu()))

    def compute(self) -> Any:
        outputs, targets = zip(*self._parts, strict=True)
        return self._function(torch.cat(outputs), torch.cat(targets))


class _TorchMeter:
    """A metric object of torchmetrics."""

    def __init__(self, metric: Any, task: Task) -> None:
        self._metric, self._task = metric, task
        metric.reset()

    def update(self, output: Any, target: Tensor) -> None:
        self._metric.update(*(values.cpu() for values in self._task.pairs(output, target)))

    def compute(self) -> Any:
        return self._metric.compute()


class _NamedMeter:
    """A metric by name; how many classes there are shows in the first outputs."""

    def __init__(self, name: str, task: Task) -> None:
        self._name, self._task = name, task
        self._metric: Any = None
        self._count = 0

    def update(self, output: Any, target: Tensor) -> None:
        found, right = (values.cpu() for values in self._task.pairs(output, target))
        if self._name == "perplexity":
            found, right = found.log().unsqueeze(0), right.unsqueeze(0)
        elif self._name == "balanced_accuracy" and found.ndim == 1:
            found = torch.stack([1 - found, found], dim=1)
        if self._metric is None:
            self._metric = _make(self._name, found, right)
        self._count += len(right)
        self._metric.update(found, right)

    def compute(self) -> Any:
        if self._name == "r2" and self._count < 2:
            return torch.nan
        value = self._metric.compute()
        if self._name == "balanced_accuracy":
            true_positives, support = value[..., 0].double(), value[..., 4]
            return (true_positives / support)[support > 0].mean()  # over the classes that the client has
        if self._name == "auc":
            return _mean_auc(value, self._metric)
        return value


def _make(name: str, found: Tensor, right: Tensor) -> Any:
    """The metric of torchmetrics for predictions and targets of these shapes."""
    metrics = _torchmetrics()
    several = found.ndim == 2
    many = found.shape[1] if several else 2
    labels = several and right.ndim == 2  # several labels at once
    kinds = metrics.classification
    if name == "perplexity":
        return metrics.text.Perplexity()
    if name == "rmse":
        return metrics.MeanSquaredError(squared=False)
    if name == "r2":
        return metrics.R2Score()
    if name == "balanced_accuracy":
        return kinds.MulticlassStatScores(many, average=None)
    if name == "iou":
        return kinds.MulticlassJaccardIndex(many) if several else kinds.BinaryJaccardIndex()
    if labels:
        return kinds.MultilabelF1Score(many) if name == "f1" else kinds.MultilabelAUROC(many, average="none")
    if not several:
        return kinds.BinaryF1Score() if name == "f1" else kinds.BinaryAUROC()
    return (
        kinds.MulticlassF1Score(many, average="macro") if name == "f1" else kinds.MulticlassAUROC(many, average="none")
    )


def _mean_auc(value: Tensor, metric: Any) -> Any:
    """Over the classes of which the client has examples and others; torchmetrics counts the rest as 0."""
    target = torch.cat(list(metric.target))
    if value.ndim == 0:
        return value if bool(target.min() < target.max()) else torch.nan
    present = torch.stack([(target == k) if target.ndim == 1 else target[:, k] == 1 for k in range(len(value))])
    share = present.float().mean(1)
    judged = value[(share > 0) & (share < 1)]
    return judged.mean() if len(judged) else torch.nan


def _torchmetrics() -> Any:
    try:
        import torchmetrics
        import torchmetrics.classification
        import torchmetrics.text
    except ImportError:
        raise MissingExtraError("metrics beside the loss and the accuracy", "metrics") from None
    return torchmetrics
