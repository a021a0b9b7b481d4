"""Ray workers that die, hang or come late, behind a plain loop: tasks go in, results come out in order."""

import contextlib
import heapq
import logging
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

from propfair.algorithms.base import ClientId
from propfair.engines.session import Event
from propfair.errors import TrainingError

OnHang = Literal["wait", "retry", "drop"]
TRIES = 3  # times that a task, or the start of a worker, may fail before the run stops
DEPTH = 2  # tasks that a worker has at hand, so that it never waits for the next one
START_SECONDS = 300.0  # that a run goes on without any worker
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ActorTask:
    """A call of one method of a worker, on behalf of some clients."""

    method: str
    arguments: tuple[Any, ...]
    clients: tuple[ClientId, ...] = ()
    split: Callable[[], list["ActorTask"]] | None = None  # one task for each client, to find the one that hangs


@dataclass(eq=False)
class _ActorHandle:
    """A worker and the tasks that it has been given."""

    actor: Any
    start: Any  # the reference that is there when the worker is
    ready: bool = False
    at_hand: dict[Any, "_Key"] = field(default_factory=dict)  # by reference, oldest first
    since: float = 0.0  # when it took up the oldest


_Key = tuple[int, int]  # position of a task, and of its part if it was split


class ActorPool:
    """Ray actors that do tasks for a session, and are replaced when they die or hang.

    Args:
        ray: the module.
        make: starts an actor that has a method `ready`.
        size: how many are wanted; the pool works with fewer while the cluster has no room.
        timeout: seconds for each client of a task that has clients; 0: no limit.
        on_hang: what to do past the timeout.
        events: where deaths and hangs are noted.
    """

    def __init__(
        self, ray: ModuleType, make: Callable[[], Any], size: int, timeout: float, on_hang: OnHang, events: list[Event]
    ) -> None:
        self.size = size
        self._ray, self._make, self._events = ray, make, events
        self._timeout = math.inf if on_hang == "wait" or not timeout else timeout
        self._on_hang = on_hang
        self._failed_starts, self._reason = 0, ""
        self._without_workers_since = 0.0
        self._workers: list[_ActorHandle] = []

    def start(self) -> None:
        """Ask for the workers and wait for the first one; the others join as they come."""
        self._without_workers_since = time.monotonic()
        for _ in range(self.size):
            self._add_worker()
        while not any(worker.ready for worker in self._workers):
            self._wait(_Results([], 0))

    def run(self, tasks: list[ActorTask], round_: int) -> Iterator[list[tuple[ActorTask, Any]]]:
        """The results in the order of the tasks, whatever happens to workers. A task that was split gives several.

        The result of a client that was dropped is None.
        """
        results = _Results(tasks, round_)
        for worker in self._workers:
            worker.at_hand.clear()  # of a run that was given up
        for position in range(len(tasks)):
            while not results.is_done(position):
                self._hand_out(results, position + DEPTH * DEPTH * self.size)
                self._wait(results)
            yield results.take(position)

    def close(self) -> None:
        """Stop all workers."""
        for worker in self._workers:
            with contextlib.suppress(Exception):
                self._ray.kill(worker.actor)
        self._workers.clear()

    def _hand_out(self, results: "_Results", end: int) -> None:
        """Give work to workers, never beyond `end`: results that can't be used yet take memory."""
        for depth in range(DEPTH):
            for worker in self._workers:
                if worker.ready and len(worker.at_hand) == depth and (key := results.next_before(end)) is not None:
                    task = results.task(key)
                    if not worker.at_hand:
                        worker.since = time.monotonic()
                    worker.at_hand[getattr(worker.actor, task.method).remote(*task.arguments)] = key

    def _wait(self, results: "_Results") -> None:
        """Block until a worker has started, sent a result or died, or until a client takes too long; deal with it."""
        now = time.monotonic()
        owner = {worker.start: worker for worker in self._workers if not worker.ready}
        owner |= {reference: worker for worker in self._workers for reference in worker.at_hand}
        until = min((self._deadline(worker, results) for worker in self._workers), default=math.inf)
        if not any(worker.ready for worker in self._workers):
            until = self._without_workers_since + START_SECONDS
            if not owner:
                raise TrainingError(f"no Ray worker could be started: {self._reason}")
            if now > until:
                raise TrainingError(f"no Ray worker came within {START_SECONDS:g} s. {self._room()}")
        wait = None if until == math.inf else max(0.0, until - now)
        done, _ = self._ray.wait(list(owner), num_returns=1, timeout=wait)
        if done:
            self._receive(done[0], owner[done[0]], results)
        for worker in [w for w in self._workers if self._deadline(w, results) < time.monotonic()]:
            self._stop_hung(worker, results)

    def _receive(self, reference: Any, worker: _ActorHandle, results: "_Results") -> None:
        errors = self._ray.exceptions
        try:
            result = self._ray.get(reference)
        except errors.RayTaskError as error:  # the program failed, not the machine
            raise (error.cause if isinstance(error.cause, Exception) else error) from error
        except errors.RayError as error:
            self._replace_dead(worker, results, _said(error))
        else:
            if reference in worker.at_hand:
                results.put(worker.at_hand.pop(reference), result)
                worker.since = time.monotonic()
            else:
                worker.ready, self._failed_starts = True, 0

    def _replace_dead(self, worker: _ActorHandle, results: "_Results", reason: str) -> None:
        keys = self._remove(worker)
        if not worker.ready:
            self._failed_starts += 1
            self._reason = reason
            log.warning("a Ray worker could not be started: %s", reason)
        elif keys:
            clients = tuple(client for key in keys for client in results.task(key).clients)
            self._note(results, "rerun", clients, f"a Ray worker died ({reason}); its clients are run again")
            results.again(keys[0], f"took a Ray worker down ({reason})")  # only this one was running
            results.give_back(keys)
        if self._failed_starts < TRIES:
            self._add_worker()

    def _stop_hung(self, worker: _ActorHandle, results: "_Results") -> None:
        self._ray.kill(worker.actor)
        first, *others = self._remove(worker)
        self._add_worker()
        results.give_back(others)
        task = results.task(first)
        limit = f"more than timeout={self._timeout:g} s"
        if task.split is not None and len(task.clients) > 1:
            self._note(results, "rerun", task.clients, f"a client took {limit}; each is run by itself to find it")
            results.split(first)
        elif self._on_hang == "drop":
            self._note(results, "lost", task.clients, f"took {limit} and is dropped from the round")
            results.put(first, None)
        else:
            self._note(results, "rerun", task.clients, f"took {limit} and is run again")
            results.again(first, f"took {limit}; use on_hang='drop' to go on without it")
            results.give_back([first])

    def _deadline(self, worker: _ActorHandle, results: "_Results") -> float:
        if not worker.at_hand:
            return math.inf
        clients = results.task(next(iter(worker.at_hand.values()))).clients
        return worker.since + self._timeout * len(clients) if clients else math.inf

    def _add_worker(self) -> None:
        actor = self._make()
        self._workers.append(_ActorHandle(actor, actor.ready.remote()))

    def _remove(self, worker: _ActorHandle) -> list[_Key]:
        self._workers.remove(worker)
        if not any(other.ready for other in self._workers):
            self._without_workers_since = time.monotonic()
        return list(worker.at_hand.values())

    def _note(self, results: "_Results", kind: str, clients: tuple[ClientId, ...], detail: str) -> None:
        log.warning("round %d, clients %s: %s", results.round, ", ".join(map(str, clients)) or "-", detail)
        self._events.append(Event(results.round, kind, clients, detail))

    def _room(self) -> str:
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        return (
            f"The cluster has {total.get('CPU', 0):g} CPUs ({free.get('CPU', 0):g} free) and "
            f"{total.get('GPU', 0):g} GPUs ({free.get('GPU', 0):g} free). Lower cpus or gpus, or add machines."
        )


