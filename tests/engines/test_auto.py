"""The choice of an engine: what it is, that it is told, and that it does not change results."""

import itertools
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from propfair.algorithms.base import ALGORITHMS
from propfair.algorithms.propfair import PropFair
from propfair.core.client import Workload
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.core.tasks import cross_entropy
from propfair.engines import auto
from propfair.engines.auto import Auto, AutoSession, Choice
from propfair.engines.inprocess import InProcess
from propfair.engines.processes.engine import ProcessesSession
from propfair.engines.server import Server
from propfair.engines.vectorized import StackedProcessesSession, StackedSession
from propfair.errors import ConfigError
from tests.engines import scenes

ONE_THREAD = InProcess(threads=1)
MANY = (40,) * 40


def start(engine: Auto, work: Workload, module: nn.Module, num_rounds: int) -> tuple[AutoSession, FlatModel]:
    model = FlatModel(module)
    session = engine.start(model, work)
    session.num_rounds = num_rounds
    return session, model


def test_many_small_clients_are_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LONG_STACK", torch.inf)
    work = scenes.workload(PropFair(placement="step"), data=scenes.federation(MANY))
    session, model = start(Auto(), work, scenes.mlp(), num_rounds=1000)
    with session:
        found = scenes.play(session, model, Rounds())
        assert isinstance(session.inner, StackedSession)
    assert session.choice == "vectorized"
    assert found.notes[0].startswith("engine: vectorized; stacked clients take")
    expected = scenes.run(ONE_THREAD, work, scenes.mlp())
    scenes.assert_same(found, expected, 1e-5)


@pytest.mark.usefixtures("two_cores")
def test_long_rounds_of_small_clients_are_stacked_on_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LONG_STACK", 0.0)
    work = scenes.workload(PropFair(placement="step"), data=scenes.federation(MANY))
    session, model = start(Auto(), work, scenes.mlp(), num_rounds=1000)
    with session:
        found = scenes.play(session, model, Rounds())
        assert isinstance(session.inner, StackedProcessesSession)
    assert session.choice == "vectorized"
    assert found.notes[0].startswith("engine: vectorized on 2 processes; stacked clients take")
    scenes.assert_same(found, scenes.run(ONE_THREAD, work, scenes.mlp()), 1e-5)


@pytest.mark.parametrize("name", ALGORITHMS.names())
@pytest.mark.parametrize(("choice", "tolerance"), [("inprocess", None), ("vectorized", 1e-5)])
def test_every_algorithm_gives_the_records_of_one_process(name: str, choice: Choice, tolerance: float | None) -> None:
    work = scenes.workload(name)
    found = scenes.run(Auto(choice=choice, workers=1), work, scenes.mlp())
    scenes.assert_same(found, scenes.run(ONE_THREAD, work, scenes.mlp()), tolerance)


def test_short_runs_are_not_probed_for_stacking(caplog: pytest.LogCaptureFixture) -> None:
    session, model = start(Auto(), scenes.workload(), scenes.mlp(), num_rounds=2)
    with session, caplog.at_level(logging.INFO, "propfair"):
        found = scenes.play(session, model, Rounds())
    assert session.choice == "inprocess"
    assert found.notes[0].startswith("engine: inprocess; a round takes about")
    assert caplog.messages == found.notes
    scenes.assert_same(found, scenes.run(ONE_THREAD, scenes.workload(), scenes.mlp()))


