"""The two lines that make an existing Flower app fair, and what they say when something is missing."""

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg

from propfair import LocalTraining
from propfair import train as train_here
from propfair.algorithms import ALGORITHMS
from propfair.algorithms.base import Algorithm
from propfair.algorithms.ditto import Ditto
from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.propfair import PropFair
from propfair.algorithms.term import TERM
from propfair.core.rounds import Rounds
from propfair.errors import ConfigError, MissingExtraError, TrainingError
from propfair.flower import FairStrategy, client_app, fair_loss, fair_mod, fair_sampler, propfair_mod
from propfair.flower.batches import unpack_batch
from propfair.flower.messages import FORMAT, KEY
from tests.builders import REQUIRED
from tests.flower.grid import LOCAL, SEED, SIZES, LocalGrid, federation, network, own_data, scalar_loss, simulated
from tests.flower.test_strategy import assert_close, run

Form = Callable[[Tensor, Tensor], Any]  # how a batch looks in the loop
FORMS: dict[str, Form] = {
    "pairs": lambda x, y: (x, y),
    "dicts": lambda x, y: {"img": x, "label": y},
    "objects": lambda x, y: SimpleNamespace(x=x, y=y),
}


def existing_app(criterion: Any = None, named: bool = False, form: str = "pairs", **options: Any) -> ClientApp:
    """An app with a training loop of its own; the lines that make it fair are marked."""

    def batches(context: Context) -> DataLoader[Any]:
        x, y = own_data(context)["train"]
        data = TensorDataset(x, y)
        collate = DataLoader(data).collate_fn
        return DataLoader(
            data, LOCAL.batch_size, sampler=fair_sampler(data), collate_fn=lambda rows: FORMS[form](*collate(rows))
        )

    app = ClientApp(mods=[fair_mod(batches, **options)])  # this one

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = network()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        loader = batches(context)
        loss: Callable[[Tensor, Tensor], Tensor] = criterion or nn.CrossEntropyLoss()
        if named:
            loss = fair_loss(loss, model, loader)  # and this one, if the criterion is not one of torch's classes
        optimizer = torch.optim.SGD(model.parameters(), lr=LOCAL.lr)
        model.train()
        seen = []
        for _ in range(LOCAL.epochs):
            for batch in loader:
                x, y = batch if form == "pairs" else vars(batch).values() if form == "objects" else batch.values()
                optimizer.zero_grad()
                value = loss(model(x), y)
                value.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                seen.append(float(value.detach()))
        metrics = MetricRecord({"num-examples": len(loader.dataset), "mine": 2.0, "train_loss": sum(seen) / len(seen)})  # type: ignore[arg-type]
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


@pytest.mark.parametrize("name", ["term", "scaffold", "propfair"])
def test_a_criterion_of_ones_own_is_named(name: str) -> None:
    def own_loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target, reduction="none")

    algorithm = ALGORITHMS.make(name)
    found, _ = run(strategy(algorithm), LocalGrid(existing_app(own_loss, named=True)))
    assert_close(found, simulated(algorithm, 2)[0])


@pytest.mark.parametrize("form", ["dicts", "objects"])
@pytest.mark.parametrize("named", [False, True])
def test_batches_of_any_form_are_measured(form: str, named: bool) -> None:
    found, _ = run(strategy(TERM(alpha=0.5)), LocalGrid(existing_app(form=form, named=named)))
    assert_close(found, simulated(TERM(alpha=0.5), 2)[0])


def test_batches_that_nobody_understands_are_unpacked_by_the_user() -> None:
    odd = {"a": torch.ones(2), "b": torch.zeros(2)}
    with pytest.raises(ConfigError, match=r"can't tell inputs from targets in a batch that is a dict with a, b\. Pass"):
        unpack_batch(odd)
    inputs, target = unpack_batch({"input_ids": torch.ones(2), "mask": torch.ones(2), "labels": torch.zeros(2)})
    assert list(inputs) == ["input_ids", "mask"]
    assert target.tolist() == [0, 0]
    found, _ = run(strategy(TERM()), LocalGrid(existing_app(unpack=lambda batch: (batch[0], batch[1]))))
    assert_close(found, simulated(TERM(), 2)[0])


