"""Every kind of task: trained to the known optimum, as a plain loop does, and on every engine."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import propfair
from propfair.algorithms.fedavg import FedAvg
from propfair.core.client import Workload, batch_order
from propfair.core.losses import choose_task
from propfair.core.tasks import TASKS
from propfair.engines.session import ENGINES
from propfair.errors import ConfigError, DataError, PropFairWarning
from propfair.federation.own import from_datasets
from tests.builders import seeded
from tests.tasks.scenes import SCENES, Scene, Tagger, coefficients, padded

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
    size = 1 if scene.collate else 8  # a plain mean over a batch weighs long sentences more; here examples count alike
    data = from_datasets({"ann": scene.client(0)}, collate=scene.collate)
    settings = {key: value for key, value in scene.options.items() if key != "num_classes"}
    trained = propfair.train(scene.module(), data, "fedavg", rounds=1, lr=0.1, batch_size=size, epochs=3, **settings)
    model, criterion = scene.module(), scene.options.get("loss", nn.CrossEntropyLoss())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    work = propfair.LocalTraining(lr=0.1, batch_size=size, epochs=3)
    for index in batch_order(Workload(data, FedAvg(), work), 1, 0):
        ((x, y),) = data.examples.read([index])
        output = model(**x) if isinstance(x, dict) else model(*x) if isinstance(x, tuple) else model(x)
        optimizer.zero_grad()
        criterion(output.movedim(-1, 1) if name == "tokens" else output, y).backward()
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


IN_EVERY_TEST_RUN = [("binary", "propfair"), ("tokens", "propfair")]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *IN_EVERY_TEST_RUN,
        *(
            pytest.param(name, rule, marks=pytest.mark.slow)
            for name in SCENES
            for rule in RULES
            if (name, rule) not in IN_EVERY_TEST_RUN
        ),
    ],
)
def test_worker_processes_give_the_same_bits(name: str, rule: str) -> None:
    scene, algorithm = SCENES[name], propfair.algorithm(rule, **RULES[rule])
    metrics = ["rmse" if scene.task == "regression" else "f1"]
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


class Texts(Dataset[Any]):
    """Texts of given lengths, with a label of three for each token."""

    def __init__(self, *lengths: int) -> None:
        rng = torch.Generator().manual_seed(0)
        self._items = [torch.randint(10, (length,), generator=rng) for length in lengths]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self._items[place], self._items[place] % 3


class ClassesSecond(Tagger):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).movedim(-1, 1)


def tagged(model: Callable[[], nn.Module], *lengths: int, engine: str = "inprocess") -> propfair.Result:
    texts = Texts(*lengths)
    data = from_datasets([{"train": texts, "test": texts}] * 2, num_classes=3, collate=padded)
    return propfair.train(
        seeded(model, 1), data, "propfair", rounds=2, lr=0.1, batch_size=1, eval_every=1, metrics=["f1"], engine=engine
    )


@pytest.mark.parametrize("lengths", [(3, 5, 3, 2), (5, 3, 3)])
def test_a_text_as_long_as_there_are_classes_is_read_as_the_others_are(lengths: tuple[int, ...]) -> None:
    last, second = tagged(Tagger, *lengths), tagged(ClassesSecond, *lengths)
    for one, other in zip(last.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert last.to_arrow().drop_columns("run").equals(second.to_arrow().drop_columns("run"))
    texts = [{"train": Texts(*lengths), "test": Texts(*lengths)}]
    found = propfair.evaluate(last.model, from_datasets(texts, num_classes=3, collate=padded), split="test")
    assert float(found.loss[0]) == pytest.approx(float(last.run.evaluation("test").values()["loss"][0]))


def test_where_no_text_tells_the_place_of_the_classes_a_warning_does() -> None:
    with pytest.warns(PropFairWarning, match=r"\[1, 3, 3\] may have its classes in the second or in the last place"):
        tagged(ClassesSecond, 3, 3)


def test_ignored_positions_do_not_count() -> None:
    output, target = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2, -100, -100], [1, 1, 0, 2, 0]])
    task = TASKS["per-position"]
    losses = task.loss(output, target)
    assert float(losses[0]) == pytest.approx(float(nn.functional.cross_entropy(output[:1, :, :3], target[:1, :3])))
    assert float(task.scores(output, target)[0]) == float((output[0, :, :3].argmax(0) == target[0, :3]).float().mean())
    _, own = choose_task(None, nn.CrossEntropyLoss(), target)
    torch.testing.assert_close(own(output, target), losses)
    torch.testing.assert_close(own(output.movedim(1, -1), target), losses)