def _said(error: Exception) -> str:
    """Why, in one line: the exception at the end of a traceback, or else the first line."""
    lines = str(error).strip().splitlines()
    return next((line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)), lines[0])


class _Results:
    """The tasks of one run: what waits, what is done."""

    def __init__(self, tasks: list[ActorTask], round_: int) -> None:
        self.round = round_
        self._parts: list[list[ActorTask]] = [[task] for task in tasks]
        self._waiting: list[_Key] = [(position, 0) for position in range(len(tasks))]  # a heap
        self._results: dict[_Key, Any] = {}
        self._failures: dict[_Key, int] = {}

    def task(self, key: _Key) -> ActorTask:
        return self._parts[key[0]][key[1]]

    def next_before(self, end: int) -> _Key | None:
        return heapq.heappop(self._waiting) if self._waiting and self._waiting[0][0] < end else None

    def give_back(self, keys: list[_Key]) -> None:
        for key in keys:
            heapq.heappush(self._waiting, key)

    def again(self, key: _Key, reason: str) -> None:
        """Count a failure; the last one ends the run."""
        self._failures[key] = self._failures.get(key, 0) + 1
        if self._failures[key] == TRIES:
            clients = self.task(key).clients
            who = f"client {', '.join(map(str, clients))}" if clients else "an evaluation"
            raise TrainingError(f"round {self.round}: {who}: {TRIES} times in a row it {reason}")

    def split(self, key: _Key) -> None:
        split = self.task(key).split
        assert split is not None
        self._parts[key[0]] = split()
        self.give_back([(key[0], part) for part in range(len(self._parts[key[0]]))])

    def put(self, key: _Key, result: Any) -> None:
        self._results[key] = result

    def is_done(self, position: int) -> bool:
        return all((position, part) in self._results for part in range(len(self._parts[position])))

    def take(self, position: int) -> list[tuple[ActorTask, Any]]:
        parts, self._parts[position] = self._parts[position], []
        return [(task, self._results.pop((position, part))) for part, task in enumerate(parts)]
