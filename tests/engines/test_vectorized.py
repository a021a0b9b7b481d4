"""Stacked clients: the results of client by client up to rounding, or a plain word why not."""

import logging
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from propfair.algorithms.base import ALGORITHMS
from propfair.algorithms.propfair import PropFair
from propfair.core.client import Workload, batch_order
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.core.tasks import OtherTask
from propfair.data.base import ArrayExamples
from propfair.engines import vectorized
from propfair.engines.inprocess import InProcess
from propfair.engines.server import Server
from propfair.engines.stacked import gradients as stacked
from propfair.engines.stacked.batches import stacked_batches
from propfair.engines.vectorized import StackedProcessesSession, StackedSession, Vectorized
from propfair.errors import ConfigError
from tests.contract.test_algorithms import CASES
from tests.engines import scenes

TOLERANCE = 1e-5


def fixed_seed(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def built() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(2)
            return build()

    return built


class Tied(nn.Module):
    """Uses one matrix twice, and has a frozen one and a constant buffer."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 6)
        self.fixed = nn.Parameter(torch.randn(6, 6), requires_grad=False)
        self.head = nn.Linear(6, 3, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.linspace(-1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.mix(self.mix(x + self.shift) @ self.fixed))
        out: Tensor = self.scale * self.head(x)
        return out


class Image(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1), nn.GroupNorm(2, 4), nn.GELU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3),
        )  # fmt: skip


class Relu(nn.Module):
    """Linear layers that are not in an nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 7, bias=False), nn.Linear(7, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.third(self.second(torch.relu(self.first(x.flatten(1)))).relu())
        return out


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "logistic": fixed_seed(lambda: nn.Linear(6, 3)),
    "relu": fixed_seed(Relu),
    "tied": fixed_seed(Tied),
    "image": fixed_seed(Image),
}


def check(work: Workload, build: Callable[[], nn.Module], rounds: Rounds | None = None, **options: Any) -> None:
    expected = scenes.run(InProcess(threads=1), work, build(), rounds, num_rounds=3)
    found = scenes.run(Vectorized(**options), work, build(), rounds, num_rounds=3)
    assert not found.notes
    scenes.assert_same(found, expected, TOLERANCE)


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_every_algorithm_in_closed_form(name: str, options: dict[str, Any]) -> None:
    check(scenes.workload(ALGORITHMS.make(name, options)), scenes.mlp)


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_every_algorithm_with_any_module(name: str) -> None:
    check(scenes.workload(name), NETWORKS["tied"])


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    "local",
    [
        {"epochs": 3},
        {"steps": 7, "momentum": 0.9},
        {"steps": tuple(1 + 5 * client % 7 for client in range(len(scenes.SIZES))), "weight_decay": 0.1},
        {"batch_size": 1000},
    ],
    ids=str,
)
def test_local_training(network: str, local: dict[str, Any]) -> None:
    check(scenes.workload(PropFair(placement="step"), **local), NETWORKS[network], Rounds(participation=7))


def test_learning_rates_of_clients_scale_weight_decay_and_momentum_too() -> None:
    algorithm = ALGORITHMS.make("gifair", {"coeff": 0.9, "side": "client"})
    check(scenes.workload(algorithm, weight_decay=0.1, momentum=0.5), scenes.mlp)


@pytest.mark.parametrize("network", NETWORKS)
def test_recorded_gradients(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "CALLS_BEFORE_RECORDING", 2)
    check(scenes.workload(PropFair(placement="step")), NETWORKS[network])


@pytest.mark.parametrize("network", NETWORKS)
def test_bf16(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "CALLS_BEFORE_RECORDING", 2)
    work, build = scenes.workload(PropFair(placement="step"), precision="bf16"), NETWORKS[network]
    expected = scenes.run(InProcess(threads=1), work, build())
    found = scenes.run(Vectorized(), work, build())
    assert not found.notes
    scenes.assert_same(found, expected, 0.02)  # sums in another order, and then rounded to eight bits
    assert not torch.equal(
        found.params, scenes.run(Vectorized(), scenes.workload(PropFair(placement="step")), build()).params
    )


@pytest.mark.parametrize("network", ["relu", "image"])
def test_little_memory_means_small_chunks_and_nothing_else(network: str) -> None:
    check(scenes.workload("fedmgda+"), NETWORKS[network], memory=1e-5)


def test_personal_models_with_few_clients_a_round() -> None:
    check(scenes.workload("ditto"), scenes.mlp, Rounds(participation=3))


@pytest.mark.parametrize("name", ["propfair", "fedmgda+", "ditto", "term"])
@pytest.mark.parametrize("network", ["relu", "tied"])
def test_stacks_on_two_processes(name: str, network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorized, "ROW_BYTES", 5 * 4 * 74)  # not the whole cohort at once
    work, model = scenes.workload(name), FlatModel(NETWORKS[network]())
    expected = scenes.run(InProcess(threads=1), work, NETWORKS[network](), Rounds(participation=11), num_rounds=3)
    with Vectorized(workers=2).start(model, work) as session:
        found = scenes.play(session, model, Rounds(participation=11), num_rounds=3)
        assert isinstance(session.inner, StackedProcessesSession)
    scenes.assert_same(found, expected, TOLERANCE)


def test_a_stack_whose_process_dies_is_run_again() -> None:
    work, model = scenes.workload("ditto"), FlatModel(scenes.mlp())
    expected = scenes.run(InProcess(threads=1), work, scenes.mlp(), num_rounds=3)
    with Vectorized(workers=2).start(model, work) as session:
        server = Server(session, Rounds(), model.params, model.buffers)
        server.run_round()
        assert isinstance(session.inner, StackedProcessesSession)
        os.kill(session.inner.pids[0], signal.SIGKILL)
        server.run_round()
        server.run_round()
        assert [event.kind for event in session.events] == ["rerun"]
    torch.testing.assert_close(server.params, expected.params, rtol=TOLERANCE, atol=TOLERANCE)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean(1)


