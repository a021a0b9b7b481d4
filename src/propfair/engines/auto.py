"""Chooses how to run clients from the model, the cohort and a short measurement, and says so."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from propfair.core.client import Workload, run_client
from propfair.core.messages import Block, Job, Orders
from propfair.core.params import FlatModel
from propfair.engines.allocator import keep_freed_memory
from propfair.engines.delegating import DelegatingSession
from propfair.engines.inprocess import InProcessSession, torch_threads
from propfair.engines.processes.engine import Processes, ProcessesSession, num_cores
from propfair.engines.session import ENGINES, Engine
from propfair.engines.stacked.probe import NotBatchableError, SavedBytes, find_stack
from propfair.engines.stacked.stacks import StackKind
from propfair.engines.vectorized import Vectorized, VectorizedSession
from propfair.errors import ConfigError
from propfair.seeds import untouched_global_rng

Choice = Literal["", "inprocess", "processes", "vectorized"]

FEW_STEPS = 2_000  # a run of fewer local steps is over before stacking them pays
FEW_CLIENTS = 8  # a round
CLEARLY = 2.0  # how much faster stacked clients must be: noise must not decide, since the last bits depend on it
LONG_STEP = 0.05  # seconds; such models keep a core busy without being stacked
LONG_ROUND = 2.0  # seconds in one process; workers take about as long to start
LONG_RUN = 5.0  # seconds spent in one process before workers are started all the same
LONG_CLIENT = 2e-3  # seconds; handing a client to a worker takes a tenth of that
LONG_STACK = 0.02  # seconds of a round of stacked clients; sharing it out takes a tenth of that
LONG_PROBE = 0.2  # seconds; shorter measurements are repeated, since the first ones are mostly warming up
WORKER_BYTES = 200 << 20  # of a worker before it has a model


@ENGINES.register("auto")
@dataclass(frozen=True, kw_only=True)
class Auto(Engine):
    """Measures a step of the model and takes `inprocess`, `processes` or `vectorized`.

    Clients run on one thread each, so that `inprocess` and `processes` give the same bits on any machine, and the
    change from the one to the other can wait until a run proves long. Stacked clients are the same up to rounding;
    they are taken if they are clearly faster than all cores together.

    Args:
        choice: what was chosen when the run began, to go on with the same bits; "" to choose.
        workers: processes, if any; 0: one for each core that memory allows.
        memory: gigabytes for stacked models and batches, if any.
    """

    choice: Choice = ""
    workers: int = 0
    memory: float = 0.5

    def __post_init__(self) -> None:
        Processes(workers=self.workers)
        Vectorized(memory=self.memory)

    def start(self, model: FlatModel, work: Workload) -> "AutoSession":
        return AutoSession(model, work, self)


class AutoSession(DelegatingSession):
    """See `Auto`. Decides at the first round, when the cohort is known."""

    def __init__(self, model: FlatModel, work: Workload, engine: Auto) -> None:
        super().__init__(InProcessSession(model, work, threads=1))
        self._model, self._engine = model, engine
        self._decided = False
        self._seconds = 0.0  # in one process
        self._coming: ProcessesSession | None = None
        self._workers = 0  # that would be worth starting

    def train(self, job: Job) -> Iterator[Block]:
        if not self._decided:
            self._decided = True
            self._decide(job)
        if self._workers and self._seconds > LONG_RUN:
            self._start_workers(f"the run has taken {self._seconds:.0f} s so far")
        if self._coming is not None and self._coming.ready:
            self.go_on_with(self._coming)
            self._coming = None
        began = time.monotonic()
        yield from super().train(job)
        self._seconds += time.monotonic() - began

    def close(self) -> None:
        super().close()
        if self._coming is not None:
            self._coming.close()

    def _decide(self, job: Job) -> None:
        forced, cohort = self._engine.choice, len(job.clients)
        if forced == "vectorized":
            self.choice = "vectorized"
            self.go_on_with(VectorizedSession(self._model, self.work, self._vectorized(1)))
            return
        steps = int(_steps(self.work, job).sum())
        keep_freed_memory()  # as when clients really run: else fresh pages may take longer than the steps
        cost = measure_steps(self._model, self.work, job)
        workers = self._possible_workers(cohort, cost.bytes)
        if not forced and steps * self.num_rounds >= FEW_STEPS and cohort >= FEW_CLIENTS and cost.seconds < LONG_STEP:
            stacked = measure_stacked(self._model, self.work, job, self._vectorized(1))
            if stacked is not None and stacked.seconds * CLEARLY < cost.seconds / workers:
                self._vectorize(stacked, cohort, workers, steps, cost.seconds)
                return
            if stacked is not None:
                us, plain_us = stacked.seconds * 1e6, cost.seconds * 1e6
                self.note(f"clients are not stacked: a step would take {us:.0f} us, not {plain_us:.0f}", logging.INFO)
        self.choice = "inprocess"
        round_seconds = steps * cost.seconds
        if workers > 1 and round_seconds / cohort > LONG_CLIENT:
            self._workers = workers
        if self._workers and (round_seconds > LONG_ROUND or forced == "processes"):
            self._start_workers(f"a round would take about {round_seconds:.0f} s in one process")
        if self._coming is None:
            self.note(f"engine: inprocess; a round takes about {round_seconds:.1g} s", logging.INFO)

    def _vectorize(self, stacked: "StackedCost", cohort: int, workers: int, steps: int, plain_seconds: float) -> None:
        self.choice = "vectorized"
        if steps * stacked.seconds < LONG_STACK:
            workers = 1
        options = self._vectorized(workers)
        try:
            session = options.start_stacks(self._model, self.work, stacked.kind, stacked.bytes, cohort, script=False)
        except ConfigError:  # what workers can't be sent stays here
            session = self._vectorized(1).start_stacks(self._model, self.work, stacked.kind, stacked.bytes, cohort)
        self.note(
            f"engine: vectorized{f' on {workers} processes' if workers > 1 else ''}; stacked clients take "
            f"{stacked.seconds * 1e6:.0f} us for a step, not {plain_seconds * 1e6:.0f}",
            logging.INFO,
        )
        self.go_on_with(session)

    def _vectorized(self, workers: int) -> Vectorized:
        return Vectorized(memory=self._engine.memory, workers=workers)

    def _start_workers(self, why: str) -> None:
        workers, self._workers = self._workers, 0
        try:
            self._coming = ProcessesSession(self._model, self.work, Processes(workers=workers), script=False)
        except ConfigError as error:
            self.note(f"engine: inprocess, though {why}: {error}")
            return
        self.choice = "processes"
        self.note(f"engine: {workers} processes; {why}", logging.INFO)
        if self._seconds == 0:
            self._coming.wait_until_ready()

    def _possible_workers(self, num_clients: int, model_bytes: int) -> int:
        if torch.device(self.work.device).type != "cpu" or os.name != "posix":
            return 1
        room = max(1, _free_memory() // 2 // (WORKER_BYTES + model_bytes))
        return min(self._engine.workers or num_cores(), num_clients, room)


class Cost(NamedTuple):
    """What a local step of one client takes."""

    seconds: float
    bytes: int


def measure_steps(model: FlatModel, work: Workload, job: Job) -> Cost:
    """What a step takes client by client, from a few steps of the largest client whose result is not used."""
    lengths = work.federation.train.lengths[list(job.clients)]
    position = int(lengths.argmax())
    most, clock = int(_steps(work, job)[position]), _clock(work)

    def run(wanted: int) -> float:
        num_steps = min(wanted, most)
        few = replace(work, local=replace(work.local, steps=num_steps))
        client, order = job.clients[position], job.orders[position]
        began = clock()
        run_client(model, few, job.round, order, client, job.params, job.buffers, None)
        return (clock() - began) / num_steps

    saved = SavedBytes()
    with torch_threads(1), untouched_global_rng():
        with saved:
            run(1)  # the first step of a process loads libraries: it tells nothing about the next
        seconds = run(1)
        if seconds < LONG_STEP:
            seconds = min(seconds, *(run(3) for _ in range(3)))
    return Cost(seconds, saved.total + 6 * model.params.nbytes)


class StackedCost(NamedTuple):
    """What a local step of one client takes in a stack."""

    seconds: float
    bytes: int
    kind: StackKind


def measure_stacked(model: FlatModel, work: Workload, job: Job, engine: Vectorized) -> StackedCost | None:
    """What a step takes in a stack of all clients, from two steps whose result is not used; None: can't be stacked."""
    num_steps, clock = min(2, int(_steps(work, job).min())), _clock(work)
    few = replace(work, local=replace(work.local, steps=num_steps))
    with torch_threads(1), untouched_global_rng():
        try:
            stack, client_bytes = find_stack(model, few, job)
        except NotBatchableError:
            return None
        count = max(1, min(len(job.clients), int(engine.memory * 1e9) // client_bytes))
        stack.get_ready(job, count, room=1 << 30)

        def run() -> float:
            began = clock()
            orders = Orders.of(job.orders[:count])
            stack.train(job.round, job.clients[:count], orders, job.params, [None] * count, room=1 << 30)
            return clock() - began

        times = [run() for _ in range(2)]
        while sum(times) < LONG_PROBE and len(times) < 20:
            times.append(run())
        return StackedCost(min(times) / num_steps / count, client_bytes, stack.kind)


def _steps(work: Workload, job: Job) -> NDArray[np.int64]:
    """The local steps of each client of the cohort."""
    return work.local.steps_of(job.clients, work.federation.train.lengths.numpy()[list(job.clients)])


def _clock(work: Workload) -> Callable[[], float]:
    """A clock that counts this thread's own processor time, so that a busy machine can't change a choice.

    On a GPU, where the processor waits, it is the time of day.
    """
    return time.thread_time if torch.device(work.device).type == "cpu" else time.perf_counter


def _free_memory() -> int:
    """Bytes that are not in use, as far as the system tells; else those of a small machine."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return 4 << 30
