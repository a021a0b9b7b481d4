"""Clients on worker processes of this machine, with the bits of one process."""

import contextlib
import heapq
import io
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from propfair.core.client import Memory, Workload
from propfair.core.messages import Block, Job, Reply, reduce_block
from propfair.core.params import FlatModel
from propfair.engines.allocator import give_back_memory
from propfair.engines.inprocess import torch_threads
from propfair.engines.processes import launcher
from propfair.engines.processes import worker as program
from propfair.engines.processes.launcher import WorkerProcess
from propfair.engines.processes.shared import SharedMemory, pack
from propfair.engines.processes.worker import Exchange, Failure, Layout, MeasureTask, Setup, TrainStackTask, TrainTask
from propfair.engines.session import ENGINES, Engine, Event, Session
from propfair.errors import ConfigError, TrainingError

SLOT_BYTES = 64 << 20  # for updates that wait until their predecessors are summed
DEATHS_IN_A_ROW = 3  # for each worker: then it is no accident


@ENGINES.register("processes")
@dataclass(frozen=True, kw_only=True)
class Processes(Engine):
    """Runs clients on worker processes that stay for the whole run.

    Data is shared between the processes, not copied; models and updates go through shared memory. Updates are summed
    in the order of the cohort, so that the bits are those of `inprocess` at the same number of threads per client.
    A worker that dies is replaced and its clients are run again.

    Args:
        workers: processes; 0: one for each core, divided by `threads`.
        threads: torch threads of each worker.
    """

    workers: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ConfigError(f"workers must be >= 0; got workers={self.workers}. Use 0 for one on each core.")
        if self.threads < 1:
            raise ConfigError(f"threads must be at least 1; got threads={self.threads}")

    @property
    def num_workers(self) -> int:
        """How many processes there will be."""
        return self.workers or max(1, num_cores() // self.threads)

    def start(self, model: FlatModel, work: Workload) -> "ProcessesSession":
        return ProcessesSession(model, work, self)


class ProcessesSession(Session):
    """See `Processes`. Workers start at once and in parallel; the first task waits for them.

    Args:
        model: what clients train; the workers get copies. This one lives in the memory for exchange while they train,
            so that there is no idle copy of it in this process.
        work: what clients need.
        engine: the options.
        script: import the user's script into the workers if the model or the loss are defined there.
        num_slots: how many updates may wait in shared memory at a time; 0: as many as keep the workers busy.
    """

    def __init__(
        self, model: FlatModel, work: Workload, engine: Processes, script: bool = True, num_slots: int = 0
    ) -> None:
        super().__init__(work)
        _check_usable(work)
        self._model, self._lent = model, False  # whether it lives in the memory for exchange
        layout = _layout(model, work, engine.num_workers, num_slots)
        world, main = _pack_world(model, work, script)
        self._exchange = Exchange(layout, SharedMemory(layout.size))
        self._memory = [world, self._exchange.memory]
        setup = Setup(sys.path, str(Path.cwd()), engine.threads, main, world.size, layout)
        self._pool = ProcessPool(engine.num_workers, setup, [memory.fd for memory in self._memory])
        give_back_memory()
        self._version = self._round = 0

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that have started."""
        return [worker.pid for worker in self._pool.workers if worker.pid is not None]

    @property
    def ready(self) -> bool:
        """Whether all workers have started."""
        return self._pool.is_up()

    def wait_until_ready(self) -> None:
        """Block until all workers have started, so that the start does not count as part of the first round."""
        self._pool.is_up(wait_for_it=True)

    def train(self, job: Job) -> Iterator[Block]:
        self._send(job)
        slots = self._exchange.layout.num_slots
        tasks = [
            TrainTask(position % slots, job.round, client, order, client in self._memories, job.corrections is not None)
            for position, (client, order) in enumerate(zip(job.clients, job.orders, strict=True))
        ]

        def lay_out(number: int) -> None:
            if tasks[number].has_memory:
                self._exchange.put_memory(tasks[number].slot, self._memories[tasks[number].client])
            if job.corrections is not None:
                self._exchange.update(tasks[number].slot)["params"].copy_(job.corrections[number])

        reports = self._pool.map(tasks, self._costs(job), slots, self._note_death, lay_out, ahead=1)

        def replies(positions: range) -> Iterator[Reply]:
            for position in positions:
                report, slot = next(reports), tasks[position].slot
                if self._exchange.layout.personal:
                    self._memories[report.client] = self._exchange.copy_memory(slot)
                update = self._exchange.update(slot)
                yield report, update["params"], update["buffers"]

        with contextlib.closing(reports), torch_threads(1):  # the other cores are busy
            for block in job.blocks():
                positions = range(block.start, block.stop)
                yield reduce_block(job, positions, replies(positions))

    def measure(self, params: Tensor, buffers: Tensor, batches: Sequence[Tensor]) -> list[Tensor]:
        self._load(params, buffers)
        tasks = [MeasureTask(None, self._version, [batch.numpy()]) for batch in batches]
        results = self._pool.map(tasks, [len(batch) for batch in batches], len(tasks), self._note_death)
        return [torch.from_numpy(result[0]) for result in results]

    def measure_each(self, models: Sequence[Memory], batches: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        slots = self._exchange.layout.num_slots
        tasks = [MeasureTask(i % slots, 0, [batch.numpy() for batch in few]) for i, few in enumerate(batches)]
        costs = [sum(len(batch) for batch in few) for few in batches]

        def lay_out(number: int) -> None:
            self._exchange.put_memory(number % slots, models[number])

        results = self._pool.map(tasks, costs, slots, self._note_death, lay_out)
        return [[torch.from_numpy(batch) for batch in result] for result in results]

    def measure_metrics(
        self, models: Sequence[Memory], batches: Sequence[Sequence[Tensor]], names: Sequence[str]
    ) -> Tensor:
        slots, common = self._exchange.layout.num_slots, all(own is models[0] for own in models)
        if common:
            self._load(models[0]["params"], models[0]["buffers"])
        tasks = [
            MeasureTask(None if common else i % slots, self._version, [batch.numpy() for batch in few], name)
            for i, (few, name) in enumerate(zip(batches, names, strict=True))
        ]

        def lay_out(number: int) -> None:
            if not common:
                self._exchange.put_memory(number % slots, models[number])

        costs = [sum(len(batch) for batch in few) for few in batches]
        results = self._pool.map(tasks, costs, len(tasks) if common else slots, self._note_death, lay_out)
        return torch.stack([torch.from_numpy(found) for (found,) in results])

    def close(self) -> None:
        self._pool.close()
        if self._lent:
            self._model.live_in(self._model.params.clone())
        for memory in self._memory:
            memory.close()

    def _send(self, job: Job) -> None:
        if self._round == 0:
            self._model.live_in(self._exchange.received["params"])  # its values come next
            self._lent = True
        give_back_memory()  # of the round before, and of clients that were run here until the workers were up
        self._load(job.params, job.buffers)
        self._round = job.round

    def _load(self, params: Tensor, buffers: Tensor) -> None:
        self._pool.drop_unfinished()
        self._exchange.received["params"].copy_(params)
        self._exchange.received["buffers"].copy_(buffers)
        self._version += 1

    def _costs(self, job: Job) -> list[int]:
        """The examples that each client will see."""
        sizes = self.work.federation.train.lengths.numpy()[list(job.clients)]
        costs = self.work.local.steps_of(job.clients, sizes) * np.minimum(sizes, self.work.local.batch_size)
        return [int(cost) for cost in costs]

    def _note_death(self, code: int | None, tasks: list[Any]) -> None:
        clients = tuple(task.client for task in tasks if isinstance(task, TrainTask))
        clients += tuple(client for task in tasks if isinstance(task, TrainStackTask) for client in task.clients)
        self.events.append(
            Event(self._round, "rerun", clients, f"a worker process ended with code {code} and was replaced")
        )


NoteDeath = Callable[[int | None, list[Any]], None]  # exit code, tasks


class ProcessPool:
    """Worker processes, and tasks mapped over them.

    Args:
        num_workers: how many.
        setup: their first message.
        fds: descriptors that they get.
    """

    def __init__(self, num_workers: int, setup: Setup, fds: list[int]) -> None:
        self._size, self._setup, self._fds = num_workers, setup, fds
        self._deaths_in_a_row = 0
        self.workers: list[WorkerProcess] = []
        self._finalizer = weakref.finalize(self, _end, self.workers)
        self._fill_up()

    def map(
        self, tasks: Sequence[Any], costs: Sequence[float], window: int, note_death: NoteDeath,
        lay_out: Callable[[int], None] = lambda _: None, ahead: int = 0,
    ) -> Generator[Any, None, None]:  # fmt: skip
        """The results, in the order of the tasks. Never more than `window` tasks are ahead of the last one taken.

        Among those that may run, the costliest goes first. `lay_out` is called with a task's number before it is sent,
        `note_death` when a worker died whose tasks are now run again.
        A worker has up to `ahead` tasks more than the one it runs, so that it need not wait for the next; messages
        must then be small, or both sides may wait for the other to read.
        """
        self.drop_unfinished()
        self._fill_up()
        results: dict[int, Any] = {}
        ready: list[tuple[float, int]] = []
        num_open = 0
        try:
            for number in range(len(tasks)):
                while number not in results:
                    for new in range(num_open, min(number + window, len(tasks))):
                        heapq.heappush(ready, (-costs[new], new))
                        num_open = new + 1
                    for depth in range(1 + ahead):
                        if depth == 0 or len(ready) > self._size:  # the last few are for whoever is free first
                            self._hand_out(ready, tasks, lay_out, depth)
                    for lost in self._receive(results, tasks, note_death):
                        heapq.heappush(ready, (-costs[lost], lost))
                yield results.pop(number)
        finally:
            self.drop_unfinished()

    def is_up(self, wait_for_it: bool = False) -> bool:
        """Whether all workers have started; only to be asked while they have nothing to do."""
        while any(worker.pid is None for worker in self.workers):
            if not wait([worker.connection for worker in self.workers], None if wait_for_it else 0):
                return False
            self._receive({}, [], lambda *_: None)
        return True

    def drop_unfinished(self) -> None:
        """End the workers that still run tasks of a round that was given up; new ones take their place."""
        busy = [worker for worker in self.workers if worker.tasks]
        self.workers[:] = [worker for worker in self.workers if not worker.tasks]
        _end(busy)

    def close(self) -> None:
        """End all workers."""
        self._finalizer()
        self.workers.clear()

    def _hand_out(
        self, ready: list[tuple[float, int]], tasks: Sequence[Any], lay_out: Callable[[int], None], depth: int
    ) -> None:
        """A task to each worker that has `depth` tasks or fewer."""
        for worker in self.workers:
            if ready and len(worker.tasks) <= depth:
                _, number = heapq.heappop(ready)
                lay_out(number)
                worker.tasks.append(number)
                with contextlib.suppress(ConnectionError):  # it died: `_receive` finds out
                    worker.connection.send((number, tasks[number]))

    def _receive(self, results: dict[int, Any], tasks: Sequence[Any], note_death: NoteDeath) -> list[int]:
        """Wait until some worker has a result or has died; returns the numbers of tasks lost with their worker."""
        lost = []
        heard = wait([worker.connection for worker in self.workers])
        for worker in [worker for worker in self.workers if worker.connection in heard]:
            try:
                number, result = worker.connection.recv()
            except (EOFError, ConnectionError):
                note_death(self._replace(worker), [tasks[number] for number in worker.tasks])
                lost += worker.tasks
                continue
            if isinstance(result, Failure):
                _raise(result)
            if number is None:
                worker.pid = result
                continue
            self._deaths_in_a_row = 0
            worker.tasks.remove(number)
            results[number] = result
        return lost

    def _replace(self, worker: WorkerProcess) -> int | None:
        self.workers.remove(worker)
        code = worker.end()
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row >= DEATHS_IN_A_ROW * self._size:
            raise TrainingError(
                f"{self._deaths_in_a_row} worker processes ended one after the other, the last with code {code}. "
                "-9 often means that memory ran out: use fewer workers. engine=inprocess shows what happens."
            )
        self._fill_up()
        return code

    def _fill_up(self) -> None:
        while len(self.workers) < self._size:
            worker = launcher.current().launch(self._fds)
            worker.connection.send(self._setup)
            self.workers.append(worker)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _end(workers: list[WorkerProcess]) -> None:
    for worker in workers:
        worker.end()


def _raise(failure: Failure) -> None:
    error = failure.error or TrainingError(failure.text.rstrip().splitlines()[-1])
    error.add_note(f"In a worker process:\n{failure.text}")
    raise error


def _check_usable(work: Workload) -> None:
    if os.name != "posix":
        raise ConfigError("engine 'processes' needs a POSIX system (Linux, macOS). Use engine=inprocess.")
    if torch.device(work.device).type != "cpu":
        raise ConfigError(f"engine 'processes' runs on the CPU; got device={work.device!r}. Use engine=inprocess.")
    if program.starting:
        raise ConfigError(
            "the script starts training while it is only being imported by a worker process. Put that part under "
            "`if __name__ == '__main__':`, or define the model and the loss in a module of their own."
        )


def _layout(model: FlatModel, work: Workload, num_workers: int, num_slots: int) -> Layout:
    single = Layout(len(model.params), len(model.buffers), 1, work.algorithm.personal is not None, model.params.dtype)
    room = SLOT_BYTES // (single.size - single.row)
    return single._replace(num_slots=num_slots or max(num_workers + 2, min(room, 16 + 2 * num_workers)))


def _skeleton(model: FlatModel) -> bytes:
    """The module without the values of its parameters, which workers get with every task."""
    values, stream = [p.data for p in model.trainable], io.BytesIO()
    try:
        for parameter in model.trainable:
            parameter.data = parameter.data.new_zeros(()).expand(parameter.shape)
        torch.save(model.module, stream)
    finally:
        for parameter, value in zip(model.trainable, values, strict=True):
            parameter.data = value
    return stream.getvalue()


def _pack_world(model: FlatModel, work: Workload, script: bool) -> tuple[SharedMemory, dict[str, Any] | None]:
    """The model and the workload in shared memory, and how to import the user's script if they come from there."""
    try:
        skeleton = _skeleton(model)
        world, pickled = pack((skeleton, work))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"engine 'processes' sends the model, the loss and the data set to other processes, but one of them can't "
            f"be pickled: {error}. Define it at the top level of a module, or use engine=inprocess."
        ) from None
    from_script = b"__main__" in pickled
    keys = ("init_main_from_name", "init_main_from_path")
    main = {key: value for key, value in spawn.get_preparation_data("worker").items() if key in keys}
    if from_script and not (main and script):
        raise ConfigError(
            "engine 'processes' can't import the model or the loss, which are defined in "
            f"{'the script itself' if main else 'an interactive session'}. Define them in a module"
            f"{', or set engine=processes and guard the script.' if main else ', or use engine=inprocess.'}"
        )
    return world, main if from_script else None
