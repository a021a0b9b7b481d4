"""Many small clients trained at once on stacked parameters."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from propfair.core.client import Workload
from propfair.core.messages import Block, Job, Orders, Reports
from propfair.core.params import FlatModel
from propfair.engines.delegating import DelegatingSession
from propfair.engines.inprocess import InProcessSession, torch_threads
from propfair.engines.processes.engine import Processes, ProcessesSession, num_cores
from propfair.engines.processes.worker import TrainStackTask
from propfair.engines.session import ENGINES, Engine
from propfair.engines.stacked.probe import NotBatchableError, find_stack
from propfair.engines.stacked.stacks import Stack, StackKind, reduce_stack
from propfair.errors import ConfigError
from propfair.seeds import untouched_global_rng

GATHERED = 0.25  # the share of the memory that inputs may take at a time
ROW_BYTES = 256 << 20  # for the updates of stacked clients on their way from workers


@ENGINES.register("vectorized")
@dataclass(frozen=True, kw_only=True)
class Vectorized(Engine):
    """Trains many clients at once on stacked parameters: for small models, where Python is the bottleneck.

    The results are those of `inprocess` up to rounding. Before the first round the gradients of two clients are
    compared with plain autograd. A model that can't be batched (running statistics, dropout, recurrent layers,
    branches on data) or an optimiser other than SGD is run as `inprocess` does, and a note says why.

    Args:
        memory: gigabytes for stacked models and batches; cohorts that need more are cut into chunks.
        workers: processes that share the cohort; 1: this one alone; 0: one for each core.
        threads: torch threads of each.
    """

    memory: float = 0.5
    workers: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.memory < math.inf:
            raise ConfigError(f"memory must be positive and finite, in gigabytes; got memory={self.memory}")
        Processes(workers=self.workers, threads=self.threads)

    def start(self, model: FlatModel, work: Workload) -> "VectorizedSession":
        return VectorizedSession(model, work, self)

    def start_stacks(
        self, model: FlatModel, work: Workload, kind: StackKind, client_bytes: int, cohort: int, script: bool = True
    ) -> "StackedSession | StackedProcessesSession":
        """A session for a workload that can be stacked."""
        workers = min(self.workers or num_cores(), cohort)
        room = int(self.memory * 1e9 / workers)
        options = StackOptions(kind, max(1, room // client_bytes), int(room * GATHERED))
        if workers == 1:
            return StackedSession(model, work, options, self.threads)
        processes = Processes(workers=workers, threads=self.threads)
        return StackedProcessesSession(model, work, options, processes, cohort, script)


class VectorizedSession(DelegatingSession):
    """See `Vectorized`. Decides at the first round whether clients can be stacked."""

    def __init__(self, model: FlatModel, work: Workload, engine: Vectorized) -> None:
        super().__init__(InProcessSession(model, work, engine.threads))
        self._model, self._engine = model, engine
        self._decided = False

    def train(self, job: Job) -> Iterator[Block]:
        if not self._decided:
            self._decided = True
            self._decide(job)
        yield from super().train(job)

    def _decide(self, job: Job) -> None:
        with torch_threads(self._engine.threads), untouched_global_rng():
            try:
                stack, client_bytes = find_stack(self._model, self.work, job)
            except NotBatchableError as reason:
                self.note(f"engine 'vectorized' runs this model client by client, as 'inprocess' does: {reason}")
                return
        session = self._engine.start_stacks(self._model, self.work, stack.kind, client_bytes, len(job.clients))
        self.go_on_with(session)


@dataclass(frozen=True)
class StackOptions:
    """How clients are stacked.

    Attributes:
        kind: how their gradients are computed.
        clients: how many there are in a stack at most.
        room: bytes that the inputs read ahead may take.
    """

    kind: StackKind
    clients: int
    room: int


class StackedSession(InProcessSession):
    """Trains in stacks, in this process."""

    def __init__(self, model: FlatModel, work: Workload, options: StackOptions, threads: int) -> None:
        super().__init__(model, work, threads)
        self._options = options
        self._stack = Stack(options.kind, model, self.work)

    def train(self, job: Job) -> Iterator[Block]:
        self._get_ready()
        self.model.load(job.params, job.buffers)
        size = self._options.clients
        with torch_threads(self._threads):
            for start in range(0, len(job.clients), size):
                positions = range(start, min(start + size, len(job.clients)))
                clients = job.clients[start : positions.stop]
                reports, deltas, own = self._stack.train(
                    job.round, clients, Orders.of(job.orders[start : positions.stop]), job.params,
                    [self._memories.get(client, {}).get("params") for client in clients], self._options.room,
                    None if job.corrections is None else job.corrections[start : positions.stop],
                )  # fmt: skip
                if own is not None:
                    for client, params in zip(clients, own, strict=True):
                        self._memories[client] = {"params": params.clone(), "buffers": job.buffers.clone()}
                yield reduce_stack(job, positions, reports, deltas)


class StackedProcessesSession(ProcessesSession):
    """Trains in stacks, one on each of several worker processes."""

    def __init__(
        self, model: FlatModel, work: Workload, options: StackOptions, engine: Processes, cohort: int,
        script: bool = True,
    ) -> None:  # fmt: skip
        rows = max(1, ROW_BYTES // model.params.nbytes)
        super().__init__(model, work, engine, script, num_slots=min(cohort, rows))
        self._options, self._num_workers = options, engine.num_workers

    def train(self, job: Job) -> Iterator[Block]:
        self._send(job)
        with torch_threads(1):
            for start in range(0, len(job.clients), self._exchange.layout.num_slots):
                yield self._wave(job, range(start, min(start + self._exchange.layout.num_slots, len(job.clients))))

    def _wave(self, job: Job, positions: range) -> Block:
        """Train the clients at these positions, no more than there are slots for updates in shared memory."""
        size = min(self._options.clients, -(-len(positions) // self._num_workers))
        parts = [positions[k : k + size] for k in range(0, len(positions), size)]
        tasks = [
            TrainStackTask(
                part.start - positions.start, job.round, job.clients[part.start : part.stop],
                Orders.of(job.orders[part.start : part.stop]),
                [c in self._memories for c in job.clients[part.start : part.stop]], job.corrections is not None,
                self._options.kind, self._options.room,
            )
            for part in parts
        ]  # fmt: skip

        def lay_out(number: int) -> None:
            for k, client in enumerate(tasks[number].clients, tasks[number].slot):
                if client in self._memories:
                    self._exchange.put_memory(k, self._memories[client])
                if job.corrections is not None:
                    self._exchange.update(k)["params"].copy_(job.corrections[positions.start + k])

        results = self._pool.map(tasks, [len(part) for part in parts], len(tasks), self._note_death, lay_out)
        reports = Reports.joined(list(results))
        if self._exchange.layout.personal:
            for slot, client in enumerate(job.clients[positions.start : positions.stop]):
                self._memories[client] = self._exchange.copy_memory(slot)
        return reduce_stack(job, positions, reports, self._exchange.updates(len(positions)))
