"""Chooses how to run clients from the model, the cohort and a short measurement, and says so."""

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from propfair.algorithms.base import ClientId
from propfair.client import Memory, Workload, run_client
from propfair.engines.allocator import give_back_memory
from propfair.engines.base import ENGINES, Block, Engine, Job, Session
from propfair.engines.inprocess import InProcessSession, torch_threads
from propfair.engines.processes import Processes, ProcessesSession, num_cores
from propfair.engines.vectorized import NotBatchableError, SavedBytes, Stack, Vectorized, VectorizedSession, find_stack
from propfair.errors import ConfigError
from propfair.params import FlatModel
from propfair.seeds import untouched_global_rng

Choice = Literal["", "inprocess", "processes", "vectorized"]

FEW_STEPS = 2_000  # a run of fewer local steps is over before stacking them pays
FEW_CLIENTS = 8  # a round
CLEARLY = 2.0  # how much faster stacked clients must be: noise must not decide, since the last bits depend on it
LONG_STEP = 0.05  # seconds; such models keep a core busy without being stacked
LONG_ROUND = 2.0  # seconds in one process; workers take about as long to start
LONG_RUN = 5.0  # seconds spent in one process before workers are started all the same
LONG_CLIENT = 2e-3  # seconds; handing a client to a worker takes a tenth of that
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


class AutoSession(Session):
    """See `Auto`. Decides at the first round, when the cohort is known."""

    def __init__(self, model: FlatModel, work: Workload, engine: Auto) -> None:
        self._inner: Session = InProcessSession(model, work, threads=1)
        super().__init__(self._inner.work)
        self._inner.events, self._inner.notes = self.events, self.notes
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
            self._go_on_with(self._coming)
            self._coming = None
        began = time.monotonic()
        yield from self._inner.train(job)
        self._seconds += time.monotonic() - began

    def measure(self, params: Tensor, buffers: Tensor, batches: Sequence[Tensor]) -> list[Tensor]:
        return self._inner.measure(params, buffers, batches)

    def measure_each(self, models: Sequence[Memory], batches: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        return self._inner.measure_each(models, batches)

    @property
    def memories(self) -> Mapping[ClientId, Memory]:
        return self._inner.memories

    def restore(self, memories: Mapping[ClientId, Memory]) -> None:
        self._inner.restore(memories)

    def close(self) -> None:
        for session in (self._inner, self._coming):
            if session is not None:
                session.close()

    def _decide(self, job: Job) -> None:
        forced, local = self._engine.choice, self.work.local
        if forced == "vectorized":
            self._vectorize(None, "as when the run began")
            return
        lengths = self.work.federation.train.lengths[list(job.clients)].tolist()
        steps = sum(local.num_steps(client, n) for client, n in zip(job.clients, lengths, strict=True))
        total = steps * self.num_rounds
        cost = measure_steps(self._model, self.work, job)
        workers = self._possible_workers(len(job.clients), cost.bytes)
        if not forced and total >= FEW_STEPS and len(job.clients) >= FEW_CLIENTS and cost.seconds < LONG_STEP:
            stack, seconds = measure_stacked(self._model, self.work, job, Vectorized(memory=self._engine.memory))
            if stack is not None and seconds * CLEARLY < cost.seconds / workers:
                self._vectorize(stack, f"a step takes {seconds * 1e6:.0f} us, not {cost.seconds / workers * 1e6:.0f}")
                return
        self.choice = "inprocess"
        round_seconds = steps * cost.seconds
        if workers > 1 and round_seconds / len(job.clients) > LONG_CLIENT:
            self._workers = workers
        if self._workers and (round_seconds > LONG_ROUND or forced == "processes"):
            self._start_workers(f"a round would take about {round_seconds:.0f} s in one process")
        if self._coming is None:
            self.note(f"engine: inprocess; a round takes about {round_seconds:.1g} s", logging.INFO)

    def _vectorize(self, stack: Stack | None, why: str) -> None:
        self.choice = "vectorized"
        self.note(f"engine: vectorized; {why}", logging.INFO)
        options = Vectorized(memory=self._engine.memory)
        self._go_on_with(VectorizedSession(self._model, self.work, options, stack))

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

    def _go_on_with(self, session: Session) -> None:
        session.restore(self._inner.memories)
        session.events, session.notes = self.events, self.notes
        self._inner.close()
        self._inner = session
        if isinstance(session, ProcessesSession):
            give_back_memory()

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
    """Client by client: a few steps of the largest client, thrown away."""
    lengths = work.federation.train.lengths[list(job.clients)]
    position = int(lengths.argmax())

    def run(num_steps: int) -> float:
        few = replace(work, local=replace(work.local, steps=num_steps))
        client, order = job.clients[position], job.orders[position]
        began = time.perf_counter()
        run_client(model, few, job.round, order, client, job.params, job.buffers, None)
        return (time.perf_counter() - began) / num_steps

    saved = SavedBytes()
    with torch_threads(1), untouched_global_rng():
        with saved:
            seconds = run(1)
        if seconds < LONG_STEP:  # the first step of small models is mostly warming up
            seconds = min(run(3) for _ in range(3))
    return Cost(seconds, saved.total + 6 * model.params.nbytes)


def measure_stacked(model: FlatModel, work: Workload, job: Job, engine: Vectorized) -> tuple[Stack | None, float]:
    """All clients at once: the way, and the seconds for a step of one client; None if they can't be stacked."""
    with torch_threads(1), untouched_global_rng():
        try:
            stack = find_stack(model, work, job)
        except NotBatchableError:
            return None, float("inf")
    session = VectorizedSession(model, replace(work, local=replace(work.local, steps=2)), engine, stack)
    session.get_ready(job)
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        for _ in session.train(job):
            pass
        seconds.append((time.perf_counter() - began) / 2 / len(job.clients))
    return stack, min(seconds)


def _free_memory() -> int:
    """Bytes that are not in use, as far as the system tells; else those of a small machine."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return 4 << 30
