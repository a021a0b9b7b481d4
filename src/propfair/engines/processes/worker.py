"""What runs in each process of the `processes` engine: waits for tasks, runs clients, measures batches."""

import contextlib
import io
import os
import pickle
import sys
import threading
import time
import traceback
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from propfair.algorithms.base import ClientId, Order
from propfair.core.client import Memory, Workload, run_client
from propfair.core.evaluation import measure, measure_metrics
from propfair.core.messages import Orders, Report, Reports
from propfair.core.params import FlatModel
from propfair.engines.allocator import keep_freed_memory
from propfair.engines.processes.shared import SharedMemory, padded, unpack
from propfair.engines.stacked.stacks import Stack, StackKind

starting = False  # True in a worker while it imports the user's script


class Layout(NamedTuple):
    """How the memory for exchange is divided: the model sent out, then slots for clients under way.

    A slot has one row for the update and, if clients keep personal models, one for theirs. A row is [P] parameters and
    [B] buffers.
    """

    num_params: int
    num_buffers: int
    num_slots: int
    personal: bool
    dtype: torch.dtype

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return padded((self.num_params + self.num_buffers) * self.dtype.itemsize)

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return self.row * (1 + self.num_slots * (1 + self.personal))


class Exchange:
    """The memory through which the main process and its workers pass models and updates to each other."""

    def __init__(self, layout: Layout, memory: SharedMemory) -> None:
        self.layout, self.memory = layout, memory
        self.received = self._row(0)

    def update(self, slot: int) -> Memory:
        """Where the client in this slot leaves its update."""
        return self._row(1 + slot)

    def personal(self, slot: int) -> Memory:
        """The personal model of the client in this slot, before and after its training."""
        return self._row(1 + self.layout.num_slots + slot)

    def updates(self, count: int, first: int = 0) -> Tensor:
        """The updates [count, P] in consecutive slots."""
        width = self.layout.row // self.layout.dtype.itemsize
        rows = self.memory.tensor((1 + first) * self.layout.row, (count, width), self.layout.dtype)
        return rows[:, : self.layout.num_params]

    def put_memory(self, slot: int, memory: Memory) -> None:
        """Put a client's memory into its slot."""
        for name, tensor in self.personal(slot).items():
            tensor.copy_(memory[name])

    def copy_memory(self, slot: int) -> Memory:
        """A copy of the memory of the client in this slot."""
        return {name: tensor.clone() for name, tensor in self.personal(slot).items()}

    def _row(self, number: int) -> Memory:
        length = self.layout.num_params + self.layout.num_buffers
        whole = self.memory.tensor(number * self.layout.row, (length,), self.layout.dtype)
        return {"params": whole[: self.layout.num_params], "buffers": whole[self.layout.num_params :]}


class Setup(NamedTuple):
    """The first message to a worker."""

    path: list[str]  # where to import from
    folder: str
    threads: int
    main: dict[str, Any] | None  # how to import the user's script, if the model or the loss are defined there
    world_size: int  # bytes of the packed model and workload
    layout: Layout


class TrainTask(NamedTuple):
    """Run a client; leave its update in the slot."""

    slot: int
    round: int
    client: ClientId
    order: Order
    has_memory: bool
    corrected: bool  # the slot holds the client's correction, until its update takes the place


class TrainStackTask(NamedTuple):
    """Run clients in a stack; leave their updates in consecutive slots."""

    slot: int
    round: int
    clients: tuple[ClientId, ...]
    orders: Orders
    has_memory: list[bool]
    corrected: bool
    kind: StackKind
    room: int  # bytes for inputs


class MeasureTask(NamedTuple):
    """MeasureTask batches under the model sent out, or under the personal model in a slot."""

    slot: int | None
    version: int  # of the model sent out: loaded once, not for each batch
    batches: list[NDArray[np.int64]]
    metrics_of: str = ""  # the client whose metrics are wanted; "": losses and scores of single examples


class Failure(NamedTuple):
    """An exception in a worker."""

    error: Exception | None  # None: it can't be pickled
    text: str


