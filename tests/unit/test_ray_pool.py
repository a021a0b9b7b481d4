"""The pool of Ray workers on a Ray that is played: workers die, hang and fail to start on cue."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from propfair.engines.ray import pool as ray_pool
from propfair.engines.ray.pool import ActorPool, ActorTask, OnHang
from propfair.engines.session import Event
from propfair.errors import TrainingError

Answer = Callable[[int], Any]  # the number of times that this task was tried before -> a value, DIE or HANG
DIE, HANG = object(), object()


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class PlayedRay:
    """References are numbers; everything is done at once, or never."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self, failing_starts: int = 0) -> None:
        self.results: dict[int, Any] = {}
        self.tried: dict[Any, int] = {}
        self.made = self.killed = 0
        self._number = itertools.count()
        self._failing_starts = failing_starts

    def make(self) -> Any:
        self.made += 1
        actor = SimpleNamespace(dead=self.made <= self._failing_starts)
        actor.ready = SimpleNamespace(remote=lambda: self._call(actor, lambda _: True))
        actor.work = SimpleNamespace(remote=lambda name, answer: self._call(actor, answer, name))
        return actor

    def _call(self, actor: Any, answer: Answer, name: str = "") -> int:
        reference = next(self._number)
        tried = self.tried.get(name, 0)
        self.tried[name] = tried + 1
        result = DIE if actor.dead else answer(tried)
        actor.dead = actor.dead or result is DIE
        self.results[reference] = result
        return reference

    def wait(self, references: list[int], num_returns: int, timeout: float | None) -> tuple[list[int], list[int]]:
        done = [reference for reference in references if self.results[reference] is not HANG]
        assert done or timeout is not None, "would wait for ever"
        return done[-num_returns:], []  # the newest first: results must come out in order all the same

    def get(self, reference: int) -> Any:
        result = self.results[reference]
        if result is DIE:
            raise RayError("the machine is gone\nand more")
        if isinstance(result, Exception):
            raise RayTaskError(result)
        return result

    def kill(self, actor: Any) -> None:
        self.killed += 1

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    available_resources = cluster_resources


def pool(ray: Any, on_hang: OnHang = "wait", timeout: float = 0.0) -> tuple[ActorPool, list[Event]]:
    events: list[Event] = []
    made = ActorPool(ray, ray.make, 2, timeout, on_hang, events)
    made.start()
    return made, events


def tasks(answers: list[Answer]) -> list[ActorTask]:
    return [ActorTask("work", (f"task {i}", answer), (i,)) for i, answer in enumerate(answers)]


def values(found: ActorPool, given: list[ActorTask]) -> list[Any]:
    return [result for parts in found.run(given, 7) for _, result in parts]


def test_results_come_in_the_order_of_the_tasks() -> None:
    found, events = pool(PlayedRay())
    assert values(found, tasks([lambda _, i=i: i * i for i in range(50)])) == [i * i for i in range(50)]  # type: ignore[misc]
    assert not events


def test_the_work_of_a_dead_worker_is_done_by_another() -> None:
    ray = PlayedRay()
    found, events = pool(ray)
    answers: list[Answer] = [lambda _, i=i: i for i in range(9)]  # type: ignore[misc]
    answers[4] = lambda tried: DIE if tried == 0 else 4
    assert values(found, tasks(answers)) == list(range(9))
    assert ray.made == 3
    assert [event.kind for event in events] == ["rerun"]
    assert events[0].round == 7
    assert 4 in events[0].clients
    assert "the machine is gone" in events[0].detail
    assert "and more" not in events[0].detail


def test_a_task_that_takes_every_worker_down_ends_the_run() -> None:
    found, _ = pool(PlayedRay())
    with pytest.raises(TrainingError, match="round 7: client 0: 3 times in a row it took a Ray worker down"):
        values(found, tasks([lambda _: DIE]))


def test_an_error_of_the_program_is_raised_as_it_is() -> None:
    found, _ = pool(PlayedRay())
    with pytest.raises(KeyError, match="label"):
        values(found, tasks([lambda _: KeyError("label")]))


def test_a_client_that_hangs_is_found_in_its_task_and_run_again() -> None:
    ray = PlayedRay()
    found, events = pool(ray, "retry", 0.02)
    hangs_twice: Answer = lambda tried: HANG if tried == 0 else 11  # noqa: E731
    parts = [ActorTask("work", ("a", lambda _: 10), (0,)), ActorTask("work", ("b", hangs_twice), (1,))]
    whole = ActorTask("work", ("ab", lambda _: HANG), (0, 1), split=lambda: parts)
    assert values(found, [whole, ActorTask("work", ("c", lambda _: 12), (2,))]) == [10, 11, 12]
    assert [(event.kind, event.clients) for event in events] == [("rerun", (0, 1)), ("rerun", (1,))]
    assert ray.killed == 2


def test_a_client_that_always_hangs_is_dropped_or_ends_the_run() -> None:
    found, events = pool(PlayedRay(), "drop", 0.02)
    assert values(found, tasks([lambda _: 0, lambda _: HANG, lambda _: 2])) == [0, None, 2]
    assert [(event.kind, event.clients) for event in events] == [("lost", (1,))]

    found, _ = pool(PlayedRay(), "retry", 0.02)
    with pytest.raises(TrainingError, match=r"client 0: 3 times in a row it took more than timeout=0.02 s.*drop"):
        values(found, tasks([lambda _: HANG]))


def test_workers_that_do_not_start_are_tried_again_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = pool(PlayedRay(failing_starts=2))
    assert values(found, tasks([lambda _: 5])) == [5]
    with pytest.raises(TrainingError, match="no Ray worker could be started: the machine is gone"):
        pool(PlayedRay(failing_starts=100))

    monkeypatch.setattr(ray_pool, "START_SECONDS", 0.0)
    crowded = PlayedRay()
    monkeypatch.setattr(crowded, "_call", lambda *_: crowded.results.setdefault(0, HANG) and 0)
    with pytest.raises(TrainingError, match=r"no Ray worker came within 0 s\. The cluster has 2 CPUs"):
        pool(crowded)


def test_a_run_that_was_given_up_leaves_nothing_to_the_next() -> None:
    found, _ = pool(PlayedRay())
    given_up = found.run(tasks([lambda _: 1, lambda _: 2, lambda _: 3]), 1)
    assert next(given_up)[0][1] == 1
    assert values(found, tasks([lambda _: 8, lambda _: 9])) == [8, 9]


def test_a_closed_pool_has_no_workers() -> None:
    ray = PlayedRay()
    found, _ = pool(ray)
    found.close()
    found.close()
    assert ray.killed == 2
