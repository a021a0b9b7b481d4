"""Every kind of task: trained to the known optimum, as a plain loop does, and on every engine."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import propfair
from propfair.algorithms.fedavg import FedAvg
from propfair.core.client import Workload, batch_order
from propfair.core.losses import choose_task
from propfair.core.tasks import TASKS
from propfair.engines.session import ENGINES
from propfair.errors import ConfigError, DataError
from propfair.federation.own import from_datasets
from tests.tasks.scenes import SCENES, Scene, coefficients

RULES = {"propfair": {"M": 50.0}, "afl": {}, "fedmgda+": {}}


def train(scene: Scene, algorithm: Any = "fedavg", **options: Any) -> propfair.Result:
    settings = {"rounds": 2, "lr": 0.1, "batch_size": 8, "eval_every": 1, **scene.options, **options}
    data = from_datasets(scene.clients(), num_classes=settings.pop("num_classes", None), collate=scene.collate)
    return propfair.train(scene.module(), data, algorithm, **settings)


@pytest.mark.parametrize("name", ["regression", "several outputs"])
def test_regression_recovers_the_coefficients(name: str) -> None:
    result = train(SCENES[name], rounds=150, lr=0.1, eval_every=150)
    weight = next(result.model.parameters()).detach()
    torch.testing.assert_close(weight, coefficients()[: len(weight)], rtol=0, atol=1e-3)
    assert float(result.evaluation("test").metrics["mae"].max()) < 1e-3


@pytest.mark.parametrize("name", sorted(SCENES))
def test_one_client_trains_as_a_plain_loop_does(name: str) -> None:
    scene = SCENES[name]
    if name == "tokens":
        pytest.skip("a plain mean over a batch weighs long sentences more: the mean is over examples here")
    data = from_datasets({"ann": scene.client(0)})
    settings = {key: value for key, value in scene.options.items() if key != "num_classes"}
    trained = propfair.train(scene.module(), data, "fedavg", rounds=1, lr=0.1, batch_size=8, epochs=3, **settings)
    model, criterion = scene.module(), scene.options.get("loss", nn.CrossEntropyLoss())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    work = propfair.LocalTraining(lr=0.1, batch_size=8, epochs=3)
    for index in batch_order(Workload(data, FedAvg(), work), 1, 0):
        x, y = data.examples.inputs(index), data.examples.targets(index)
        output = model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, tuple) else model(x)
        optimizer.zero_grad()
        criterion(output, y).backward()
        optimizer.step()
    for ours, theirs in zip(trained.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("name", sorted(SCENES))
def test_stacked_clients_give_the_same_model(name: str, rule: str) -> None:
    scene, algorithm = SCENES[name], propfair.algorithm(rule, **RULES[rule])
    alone = train(scene, algorithm, engine="inprocess")
    stacked = train(scene, algorithm, engine="vectorized")
    assert alone.state == stacked.state == "finished"
    assert scene.stackable == (not any("client by client" in note for note in stacked.notes))
    for ours, theirs in zip(stacked.model.parameters(), alone.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("binary", ["f1"]),
        ("tokens", []),
        *(
            pytest.param(name, ["rmse" if scene.task == "regression" else "f1"], marks=pytest.mark.slow)
            for name, scene in SCENES.items()
            if name not in ("binary", "tokens")
        ),
    ],
)
def test_worker_processes_give_the_same_bits(name: str, metrics: list[str]) -> None:
    scene, algorithm = SCENES[name], propfair.algorithm("propfair", M=50.0)
    alone, apart = (
        train(scene, algorithm, engine=make_engine(engine), metrics=metrics) for engine in ("inprocess", "processes")
    )
    for ours, theirs in zip(apart.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert apart.to_arrow().drop_columns("run").equals(alone.to_arrow().drop_columns("run"))


def make_engine(name: str) -> Any:
    return ENGINES.make(name, {"workers": 2} if name == "processes" else {"threads": 1})


@pytest.mark.parametrize("name", sorted(SCENES))
def test_the_task_follows_from_loss_and_targets(name: str) -> None:
    scene = SCENES[name]
    data = from_datasets(scene.clients(), num_classes=scene.options.get("num_classes"), collate=scene.collate)
    task, _ = choose_task(None, scene.options.get("loss"), data.examples.targets(data.train[0][:2]))
    assert task.name == scene.task
    named, _ = choose_task(scene.task, None, data.examples.targets(data.train[0][:2]))
    assert named.name == scene.task


X, LABELS, NUMBERS = torch.randn(20, 4), torch.arange(20) % 3, torch.randn(20)


@pytest.mark.parametrize(
    ("model", "target", "options", "said"),
    [
        (nn.Linear(4, 1), NUMBERS, {"loss": nn.MSELoss()}, r"output has shape \[2, 1\] and the target \[2\]"),
        (nn.Linear(4, 1), NUMBERS, {"loss": nn.functional.mse_loss}, r"\[2, 1\] and the target \[2\]"),
        (nn.Linear(4, 3), NUMBERS, {"loss": nn.MSELoss()}, r"\[2, 3\] and the target \[2\]"),
        (nn.Linear(4, 1), NUMBERS, {}, "no loss was given. Pass task='regression'"),
        (nn.Linear(4, 1), LABELS, {}, r"output must be \[batch, 3\] for 3 classes"),
        (nn.Linear(4, 1), LABELS % 2, {}, "pass task='binary'"),
        (nn.Linear(4, 2), LABELS % 2, {"task": "binary"}, "one logit for each example"),
        (nn.Linear(4, 1), LABELS, {"task": "binary"}, "between 0 and 1; found 0 to 2"),
        (nn.Linear(4, 3), NUMBERS, {"task": "single-label"}, "one integer label each"),
        (nn.Linear(4, 3), LABELS, {"task": "clasification"}, "unknown task"),
        (nn.Linear(4, 3), torch.stack([LABELS, LABELS], 1), {}, "pass task='multi-label'"),
        (nn.Linear(4, 3), LABELS, {"loss": lambda output, target: (output - target) ** 2}, "does not take output"),
        (nn.Linear(4, 3), LABELS, {"loss": lambda output, target: output.mean()}, "one number for each example"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(
    model: nn.Module, target: Tensor, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=said):
        propfair.train(model, [(X, target)], rounds=1, **options)


def test_a_named_task_needs_no_loss() -> None:
    result = propfair.train(nn.Linear(4, 1), [(X, NUMBERS)], rounds=2, task="regression")
    assert "mae" in result.evaluation("test").metrics
    result = propfair.train(nn.Linear(4, 1), [(X, LABELS % 2)], rounds=2, task="binary")
    assert result.accuracy.isfinite().all()


def test_ignored_positions_do_not_count() -> None:
    output, target = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2, -100, -100], [1, 1, 0, 2, 0]])
    task = TASKS["per-position"]
    losses = task.loss(output, target)
    assert float(losses[0]) == pytest.approx(float(nn.functional.cross_entropy(output[:1, :, :3], target[:1, :3])))
    assert float(task.scores(output, target)[0]) == float((output[0, :, :3].argmax(0) == target[0, :3]).float().mean())
    _, own = choose_task(None, nn.CrossEntropyLoss(), target)
    torch.testing.assert_close(own(output, target), losses)
    torch.testing.assert_close(own(output.movedim(1, -1), target), losses)
