"""Metrics of each client: by name, by torchmetrics, by a function; compared with scikit-learn."""

from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from sklearn import metrics as reference
from torch import Tensor, nn

import propfair
from propfair.core.metrics import Metric, choose_metrics, read_meter
from propfair.core.tasks import TASKS
from propfair.errors import ConfigError, TrainingError

RNG = torch.Generator().manual_seed(0)
LOGITS, LABELS = torch.randn(60, 4, generator=RNG), torch.randint(3, (60,), generator=RNG)  # the client lacks class 3
ONE, ZERO_ONE = torch.randn(60, generator=RNG), torch.randint(2, (60,), generator=RNG)
MANY, MARKS = torch.randn(60, 3, generator=RNG), torch.randint(2, (60, 3), generator=RNG)
NUMBERS = torch.randn(60, generator=RNG)
PIXELS, MASK = torch.randn(6, 3, 5, 5, generator=RNG), torch.randint(3, (6, 5, 5), generator=RNG)
FLAT = PIXELS.argmax(1).flatten()


def value(name: Any, task: str, output: Tensor, target: Tensor) -> float:
    (metric,) = choose_metrics([name], TASKS[task])
    meter = metric.meter(TASKS[task])
    for few in torch.split(torch.arange(len(target)), 7):
        meter.update(output[few], target[few])
    return read_meter(metric, meter, "client 0")


def mean_auc(scores: Any, labels: Any) -> float:
    return float(np.mean([reference.roc_auc_score(labels == k, scores[:, k]) for k in np.unique(labels)]))


@pytest.mark.parametrize(
    ("name", "task", "output", "target", "expected"),
    [
        ("balanced_accuracy", "single-label", LOGITS, LABELS,
         reference.recall_score(LABELS, LOGITS.argmax(1), labels=[0, 1, 2], average="macro")),
        ("f1", "single-label", LOGITS, LABELS, reference.f1_score(LABELS, LOGITS.argmax(1), average="macro")),
        ("auc", "single-label", LOGITS, LABELS, mean_auc(LOGITS.softmax(1).numpy(), LABELS.numpy())),
        ("perplexity", "single-label", LOGITS, LABELS, float(nn.functional.cross_entropy(LOGITS, LABELS).exp())),
        ("balanced_accuracy", "binary", ONE, ZERO_ONE, reference.balanced_accuracy_score(ZERO_ONE, ONE > 0)),
        ("f1", "binary", ONE, ZERO_ONE, reference.f1_score(ZERO_ONE, ONE > 0)),
        ("auc", "binary", ONE, ZERO_ONE, reference.roc_auc_score(ZERO_ONE, ONE)),
        ("f1", "multi-label", MANY, MARKS, reference.f1_score(MARKS, MANY > 0, average="macro")),
        ("auc", "multi-label", MANY, MARKS, reference.roc_auc_score(MARKS, MANY, average="macro")),
        ("rmse", "regression", ONE, NUMBERS, reference.root_mean_squared_error(NUMBERS, ONE)),
        ("r2", "regression", ONE, NUMBERS, reference.r2_score(NUMBERS, ONE)),
        ("iou", "per-position", PIXELS, MASK, reference.jaccard_score(MASK.flatten(), FLAT, average="macro")),
        ("f1", "per-position", PIXELS, MASK, reference.f1_score(MASK.flatten(), FLAT, average="macro")),
    ],
)  # fmt: skip
def test_named_metrics_are_those_of_scikit_learn(
    name: str, task: str, output: Tensor, target: Tensor, expected: float
) -> None:
    assert value(name, task, output, target) == pytest.approx(expected, abs=1e-5)


def test_a_client_with_one_class_has_no_auc() -> None:
    assert np.isnan(value("auc", "binary", ONE, torch.ones(60)))
    assert np.isnan(value("r2", "regression", ONE[:1], NUMBERS[:1]))


def test_objects_of_torchmetrics_and_functions() -> None:
    error = torchmetrics.MeanAbsoluteError()
    assert value(error, "regression", ONE, NUMBERS) == pytest.approx(float((ONE - NUMBERS).abs().mean()))
    (named,) = choose_metrics([error], TASKS["regression"])
    assert (named.name, named.higher_is_better) == ("MeanAbsoluteError", False)
    bias = Metric("bias", lambda output, target: (output - target).mean().abs(), higher_is_better=False)
    assert value(bias, "regression", ONE, NUMBERS) == pytest.approx(abs(float((ONE - NUMBERS).mean())))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (["aucc"], "has no metric 'aucc'; it has: mae, rmse, r2"),
        ([torchmetrics.classification.MulticlassStatScores(3)], "does not say whether more is better"),
        ([len, len], "two metrics are called 'len'"),
        (["nowhere:thing"], "can't be imported"),
        ([7], "a metric is a name"),
    ],
)
def test_metrics_that_can_not_be_made(wanted: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose_metrics(wanted, TASKS["regression"])


def residuals(output: Tensor, target: Tensor) -> Tensor:
    return output - target


def test_a_metric_of_the_wrong_shape_names_itself_and_the_client() -> None:
    with pytest.raises(TrainingError, match=r"metric 'residuals' must give one number .* gave shape \[60\]"):
        value(residuals, "regression", ONE, NUMBERS)


def test_a_run_records_metrics_with_their_directions() -> None:
    x = torch.randn(40, 4, generator=RNG)
    clients = {"ann": (x, x.sum(1)), "bob": (x, -x.sum(1))}
    result = propfair.train(nn.Linear(4, 1), clients, "fedavg", rounds=2, task="regression", metrics=["rmse", "r2"])
    measured = result.evaluation("test")
    assert set(measured.values()) == {"loss", "mae", "rmse", "r2"}
    assert result.run.environment.metrics == {"mae": False, "rmse": False, "r2": True}
    assert result.run.leading().key == "test/mae"
    torch.testing.assert_close(measured.metrics["rmse"], measured.loss.sqrt(), rtol=1e-5, atol=1e-5)
    errors = measured.metrics["rmse"]
    assert result.summary(metric="rmse").worst == float(errors.max())  # the largest error is the worst
    assert set(result.to_pandas().query("split == 'test'").metric) == {"loss", "mae", "rmse", "r2"}