def test_losses_that_apps_report_stay_plain() -> None:
    given = strategy(ALGORITHMS.make("propfair", {"preset": "paper"}))
    _, result = run(given, LocalGrid(existing_app()), 1)
    metrics = result.train_metrics_clientapp[1]
    reports = given.outcomes[0].reports
    shares = torch.tensor(SIZES) / sum(SIZES)
    assert metrics["train_loss"] == pytest.approx(float((shares * torch.tensor(reports.running_loss)).sum()), rel=0.05)
    assert 0.9 < float(metrics["train_loss"]) < 1.5  # type: ignore[arg-type]
    assert float(metrics["fair-objective"]) < 0.5  # type: ignore[arg-type]


def flower_fedavg() -> FlowerFedAvg:
    return FlowerFedAvg(min_available_nodes=4, min_train_nodes=4, fraction_evaluate=0.0)


def test_the_fair_line_is_inert_under_the_strategies_of_flower() -> None:
    """The batches are those of torch's generator then, so both runs begin at the same seed."""
    found = []
    for app in (existing_app(), existing_app(named=True), without_mods(existing_app())):
        torch.manual_seed(0)
        grid = LocalGrid(app, shuffled=False)
        found.append(run(flower_fedavg(), grid, 2)[0])
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in other)


def without_mods(app: ClientApp) -> ClientApp:
    app._mods = []
    return app


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_propfair_needs_no_other_server_than_that_of_flower(weighting: str) -> None:
    """Buffers are averaged by the same weights there, by data here: a network without them."""

    def app() -> ClientApp:
        made = ClientApp(
            mods=[propfair_mod(lambda context: [own_data(context)["train"]], M=3.0, uniform=weighting == "uniform")]
        )

        @made.train()
        def train(message: Message, context: Context) -> Message:
            model = plain_network()
            model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
            x, y = own_data(context)["train"]
            criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
            criterion(model(x), y).backward()
            optimizer.step()
            metrics = MetricRecord({"num-examples": len(y)})
            return Message(
                RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
            )

        return made

    start = ArrayRecord(plain_network().state_dict())
    result = flower_fedavg().start(grid=LocalGrid(app()), initial_arrays=start, num_rounds=3)
    fair = PropFair(M=3.0, beta=0.0, weighting=weighting)  # type: ignore[arg-type]
    local = LocalTraining(lr=0.1, batch_size=1000)
    model = plain_network()
    train_here(model, federation(), fair, rounds=3, local=local, seed=SEED, lean=False)
    assert_close(dict(result.arrays.to_torch_state_dict()), dict(model.state_dict()))


def plain_network() -> nn.Module:
    return nn.Sequential(network()[0], network()[2])  # type: ignore[index]


def test_the_loss_on_validation_examples_is_measured_where_the_server_asks_for_it() -> None:
    validation = [(torch.ones(3, 6), torch.tensor([0, 1, 2]))]
    asked = strategy(TERM(), rounds=Rounds(loss_source="validation"))
    run(asked, LocalGrid(existing_app(validation=lambda _: validation)), num_rounds=1)
    assert len(set(asked.outcomes[0].loss.tolist())) == 1, "the same examples for all"
    for app in (existing_app(), client_app(network, own_data)):
        with pytest.raises(TrainingError, match="asks for the loss on validation examples, and the client has none"):
            run(strategy(TERM(), rounds=Rounds(loss_source="validation")), LocalGrid(app), num_rounds=1)


class TwoLosses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.CrossEntropyLoss(), nn.MultiMarginLoss()

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        both: Tensor = self.one(output, target) + self.other(output, target)
        return both


@pytest.mark.parametrize(
    ("algorithm", "app", "message"),
    [
        (PropFair(), {"criterion": functional.cross_entropy}, "no torch criterion was called.*fair_loss"),
        (PropFair(), {"criterion": TwoLosses()}, "two criteria, CrossEntropyLoss and MultiMarginLoss.*fair_loss"),
        (FedAvg(), {"criterion": nn.CrossEntropyLoss(reduction="sum")}, "must have reduction='mean'"),
        (TERM(), {"criterion": scalar_loss, "named": True}, "one number for each example"),
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
