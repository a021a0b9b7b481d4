"""Every task runs over Flower, by the client program and by a loop of the user's own, as `propfair.train` runs it."""

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import propfair
from propfair.algorithms import ALGORITHMS
from propfair.errors import TrainingError
from propfair.federation import from_datasets
from propfair.flower import FairStrategy, client_app, fair_mod, fair_sampler
from tests.flower.grid import LocalGrid
from tests.flower.tasksapp.tasksapp.client_app import app_of
from tests.flower.tasksapp.tasksapp.server_app import LOCAL, SEED
from tests.flower.test_strategy import assert_close
from tests.tasks.scenes import NUM_CLIENTS, SCENES

CRITERIA: dict[str, nn.Module] = {
    "single-label": nn.CrossEntropyLoss(),
    "binary": nn.BCEWithLogitsLoss(),
    "multi-label": nn.BCEWithLogitsLoss(),
    "regression": nn.MSELoss(),
    "per-position": nn.CrossEntropyLoss(),
}
RULES = ["propfair", "afl", "fedmgda+"]


def trained(
    name: str, rule: str, app: ClientApp, local: propfair.LocalTraining = LOCAL
) -> tuple[dict[str, torch.Tensor], FairStrategy]:
    scene = SCENES[name]
    given = FairStrategy(ALGORITHMS.make(rule), scene.module(), local=local, seed=SEED)
    start = ArrayRecord(scene.module().state_dict())
    result = given.start(grid=LocalGrid(app, NUM_CLIENTS), initial_arrays=start, num_rounds=2)
    return dict(result.arrays.to_torch_state_dict()), given


def expected(name: str, rule: str, local: propfair.LocalTraining = LOCAL) -> propfair.Result:
    scene = SCENES[name]
    data = from_datasets(scene.split_clients(), num_classes=scene.options.get("num_classes"), collate=scene.collate)
    options = {key: value for key, value in scene.options.items() if key != "num_classes"}
    return propfair.train(
        scene.module(), data, rule, rounds=2, local=local, seed=SEED, eval_every=1, engine="inprocess",
        lean=False, **{"task": scene.task, **options},
    )  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", SCENES)
def test_the_client_program_runs_every_task(name: str, rule: str) -> None:
    found, given = trained(name, rule, app_of(SCENES[name]))
    result = expected(name, rule)
    assert_close(found, dict(result.model.state_dict()))
    last = result.run.evaluation("test").values()
    assert given.evaluations[2].keys() == last.keys()
    for metric, of_clients in given.evaluations[2].items():
        assert list(of_clients.values()) == pytest.approx(last[metric].tolist(), abs=1e-5)


def local_of(name: str) -> propfair.LocalTraining:
    """A plain mean over a batch weighs long sentences more, unless there is one in each."""
    return dataclasses.replace(LOCAL, batch_size=1) if SCENES[name].collate else LOCAL


def batches_of(name: str, context: Context) -> DataLoader[Any]:
    """As loops have them: pairs where there is one input, else dicts."""
    scene, client = SCENES[name], int(context.node_config["partition-id"])
    data = scene.split_clients()[client]["train"]
    if isinstance(data, tuple):
        x, y = data
        if isinstance(x, torch.Tensor):
            data = TensorDataset(x, y)
        else:
            named = x if isinstance(x, dict) else dict(zip(("wide", "narrow"), x, strict=True))
            data = [{"label": label, **{key: named[key][at] for key in named}} for at, label in enumerate(y)]
    return DataLoader(data, local_of(name).batch_size, sampler=fair_sampler(data), collate_fn=scene.collate)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", SCENES)
def test_a_loop_of_ones_own_runs_every_task(name: str, rule: str) -> None:
    scene = SCENES[name]
    app = ClientApp(mods=[fair_mod(lambda context: batches_of(name, context))])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, loader = scene.module(), batches_of(name, context)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        optimizer, criterion = torch.optim.SGD(model.parameters(), lr=LOCAL.lr), CRITERIA[scene.task]
        for batch in loader:
            x, y = (batch, batch.pop("label")) if isinstance(batch, dict) else batch
            optimizer.zero_grad()
            output = model(**x) if isinstance(x, dict) else model(x)
            criterion(output.movedim(-1, 1) if name == "tokens" else output, y).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(loader.dataset)})  # type: ignore[arg-type]
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    found, _ = trained(name, rule, app, local_of(name))
    assert_close(found, dict(expected(name, rule, local_of(name)).model.state_dict()), 2e-6)


@pytest.mark.filterwarnings("ignore:Using a target size")  # torch's own, which users see in a log among others
@pytest.mark.parametrize("rule", RULES)
def test_an_output_that_would_be_stretched_to_the_target_ends_the_run(rule: str) -> None:
    data = TensorDataset(torch.randn(12, 4), torch.randn(12))

    def batches(context: Context) -> DataLoader[Any]:
        return DataLoader(data, 4)

    app = ClientApp(mods=[fair_mod(batches)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, criterion = nn.Linear(4, 1), nn.MSELoss()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        for x, y in batches(context):
            criterion(model(x), y).backward()
        raise AssertionError("it went on")

    given = FairStrategy(rule, nn.Linear(4, 1))
    with pytest.raises(TrainingError, match=r"output has shape \[4, 1\] and the target \[4\]"):
        given.start(grid=LocalGrid(app, 2), initial_arrays=ArrayRecord(nn.Linear(4, 1).state_dict()), num_rounds=1)


def test_a_client_can_not_read_a_table_by_itself(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("x,label\n1,yes\n2,no\n")
    for data, said in (
        ({"train": tmp_path / "own.csv"}, "got PosixPath for train"),
        ({"train": pa.table({"x": [1.0], "label": ["yes"]})}, "got Table for train"),
        ((torch.ones(2, 1), torch.ones(2)), "must be a dict with train and test; got tuple"),
        ({"training": (torch.ones(2, 1), torch.ones(2))}, "must be called train, validation and test"),
    ):
        app = client_app(lambda: nn.Linear(1, 2), lambda context, data=data: data)  # type: ignore[misc]
        given = FairStrategy("fedavg", nn.Linear(1, 2), patience=0.0)
        with pytest.raises(TrainingError, match=said):
            given.start(grid=LocalGrid(app, 2), initial_arrays=ArrayRecord(nn.Linear(1, 2).state_dict()), num_rounds=1)