def test_slow_first_measurements_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first step may take a second, to load libraries and to map memory, and is no slower than the next ones then."""
    work = scenes.workload(data=scenes.federation(MANY))
    taken: list[str] = []

    def clock_of(name: str) -> Callable[[Workload], Callable[[], float]]:
        ticks = itertools.chain([0.0, 9.0], itertools.count(10.0, {"plain": 1e-3, "stacked": 1e-4}[name]))
        return lambda _: lambda: taken.append(name) or next(ticks)  # type: ignore[func-returns-value]

    def measured_with(name: str, measure: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: Any) -> Any:
            monkeypatch.setattr(auto, "_clock", clock_of(name))
            return measure(*args)

        return measured

    monkeypatch.setattr(auto, "measure_steps", measured_with("plain", auto.measure_steps))
    monkeypatch.setattr(auto, "measure_stacked", measured_with("stacked", auto.measure_stacked))
    session, model = start(Auto(workers=1), work, scenes.mlp(), num_rounds=1000)
    with session:
        scenes.play(session, model, Rounds(), num_rounds=1)
    assert session.choice == "vectorized"
    assert session.notes == ["engine: vectorized; stacked clients take 1 us for a step, not 333"]
    assert set(taken) == {"plain", "stacked"}


def test_stacks_that_are_not_faster_are_not_used_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "CLEARLY", torch.inf)
    session, model = start(Auto(), scenes.workload(data=scenes.federation(MANY)), scenes.mlp(), num_rounds=1000)
    with session:
        found = scenes.play(session, model, Rounds(), num_rounds=1)
    assert session.choice == "inprocess"
    assert [note.split(":")[0] for note in found.notes] == ["clients are not stacked", "engine"]


def test_what_cannot_be_stacked_is_not() -> None:
    work = scenes.workload(data=scenes.federation(MANY))
    session, model = start(Auto(), work, scenes.with_buffers_and_dropout(), num_rounds=1000)
    with session:
        found = scenes.play(session, model, Rounds(participation=20))
    assert session.choice == "inprocess"
    expected = scenes.run(ONE_THREAD, work, scenes.with_buffers_and_dropout(), Rounds(participation=20))
    scenes.assert_same(found, expected)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "num_cores", lambda: 2)
    monkeypatch.setattr(auto, "LONG_CLIENT", 0.0)


@pytest.mark.usefixtures("two_cores")
def test_long_rounds_get_workers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LONG_ROUND", 0.0)
    session, model = start(Auto(), scenes.workload(), scenes.with_buffers_and_dropout(), num_rounds=2)
    with session:
        found = scenes.play(session, model, Rounds())
        assert isinstance(session.inner, ProcessesSession)
    assert session.choice == "processes"
    assert found.notes[0].startswith("engine: 2 processes; a round would take about")
    scenes.assert_same(found, scenes.run(ONE_THREAD, scenes.workload(), scenes.with_buffers_and_dropout()))


@pytest.mark.usefixtures("two_cores")
def test_a_run_that_proves_long_gets_workers_without_waiting_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LONG_ROUND", torch.inf)
    monkeypatch.setattr(auto, "LONG_RUN", 0.0)
    session, model = start(Auto(), scenes.workload("ditto"), scenes.mlp(), num_rounds=2)
    with session:
        server = Server(session, Rounds(), model.params, model.buffers)
        rounds = 0
        while rounds < 3 or not isinstance(session.inner, ProcessesSession):
            server.run_round()
            rounds += 1
        memories = {client: memory["params"].clone() for client, memory in session.memories.items()}
    assert session.choice == "processes"
    assert [note.split(";")[0] for note in session.notes] == ["engine: inprocess", "engine: 2 processes"]
    expected = scenes.run(ONE_THREAD, scenes.workload("ditto"), scenes.mlp(), num_rounds=rounds)
    assert torch.equal(server.params, expected.params)
    assert all(torch.equal(memories[client], memory["params"]) for client, memory in expected.memories.items())


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("choice", ["inprocess", "processes", "vectorized"])
def test_a_resumed_run_keeps_its_choice(choice: Choice) -> None:
    work = scenes.workload(data=scenes.federation(MANY[:9]))
    session, model = start(Auto(choice=choice), work, scenes.mlp(), num_rounds=10_000)
    with session:
        found = scenes.play(session, model, Rounds())
        assert isinstance(session.inner, ProcessesSession) == (choice == "processes")
    assert session.choice == choice
    tolerance = 1e-5 if choice == "vectorized" else None
    scenes.assert_same(found, scenes.run(ONE_THREAD, work, scenes.mlp()), tolerance)


@pytest.mark.usefixtures("two_cores")
def test_what_cannot_be_sent_to_workers_stays_here_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "LONG_ROUND", 0.0)

    class Own(nn.Linear):
        pass

    Own.__module__, Own.__qualname__ = "__main__", "Own"
    monkeypatch.setattr(sys.modules["__main__"], "Own", Own, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)  # a worker of xdist has none
    lambda_loss = replace(scenes.workload(), loss=lambda output, target: cross_entropy(output, target))
    for work, module, why in ((lambda_loss, scenes.mlp(), "lambda"), (scenes.workload(), Own(6, 3), "script itself")):
        session, model = start(Auto(), work, module, num_rounds=2)
        with session:
            found = scenes.play(session, model, Rounds())
        assert session.choice == "inprocess"
        assert why in found.notes[0]


def test_the_measurement_leaves_no_trace() -> None:
    work, model = scenes.workload("ditto"), FlatModel(scenes.with_buffers_and_dropout())
    before = model.params.clone(), torch.get_rng_state()
    with InProcess().start(model, work) as session:
        job = Server(session, Rounds(), model.params, model.buffers).plan(None).job
        cost = auto.measure_steps(model, work, job)
        assert not session.memories
    assert cost.seconds > 0
    assert cost.bytes > 6 * model.params.nbytes
    assert torch.equal(before[0], job.params)
    assert torch.equal(before[1], torch.get_rng_state())


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="workers must be >= 0"):
        Auto(workers=-1)
    with pytest.raises(ConfigError, match="memory must be positive"):
        Auto(memory=0)
