"""Every algorithm over Flower messages gives what it gives in one process, and survives clients that do not answer."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Result,
    Strategy,
)

from propfair import LocalTraining
from propfair import train as train_here
from propfair.algorithms import ALGORITHMS
from propfair.algorithms.afl import AFL
from propfair.algorithms.base import Algorithm
from propfair.algorithms.ditto import Ditto
from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.propfair import PropFair
from propfair.core.rounds import Rounds
from propfair.errors import ConfigError, TrainingError
from propfair.flower import FairStrategy, client_app, fair_mod, members
from tests.builders import REQUIRED
from tests.flower.grid import LOCAL, SEED, SIZES, LocalGrid, federation, network, own_data, simulated

Model = dict[str, torch.Tensor]


def strategy(algorithm: Algorithm, **options: Any) -> FairStrategy:
    return FairStrategy(algorithm, network(), local=LOCAL, seed=SEED, **options)


def run(given: Strategy, grid: LocalGrid, num_rounds: int = 2) -> tuple[Model, Result]:
    result = given.start(grid=grid, initial_arrays=ArrayRecord(network().state_dict()), num_rounds=num_rounds)
    return dict(result.arrays.to_torch_state_dict()), result


def assert_close(found: Model, expected: Model, tolerance: float = 1e-6) -> None:
    assert list(found) == list(expected)
    for name in expected:
        assert torch.allclose(found[name].double(), expected[name].double(), rtol=0, atol=tolerance), name


CASES = [(name, REQUIRED.get(name, {})) for name in ALGORITHMS.names()]
CASES += [("gifair", {"coeff": 0.9, "side": "client"}), ("ditto", {"over": "afl"})]
CASES += [("propfair", {"placement": "update"}), ("propfair", {"placement": "step"}), ("propfair", {"preset": "paper"})]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_result_is_that_of_one_process(name: str, options: dict[str, Any]) -> None:
    algorithm = ALGORITHMS.make(name, options)
    rounds = Rounds(participation=0.75)
    given = strategy(algorithm, rounds=rounds)
    found, _ = run(given, LocalGrid(client_app(network, own_data)))
    expected, outcomes, _ = simulated(algorithm, 2, rounds)
    assert_close(found, expected)
    for mine, other in zip(given.outcomes, outcomes, strict=True):
        assert mine.clients == other.clients
        assert torch.allclose(mine.weights, other.weights, atol=1e-6)
        assert mine.diagnostics == pytest.approx(other.diagnostics, nan_ok=True, abs=1e-5)


def test_bits_are_equal_where_no_loss_is_measured() -> None:
    on_the_step = PropFair(placement="step")
    found, _ = run(strategy(on_the_step), LocalGrid(client_app(network, own_data)))
    expected, _, _ = simulated(on_the_step, 2)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_an_average_of_models_is_handed_out_and_training_goes_on_from_the_last() -> None:
    algorithm = AFL(average_iterates=True)
    found, _ = run(strategy(algorithm), LocalGrid(client_app(network, own_data)), 3)
    assert_close(found, simulated(algorithm, 3)[0])


def test_personal_models_stay_in_the_state_of_the_client() -> None:
    given = strategy(Ditto(lam=0.5))
    grid = LocalGrid(client_app(network, own_data))
    _, result = run(given, grid, 3)
    _, _, losses = simulated(Ditto(lam=0.5), 3)
    assert list(given.evaluations[3]["personal_loss"].values()) == pytest.approx(losses.tolist(), abs=1e-6)
    assert all("propfair.memory" in context.state for context in grid.contexts.values())
    assert "personal_loss.worst10" in result.evaluate_metrics_clientapp[3]


def test_evaluation_keeps_each_client_and_says_how_the_worst_are_off() -> None:
    given = strategy(FedAvg(), evaluate_every=2)
    _, result = run(given, LocalGrid(client_app(network, own_data)))
    losses = given.evaluations[2]["loss"]
    assert list(losses) == [0, 1, 2, 3]
    assert list(losses.values()) == pytest.approx(simulated(FedAvg(), 2)[2].tolist(), abs=1e-6)
    metrics = result.evaluate_metrics_clientapp
    assert list(metrics) == [2]
    assert metrics[2]["loss.worst"] == max(losses.values())
    assert metrics[2]["accuracy.worst"] == min(given.evaluations[2]["accuracy"].values())
    assert metrics[2]["loss"] == pytest.approx(np.average(list(losses.values()), weights=SIZES))


def test_a_client_that_is_away_silent_or_broken_is_left_out() -> None:
    grid = LocalGrid(client_app(network, own_data))
    given = strategy(AFL())
    messages = given.configure_train(1, ArrayRecord(network().state_dict()), ConfigRecord(), grid)
    replies = {m.metadata.src_node_id: m for m in grid.send_and_receive(messages)}
    broken = replies.pop(grid.nodes[2])
    del replies[grid.nodes[0]]
    arrays, _ = given.aggregate_train(1, [*replies.values(), Message(Error(1, "out of memory"), reply_to=broken)])
    assert arrays is not None
    assert given.outcomes[0].dropped == (0, 2)
    assert float(given.outcomes[0].weights.sum()) == pytest.approx(1)

    grid.away = {3}
    sent = list(given.configure_train(2, arrays, {}, grid))  # type: ignore[arg-type]
    assert [grid.nodes.index(message.metadata.dst_node_id) for message in sent] == [0, 1, 2]


def test_a_diverged_client_is_left_out() -> None:
    def spoil(reply: Message) -> None:
        if reply.metadata.src_node_id == grid.nodes[1] and "arrays" in reply.content:
            state = reply.content.array_records["arrays"].to_torch_state_dict()
            state["0.bias"] = state["0.bias"] * math.inf
            reply.content["arrays"] = ArrayRecord(state)

    grid = LocalGrid(client_app(network, own_data))
    grid.tampered = spoil
    given = strategy(PropFair())
    found, _ = run(given, grid)
    assert [outcome.dropped for outcome in given.outcomes] == [(1,), (1,)]
    assert all(value.isfinite().all() for value in found.values())

    grid.tampered = spoil
    with pytest.raises(TrainingError, match=r"client 1 diverged"):
        run(strategy(PropFair(), rounds=Rounds(strict=True)), grid)


def test_a_round_without_answers_keeps_the_model() -> None:
    grid = LocalGrid(client_app(network, own_data))
    given = strategy(FedAvg(), evaluate_every=0)
    start = ArrayRecord(network().state_dict())
    list(given.configure_train(1, start, {}, grid))  # type: ignore[arg-type]
    assert given.aggregate_train(1, []) == (None, None)
    assert not given.outcomes
    found, _ = run(given, grid, 1)
    assert_close(found, simulated(FedAvg(), 1)[0])


def test_a_part_of_a_model_can_travel_alone() -> None:
    """Adapters: the server is given what travels, and knows no module."""

    def network_of(context: Context) -> tuple[nn.Module, list[str]]:
        model = without_buffers()
        return model, [name for name, _ in model.named_parameters() if name.startswith("0.")]

    app = ClientApp(mods=[fair_mod(lambda context: [own_data(context)["train"]])])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, names = network_of(context)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)  # type: ignore[union-attr]
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in names)
        x, y = own_data(context)["train"]
        nn.CrossEntropyLoss()(model(x), y).backward()
        moved = {name: (p - 0.1 * p.grad).detach() for name, p in model.named_parameters() if name in names}  # type: ignore[operator]
        content = {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(RecordDict(content), reply_to=message)  # type: ignore[arg-type]

    part = {name: value for name, value in without_buffers().state_dict().items() if name.startswith("0.")}
    given = FairStrategy("afl", part, evaluate_every=0)
    result = given.start(grid=LocalGrid(app), initial_arrays=ArrayRecord(part), num_rounds=2)
    assert list(result.arrays) == list(part)
    frozen = without_buffers()
    for name, parameter in frozen.named_parameters():
        parameter.requires_grad_(name in part)
    local = LocalTraining(lr=0.1, batch_size=1000)
    train_here(frozen, federation(), "afl", rounds=2, local=local, lean=False)
    assert_close(dict(result.arrays.to_torch_state_dict()), {name: frozen.state_dict()[name] for name in part})


def test_a_client_that_comes_back_as_another_node_is_the_same_client() -> None:
    grid = LocalGrid(client_app(network, own_data))
    given = strategy(AFL(), evaluate_every=0)
    arrays = ArrayRecord(network().state_dict())
    for server_round in (1, 2):
        messages = given.configure_train(server_round, arrays, ConfigRecord(), grid)
        new, _ = given.aggregate_train(server_round, grid.send_and_receive(messages))
        assert new is not None
        arrays = new
        old, fresh = grid.nodes[2], 7
        grid.nodes[2] = fresh
        grid.contexts[fresh] = grid.contexts.pop(old)
        grid.contexts[fresh].node_id = fresh
    assert_close(dict(arrays.to_torch_state_dict()), simulated(AFL(), 2)[0])


def test_set_ups_that_can_not_work_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "POLL_SECONDS", 0.0)
    grid = LocalGrid(client_app(network, own_data))
    grid.away = {1, 3}
    with pytest.raises(TrainingError, match=r"2 of 4 clients are there after 0 s, missing: \[1, 3\].*partition-id"):
        run(strategy(FedAvg(), patience=0.0), grid)

    with pytest.raises(TrainingError, match=r"0 of an unknown number of clients.*fair_mod"):
        run(strategy(FedAvg(), patience=0.0), LocalGrid(ClientApp()))

    grid = LocalGrid(client_app(network, own_data))
    grid.contexts[grid.nodes[3]].node_config["partition-id"] = 1
    with pytest.raises(ConfigError, match="two SuperNodes are client 1"):
        run(strategy(FedAvg()), grid)
    grid.contexts[grid.nodes[3]].node_config["partition-id"] = 4
    with pytest.raises(TrainingError, match=r"missing: \[3\].*partition-id=4 must be below num-partitions=4"):
        run(strategy(FedAvg(), patience=0.0), grid)
    grid.contexts[grid.nodes[3]].node_config |= {"partition-id": 3, "num-partitions": 5}
    with pytest.raises(ConfigError, match="give all SuperNodes the same num-partitions"):
        run(strategy(FedAvg()), grid)

    with pytest.raises(ConfigError, match="initial_arrays do not fit the model of the strategy"):
        run(FairStrategy(FedAvg(), nn.Linear(2, 2)), LocalGrid(client_app(network, own_data)))


# Differential privacy, as far as Flower offers it for strategies of this kind.


def without_buffers() -> nn.Module:
    """Flower's clipping has no answer to integer buffers."""
    return nn.Sequential(network()[0], network()[2])  # type: ignore[index]