def test_real_valued_targets() -> None:
    data = scenes.federation()
    x = data.examples.tensors()["x"]
    data = replace(data, examples=ArrayExamples(x, x[:, :3].sin(), num_classes=0))
    work = replace(scenes.workload(PropFair(placement="step"), data=data), loss=squared_error, task=OtherTask())
    for network in ("logistic", "image"):
        check(work, NETWORKS[network])


def noise(x: Tensor, rng: torch.Generator) -> Tensor:
    return x + torch.randn(x.shape, generator=rng)


def test_augmented_batches_see_the_same_noise() -> None:
    data = scenes.federation()
    data.examples.augment = noise
    for network in ("relu", "tied"):
        check(scenes.workload(data=data, epochs=2), NETWORKS[network])


def test_a_client_that_diverges_is_left_out() -> None:
    data = scenes.federation()
    data.examples.tensors()["x"][data.train[4]] = torch.inf
    for network, name in (("relu", "fedavg"), ("tied", "fedavg"), ("relu", "fedmgda+")):
        work = scenes.workload(name, data=data)
        expected = scenes.run(InProcess(threads=1), work, NETWORKS[network]())
        assert expected.outcomes[0].dropped == (4,)
        scenes.assert_same(scenes.run(Vectorized(), work, NETWORKS[network]()), expected, TOLERANCE)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if out.sum() > 0 else 2 * out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(1, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x.unsqueeze(2))[0][:, -1])
        return out


class Counts(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.layer(x)
        return out


def sequential(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), *layers, nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("build", "local", "reason"),
    [
        (lambda: sequential(nn.BatchNorm1d(4)), {}, "changes its buffers"),
        (lambda: sequential(nn.BatchNorm1d(4, track_running_stats=False)), {}, "looks at the whole batch"),
        (lambda: sequential(nn.Dropout(0.5)), {}, "random"),
        (Branches, {}, "control flow"),
        (Recurrent, {}, "batching rule"),
        (Counts, {}, "changes its buffers"),
        (scenes.mlp, {"optimizer": "Adam"}, "optimizer 'Adam' is not SGD"),
        (scenes.mlp, {"precision": "fp16"}, "in fp16 the gradients of each client are scaled"),
    ],
)
def test_what_cannot_be_batched_runs_client_by_client_and_says_why(
    build: Callable[[], nn.Module], local: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    work = scenes.workload(**local)
    expected = scenes.run(InProcess(threads=1), work, fixed_seed(build)())
    with caplog.at_level(logging.WARNING, "propfair"):
        found = scenes.run(Vectorized(), work, fixed_seed(build)())
    scenes.assert_same(found, expected)
    (note,) = found.notes
    assert note.startswith("engine 'vectorized' runs this model client by client")
    assert reason in note
    assert "\n" not in note
    assert caplog.messages == [note]


@pytest.mark.parametrize("steps", [None, 1, 9, tuple(range(1, 13))])
@pytest.mark.parametrize("batch_size", [1, 5, 1000])
def test_stacked_batches_are_the_batches_of_each_client(steps: Any, batch_size: int) -> None:
    work = scenes.workload(steps=steps, batch_size=batch_size, epochs=2)
    clients = [7, 2, 3, 11]
    lengths = work.federation.train.lengths[clients].numpy()
    num_steps = work.local.steps_of(clients, lengths)
    assert num_steps.tolist() == [work.local.num_steps(c, int(n)) for c, n in zip(clients, lengths, strict=True)]
    index, counts = stacked_batches(work, 4, clients, lengths, num_steps)
    for k, client in enumerate(clients):
        batches = list(batch_order(work, 4, client))
        assert [len(batch) for batch in batches] == counts[: len(batches), k].tolist()
        assert not counts[len(batches) :, k].any()
        for step, batch in enumerate(batches):
            assert torch.equal(index[step, k, : len(batch)], batch)


def test_linear_chains_are_recognised() -> None:
    def layers(module: nn.Module) -> list[stacked.Layer] | None:
        return stacked.linear_layers(FlatModel(module))

    assert layers(nn.Linear(2, 3)) == [(0, 1, False)]
    assert layers(Relu()) == [(0, None, True), (1, 2, True), (3, 4, False)]
    assert layers(nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))) == [
        (0, 1, True),
        (2, 3, False),
    ]
    shared = nn.Linear(2, 2)
    for other in (
        nn.Sequential(shared, nn.ReLU(), shared), nn.Sequential(nn.Linear(2, 2), nn.Tanh()), Tied(), Branches(),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2), nn.Flatten(0), nn.Linear(2, 2)),
    ):  # fmt: skip
        assert layers(other) is None


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"memory must be positive and finite, in gigabytes; got memory=0"):
        Vectorized(memory=0)
    with pytest.raises(ConfigError, match=r"threads must be at least 1; got threads=0"):
        Vectorized(threads=0)


def test_global_generators_are_untouched() -> None:
    state = torch.get_rng_state()
    scenes.run(Vectorized(), scenes.workload(), NETWORKS["image"]())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_hundred_thousand_clients() -> None:
    data = scenes.federation((4,) * 100_000)
    work = scenes.workload(data=data)
    model = FlatModel(scenes.mlp())
    with Vectorized().start(model, work) as session:
        found = scenes.play(session, model, Rounds(participation=100))
        assert isinstance(session.inner, StackedSession)
    assert len(found.outcomes[0].clients) == 100
    assert found.params.isfinite().all()
