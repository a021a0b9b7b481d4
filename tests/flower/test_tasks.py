"""Every task runs over Flower, by the client program and by a loop of the user's own, as `propfair.train` runs it."""

from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import propfair
from propfair.algorithms import ALGORITHMS
from propfair.flower import FairStrategy, client_app, fair_mod, fair_sampler
from tests.flower.grid import LocalGrid
from tests.flower.test_strategy import assert_close
from tests.tasks.scenes import NUM_CLIENTS, SCENES

LOCAL = propfair.LocalTraining(lr=0.05, batch_size=8)
CRITERIA: dict[str, nn.Module] = {
    "single-label": nn.CrossEntropyLoss(),
    "binary": nn.BCEWithLogitsLoss(),
    "multi-label": nn.BCEWithLogitsLoss(),
    "regression": nn.MSELoss(),
    "per-position": nn.CrossEntropyLoss(),
}
NAMES = [
    name for name, scene in SCENES.items() if scene.collate is None and isinstance(scene.client(0)[0], torch.Tensor)
]
RULES = ["propfair", "afl", "fedmgda+"]


def clients(name: str) -> list[Any]:
    """Each with its test data, so that nothing is left to chance."""
    held = [SCENES[name].client(seed) for seed in range(NUM_CLIENTS)]
    return [{"train": (x[:-6], y[:-6]), "test": (x[-6:], y[-6:])} for x, y in held]


def trained(name: str, rule: str, app: ClientApp) -> tuple[dict[str, torch.Tensor], FairStrategy]:
    scene = SCENES[name]
    given = FairStrategy(ALGORITHMS.make(rule), scene.module(), local=LOCAL, seed=4)
    start = ArrayRecord(scene.module().state_dict())
    result = given.start(grid=LocalGrid(app, NUM_CLIENTS), initial_arrays=start, num_rounds=2)
    return dict(result.arrays.to_torch_state_dict()), given


def expected(name: str, rule: str) -> propfair.Result:
    scene = SCENES[name]
    return propfair.train(
        scene.module(), clients(name), rule, rounds=2, local=LOCAL, seed=4, eval_every=1, engine="inprocess",
        lean=False, **{"task": scene.task, **scene.options},
    )  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NAMES)
def test_the_client_program_runs_every_task(name: str, rule: str) -> None:
    scene = SCENES[name]
    options = {key: value for key, value in scene.options.items() if key in ("loss", "task", "metrics")}
    app = client_app(
        scene.module,
        lambda context: clients(name)[int(context.node_config["partition-id"])],
        **{"task": scene.task, **options},
    )
    found, given = trained(name, rule, app)
    result = expected(name, rule)
    assert_close(found, dict(result.model.state_dict()))
    last = result.run.evaluation("test").values()
    assert given.evaluations[2].keys() == last.keys()
    for metric, of_clients in given.evaluations[2].items():
        assert list(of_clients.values()) == pytest.approx(last[metric].tolist(), abs=1e-5)


@pytest.mark.parametrize("rule", RULES[:2])
@pytest.mark.parametrize("task", CRITERIA)
def test_a_loop_of_ones_own_runs_every_task(task: str, rule: str) -> None:
    name = next(name for name in NAMES if SCENES[name].task == task)
    scene = SCENES[name]

    def batches(context: Context) -> DataLoader[Any]:
        data = TensorDataset(*clients(name)[int(context.node_config["partition-id"])]["train"])
        return DataLoader(data, LOCAL.batch_size, sampler=fair_sampler(data))

    app = ClientApp(mods=[fair_mod(batches)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, loader = scene.module(), batches(context)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]
        optimizer, criterion = torch.optim.SGD(model.parameters(), lr=LOCAL.lr), CRITERIA[task]
        for x, y in loader:
            optimizer.zero_grad()
            output = model(x)
            criterion(output if output.shape != (*y.shape, 1) else output.squeeze(1), y).backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": len(loader.dataset)})  # type: ignore[arg-type]
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    found, _ = trained(name, rule, app)
    assert_close(found, dict(expected(name, rule).model.state_dict()), 2e-6)