def moved(given: Strategy, mods: list[Any], num_rounds: int = 1) -> float:
    """How far the model moves."""
    start = ArrayRecord(without_buffers().state_dict())
    grid = LocalGrid(client_app(without_buffers, own_data, mods=mods))
    result = given.start(grid=grid, initial_arrays=start, num_rounds=num_rounds)
    pairs = zip(result.arrays.to_numpy_ndarrays(), start.to_numpy_ndarrays(), strict=True)
    return math.sqrt(sum(float(((new - old) ** 2).sum()) for new, old in pairs))


FIXED, ADAPTIVE = {"clipping_norm": 0.01}, {"initial_clipping_norm": 0.01, "clipped_count_stddev": 1.0}


@pytest.mark.parametrize(
    ("wrapper", "options", "mods"),
    [
        (DifferentialPrivacyServerSideFixedClipping, FIXED, []),
        (DifferentialPrivacyClientSideFixedClipping, FIXED, [fixedclipping_mod]),
        (DifferentialPrivacyServerSideAdaptiveClipping, ADAPTIVE, []),
        (DifferentialPrivacyClientSideAdaptiveClipping, ADAPTIVE, [adaptiveclipping_mod]),
    ],
)
def test_propfair_runs_under_central_differential_privacy(wrapper: Any, options: Any, mods: list[Any]) -> None:
    np.random.seed(0)  # noqa: NPY002 (Flower draws its noise from it)

    def private(noise: float) -> Strategy:
        plain = FairStrategy(PropFair(), without_buffers(), local=LOCAL, seed=SEED, evaluate_every=0)
        made: Strategy = wrapper(plain, noise_multiplier=noise, num_sampled_clients=len(SIZES), **options)
        return made

    quiet = moved(private(0.0), mods)
    assert 0.002 < quiet < 0.0101  # an average of updates that are clipped to 0.01
    assert moved(private(1.0), mods) > quiet
    assert moved(private(0.0), mods, 3) > 2 * quiet  # rounds build on each other


