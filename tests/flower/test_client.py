"""The two lines that make an existing Flower app fair, and what they say when something is missing."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from propfair.algorithms import ALGORITHMS
from propfair.algorithms.base import Algorithm
from propfair.algorithms.ditto import Ditto
from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.propfair import PropFair
from propfair.algorithms.term import TERM
from propfair.core.rounds import Rounds
from propfair.errors import ConfigError, MissingExtraError, TrainingError
from propfair.flower import FairStrategy, client_app, fair_loss, fair_mod, fair_sampler
from propfair.flower.messages import FORMAT, KEY
from tests.builders import REQUIRED
from tests.flower.grid import LOCAL, SEED, LocalGrid, network, own_data, scalar_loss, simulated
from tests.flower.test_strategy import assert_close, run


def existing_app(criterion: Any = None, wrap: bool = True, **options: Any) -> ClientApp:
    """An app with a training loop of its own; the lines that make it fair are marked."""
    app = ClientApp(mods=[fair_mod(lambda context: len(own_data(context)["train"][1]))])  # this one

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = network()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        data = TensorDataset(*own_data(context)["train"])
        loader = DataLoader(data, LOCAL.batch_size, sampler=fair_sampler(data))
        loss: Callable[[Tensor, Tensor], Tensor] = criterion or nn.CrossEntropyLoss()
        if wrap:
            loss = fair_loss(loss, model, loader, **options)  # and this one
        optimizer = torch.optim.SGD(model.parameters(), lr=LOCAL.lr)
        model.train()
        for _ in range(LOCAL.epochs):
            for x, y in loader:
                optimizer.zero_grad()
                loss(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        metrics = MetricRecord({"num-examples": len(data), "mine": 2.0})
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)

    return app


def strategy(algorithm: Algorithm, **options: Any) -> FairStrategy:
    return FairStrategy(algorithm, network(), local=LOCAL, seed=SEED, evaluate_every=0, patience=1.0, **options)


GLOBAL = [
    (name, options)
    for name, options in [(n, REQUIRED.get(n, {})) for n in ALGORITHMS.names()]
    + [("gifair", {"coeff": 0.9, "side": "client"})]
    if ALGORITHMS.make(name, options).personal is None
]


@pytest.mark.parametrize(("name", "options"), GLOBAL)
def test_an_existing_app_becomes_fair(name: str, options: dict[str, Any]) -> None:
    algorithm = ALGORITHMS.make(name, options)
    given = strategy(algorithm)
    found, result = run(given, LocalGrid(existing_app()))
    expected, outcomes, _ = simulated(algorithm, 2)
    assert_close(found, expected)
    for mine, other in zip(given.outcomes, outcomes, strict=True):
        assert torch.allclose(mine.loss, other.loss, atol=1e-6, equal_nan=True)
        assert mine.diagnostics == pytest.approx(other.diagnostics, nan_ok=True, abs=1e-5)
    assert result.train_metrics_clientapp[1]["mine"] == pytest.approx(2.0)


def test_the_loss_on_validation_examples_is_measured_where_the_server_asks_for_it() -> None:
    validation = [(torch.ones(3, 6), torch.tensor([0, 1, 2]))]
    asked = strategy(TERM(), rounds=Rounds(loss_source="validation"))
    run(asked, LocalGrid(existing_app(validation=validation)), num_rounds=1)
    assert len(set(asked.outcomes[0].loss.tolist())) == 1, "the same examples for all"
    for app in (existing_app(), client_app(network, own_data)):
        with pytest.raises(TrainingError, match=r"asks for the loss on validation examples, and the client has none"):
            run(strategy(TERM(), rounds=Rounds(loss_source="validation")), LocalGrid(app), num_rounds=1)


def test_batches_of_any_shape_are_measured() -> None:
    given = strategy(TERM(alpha=0.5))
    found, _ = run(given, LocalGrid(existing_app(unpack=lambda batch: (batch[0], batch[1]))))
    assert_close(found, simulated(TERM(alpha=0.5), 2)[0])


@pytest.mark.parametrize(
    ("algorithm", "app", "message"),
    [
        (PropFair(), {"wrap": False}, "did not train with the criterion of propfair.flower.fair_loss"),
        (PropFair(), {"criterion": scalar_loss}, "return one loss for each example"),
        (Ditto(), {}, "ditto trains a second model on each client.*client_app"),
    ],
)
def test_what_all_clients_got_wrong_ends_the_run_in_one_line(
    algorithm: Algorithm, app: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TrainingError, match=rf"round 1: every client failed, client 0 failed: .*{message}") as error:
        run(strategy(algorithm), LocalGrid(existing_app(**app)), 3)
    assert "\n" not in str(error.value)
    (line,) = [line for line in caplog.messages if "failed:" in line]
    assert line.startswith("round 1: clients 0, 1, 2, 3 failed: ")


@pytest.mark.parametrize("app", [existing_app(), client_app(network, own_data)])
def test_apps_can_be_sent_to_the_workers_of_a_simulation(app: ClientApp) -> None:
    cloudpickle = pytest.importorskip("ray.cloudpickle", reason="Flower's simulation needs Ray")
    found, _ = run(strategy(FedAvg()), LocalGrid(cloudpickle.loads(cloudpickle.dumps(app))), 1)
    assert_close(found, simulated(FedAvg(), 1)[0])


def test_other_strategies_pass_the_mod() -> None:
    app = ClientApp(mods=[fair_mod(lambda _: 1)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    given = FlowerFedAvg(min_available_nodes=4, fraction_evaluate=0.0)
    found, _ = run(given, LocalGrid(app), 1)
    assert_close(found, dict(network().state_dict()))


def test_helpers_outside_a_round_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"fair_loss works inside a training message.*mods=\[fair_mod"):
        fair_loss(nn.CrossEntropyLoss(), network(), [])
    with pytest.raises(ConfigError, match="fair_sampler works inside"):
        fair_sampler([1, 2])


def test_a_node_without_a_partition_and_a_server_of_another_format_are_named() -> None:
    grid = LocalGrid(existing_app())
    node = grid.nodes[0]
    question = RecordDict({"config": ConfigRecord({KEY: json.dumps({"format": FORMAT, "who": True})})})
    del grid.contexts[node].node_config["num-partitions"]
    with pytest.raises(ConfigError, match="the node has no num-partitions: start its SuperNode with --node-config"):
        grid.app(Message(question, node, "train"), grid.contexts[node])
    newer = RecordDict({"config": ConfigRecord({KEY: json.dumps({"format": FORMAT + 1})})})
    with pytest.raises(ConfigError, match="install the same version of propfair on both"):
        grid.app(Message(newer, node, "train"), grid.contexts[node])


def test_a_missing_or_old_flower_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import import_module, metadata

    def forget() -> None:
        for name in [name for name in sys.modules if name.startswith("propfair.flower")]:
            monkeypatch.delitem(sys.modules, name)

    forget()
    monkeypatch.setattr(metadata, "version", lambda _: "1.20.0")
    with pytest.raises(ConfigError, match=r"flwr must be at least 1\.41; found 1\.20\.0"):
        import_module("propfair.flower")

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    forget()
    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'propfair\[flower\]'"):
        import_module("propfair.flower")