def serve(connection: Connection, fds: list[int]) -> None:
    """Run tasks until the connection ends. `fds` are the packed model and workload, and the memory for exchange."""
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    with contextlib.suppress(EOFError, ConnectionError):
        connection.send((None, os.getpid()))
        try:
            runner = TaskRunner(connection.recv(), *fds)
        except Exception as error:
            connection.send((None, _failure(error)))
            return
        while True:
            number, task = connection.recv()
            try:
                result = runner.run(task)
            except Exception as error:
                result = _failure(error)
            connection.send((number, result))


class TaskRunner:
    """Runs the tasks of one worker process, with its own model, all clients' data and the memory for exchange."""

    def __init__(self, setup: Setup, world_fd: int, exchange_fd: int) -> None:
        keep_freed_memory()
        torch.set_num_threads(setup.threads)
        os.chdir(setup.folder)
        sys.path[:] = setup.path
        if setup.main is not None:
            _import_main(setup.main)
        skeleton, work = unpack(SharedMemory(setup.world_size, world_fd))
        self.model = FlatModel(torch.load(io.BytesIO(skeleton), weights_only=False))
        self.work: Workload = work
        self.exchange = Exchange(setup.layout, SharedMemory(setup.layout.size, exchange_fd))
        self._loaded: int | None = None
        self._stack: Stack | None = None

    def run(self, task: TrainTask | TrainStackTask | MeasureTask) -> Any:
        """Do a task; the result is a report, the reports of a stack, or measured batches."""
        if isinstance(task, MeasureTask):
            return self._measure(task)
        self._loaded = None
        return self._train(task) if isinstance(task, TrainTask) else self._train_stack(task)

    def _train(self, task: TrainTask) -> Report:
        received, update = self.exchange.received, self.exchange.update(task.slot)
        report, _, memory = run_client(
            self.model, self.work, task.round, task.order, task.client, received["params"], received["buffers"],
            self.exchange.personal(task.slot) if task.has_memory else None,
            correction=update["params"] if task.corrected else None, out=update["params"],
        )  # fmt: skip
        update["buffers"].copy_(self.model.buffers)
        if memory is not None:
            self.exchange.put_memory(task.slot, memory)
        return report

    def _train_stack(self, task: TrainStackTask) -> Reports:
        if self._stack is None:
            self._stack = Stack(task.kind, self.model, self.work)
        received, slots = self.exchange.received, range(task.slot, task.slot + len(task.clients))
        self.model.load(received["params"], received["buffers"])
        reports, deltas, own = self._stack.train(
            task.round, task.clients, task.orders, received["params"],
            [self.exchange.personal(slot)["params"] if known else None
             for slot, known in zip(slots, task.has_memory, strict=True)],
            task.room, self.exchange.updates(len(slots), task.slot) if task.corrected else None,
        )  # fmt: skip
        self.exchange.updates(len(slots), task.slot).copy_(deltas)
        if own is not None:
            for slot, params in zip(slots, own, strict=True):
                self.exchange.put_memory(slot, {"params": params, "buffers": received["buffers"]})
        return reports

    def _measure(self, task: MeasureTask) -> list[NDArray[Any]]:
        if task.slot is not None or self._loaded != task.version:
            own = self.exchange.received if task.slot is None else self.exchange.personal(task.slot)
            self.model.load(own["params"], own["buffers"])
            self._loaded = None if task.slot is not None else task.version
        work, examples = self.work, self.work.federation.examples
        batches = [torch.from_numpy(batch) for batch in task.batches]
        if task.metrics_of:
            found = measure_metrics(self.model, examples, work.task, work.metrics, batches, task.metrics_of)
            return [found.numpy()]
        return [rows.numpy() for rows in measure(self.model, examples, work.task, work.loss, batches)]


def _import_main(preparation: dict[str, Any]) -> None:
    global starting
    starting = True
    spawn.prepare(preparation)
    starting = False


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _failure(error: Exception) -> Failure:
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return Failure(None, text)
    return Failure(error, text)