def test_propfair_runs_under_local_differential_privacy() -> None:
    np.random.seed(0)  # noqa: NPY002
    plain = FairStrategy(PropFair(), without_buffers(), local=LOCAL, seed=SEED, evaluate_every=0)
    noise = 0.001
    epsilon = 0.01 * math.sqrt(2 * math.log(1.25 / 1e-5)) / noise
    assert 0.002 < moved(plain, [LocalDpMod(0.01, 0.01, epsilon, 1e-5)]) < 0.02
    assert moved(plain, [LocalDpMod(0.01, 0.01, epsilon / 1000, 1e-5)]) > 0.1


def test_the_noise_of_a_wrapper_reaches_an_algorithm_that_hands_out_an_average() -> None:
    def bias_sent(noise: float) -> torch.Tensor:
        given = FairStrategy(AFL(average_iterates=True), without_buffers(), local=LOCAL, seed=SEED)
        grid = LocalGrid(client_app(without_buffers, own_data))
        messages = given.configure_train(1, ArrayRecord(without_buffers().state_dict()), ConfigRecord(), grid)
        arrays, _ = given.aggregate_train(1, grid.send_and_receive(messages))
        assert arrays is not None
        noisy = ArrayRecord({name: Array(value + noise) for name, value in arrays.to_torch_state_dict().items()})
        first, *_ = given.configure_train(2, noisy, ConfigRecord(), grid)
        return first.content.array_records["arrays"].to_torch_state_dict()["0.bias"]

    assert torch.allclose(bias_sent(0.5), bias_sent(0.0) + 0.5)


def test_flower_has_no_secure_aggregation_for_strategies_of_this_kind() -> None:
    """Once it has, PropFair on the update, which needs only sums, should run under it; docs/flower.md says it can't."""
    import flwr.clientapp.mod
    import flwr.serverapp

    offered = [*dir(flwr.clientapp.mod), *dir(flwr.serverapp), *dir(flwr.serverapp.strategy)]
    assert not [name for name in offered if "secagg" in name.lower() or "secure" in name.lower()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": 5}, r"rounds must be of class Rounds; got 5\. How many there are goes to start\(num_rounds="),
        ({"local": {"lr": 0.1}}, "local must be of class LocalTraining"),
        ({"limits": {}}, "limits must be of class Limits"),
        ({"seed": -1}, "seed must be a whole number of at least 0; got seed=-1"),
        ({"model": nn.Linear}, "model must be a torch.nn.Module, or tensors by name"),
    ],
)
def test_wrong_arguments_are_told_before_clients_are_waited_for(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FairStrategy("propfair", **{"model": network(), **options})
