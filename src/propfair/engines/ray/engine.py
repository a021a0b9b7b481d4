"""Clients on the workers of a Ray cluster: the bits of one process, on as many machines as there are.

The data go into the object store once, where all workers of a machine read the same copy; the model goes there once a
round. A worker runs a block of clients and sends back its sum or, for rules that look at single updates and for
cohorts too small to keep all workers busy with blocks, single updates that are summed here in the same order.
Client memories stay here, so that the death of a machine loses nothing: its clients are run again.
"""

import contextlib
import copy
import itertools
import math
import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from types import ModuleType
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from propfair.algorithms.base import ClientId
from propfair.core.client import Memory, Workload
from propfair.core.messages import BLOCK, Block, Job, Reply, Report, Reports, reduce_block
from propfair.core.params import FlatModel
from propfair.engines.inprocess import InProcessSession, torch_threads
from propfair.engines.ray.cluster import connected
from propfair.engines.ray.pool import ActorPool, ActorTask, OnHang
from propfair.engines.session import ENGINES, Engine, Session
from propfair.errors import ConfigError

TASKS_PER_WORKER = 4  # at least, so that workers end a round together


@ENGINES.register("ray")
@dataclass(frozen=True, kw_only=True)
class Ray(Engine):
    """Runs clients on a Ray cluster.

    Args:
        address: "" starts a Ray on this machine for the time of the run; "auto" or "host:port" joins a running one.
        workers: how many workers; 0: as many as the cluster has room for.
        cpus: CPUs that a worker reserves.
        gpus: GPUs that a worker reserves, also a fraction; if not 0, clients train on the GPU.
        threads: torch threads of a client; equal bits need equal threads.
        timeout: seconds that a client may take; 0: as long as it likes.
        on_hang: what is done with a client past the timeout: "wait" for it, "retry" it on a new worker, or "drop" it
            from the round.
    """

    address: str = ""
    workers: int = 0
    cpus: float = 1.0
    gpus: float = 0.0
    threads: int = 1
    timeout: float = 0.0
    on_hang: OnHang = "wait"

    def __post_init__(self) -> None:
        for name, count, least in (("workers", self.workers, 0), ("threads", self.threads, 1)):
            if count < least:
                raise ConfigError(f"{name} must be at least {least}; got {name}={count}")
        for name, number in (("cpus", self.cpus), ("gpus", self.gpus), ("timeout", self.timeout)):
            if not 0 <= number < math.inf:
                raise ConfigError(f"{name} must be a finite number >= 0; got {name}={number}")
        if self.cpus == self.gpus == 0:
            raise ConfigError("a worker must reserve something: cpus and gpus are both 0. Use cpus=1.")
        if self.on_hang != "wait" and not self.timeout:
            raise ConfigError(f"on_hang={self.on_hang!r} needs a timeout: the seconds that a client may take")

    def start(self, model: FlatModel, work: Workload) -> "RaySession":
        if torch.device(work.device).type != "cpu" and not self.gpus:
            raise ConfigError(
                f"device={work.device!r} on Ray needs GPUs for the workers. Set gpus, for example gpus=1."
            )
        return RaySession(self, model, work)


class RaySession(Session):
    """See `Ray`."""

    def __init__(self, options: Ray, model: FlatModel, work: Workload) -> None:
        super().__init__(work)
        self._threads = options.threads
        self._memories: dict[ClientId, Memory] = {}
        with contextlib.ExitStack() as stack:
            wanted = math.ceil(options.workers * options.cpus) or None
            self._ray = stack.enter_context(connected(options.address, wanted))
            on_worker = replace(work, device="cuda" if options.gpus else work.device)
            parcel = self._ray.put(_wrap(self._ray, on_worker))
            module = self._ray.put(self._ray.cloudpickle.dumps(copy.deepcopy(model.module).cpu()))
            remote = self._ray.remote(_Actor).options(
                num_cpus=options.cpus, num_gpus=options.gpus, scheduling_strategy="SPREAD", max_restarts=0
            )
            self._pool = ActorPool(
                self._ray, lambda: remote.remote(parcel, module, options.threads),
                options.workers or _room(self._ray, options), options.timeout, options.on_hang, self.events,
            )  # fmt: skip
            stack.callback(self._pool.close)
            self._pool.start()
            self._exit = stack.pop_all()

    def train(self, job: Job) -> Iterator[Block]:
        model = self._put_model(job.params, job.buffers)
        pieces, method = self._pieces(job)
        results = self._pool.run([self._task(method, job, piece, model) for piece in pieces], job.round)
        with torch_threads(self._threads):
            for _, group in itertools.groupby(pieces, key=lambda piece: piece.start // BLOCK):
                block = list(group)
                parts = [part for _ in block for part in next(results)]
                for _, answer in parts:
                    if answer is not None:
                        self._memories |= {client: _unpack(memory) for client, memory in answer.memories.items()}
                task, answer = parts[0]
                if task.method == "sum_block":
                    ((reports, update, buffers),) = answer.sent
                    assert isinstance(reports, Reports)
                    yield Block(reports, update.to(job.params).clone(), buffers.to(job.buffers))  # sums are written to
                else:
                    replies = [reply for task, answer in parts for reply in _replies(task, answer, job)]
                    yield reduce_block(job, range(block[0].start, block[-1].stop), replies)

    def _pieces(self, job: Job) -> tuple[list[range], str]:
        """The positions that are run as one task: whole blocks, or parts of them where that is not enough tasks."""
        enough = TASKS_PER_WORKER * self._pool.size
        blocks = job.blocks()
        if job.weights is not None and len(blocks) >= enough:
            return [range(block.start, block.stop) for block in blocks], "sum_block"
        size = max(1, min(BLOCK, len(job.clients) // enough))
        return [
            range(start, min(start + size, block.stop))
            for block in blocks
            for start in range(block.start, block.stop, size)
        ], "run_clients"

    def _task(self, method: str, job: Job, piece: range, model: Any) -> ActorTask:
        """One piece; the model is a reference, so that it is sent to each machine once."""
        chosen = slice(piece.start, piece.stop)
        clients = job.clients[chosen]
        part = replace(
            job, params=job.params[:0].cpu(), buffers=job.buffers[:0].cpu(), clients=clients, orders=job.orders[chosen],
            weights=None if job.weights is None else job.weights[chosen].clone(), share=job.share[chosen].clone(),
            corrections=None if job.corrections is None else job.corrections[chosen].cpu().clone(),
        )  # fmt: skip
        memories = {client: _pack(self._memories[client]) for client in clients if client in self._memories}
        return ActorTask(
            method, (model, part, memories), clients,
            split=lambda: [self._task("run_clients", job, range(one, one + 1), model) for one in piece],
        )  # fmt: skip

    def measure(self, params: Tensor, buffers: Tensor, batches: Sequence[Tensor]) -> list[Tensor]:
        model = self._put_model(params, buffers)
        size = max(1, len(batches) // (TASKS_PER_WORKER * self._pool.size))
        tasks = [
            ActorTask("measure", (model, list(batches[start : start + size]))) for start in range(0, len(batches), size)
        ]
        return [values.tensor() for parts in self._pool.run(tasks, 0) for _, several in parts for values in several]

    def measure_metrics(
        self, models: Sequence[Memory], batches: Sequence[Sequence[Tensor]], names: Sequence[str]
    ) -> Tensor:
        sent: dict[int, Any] = {}
        for own in models:
            if id(own) not in sent:
                sent[id(own)] = self._put_model(own["params"], own["buffers"])
        tasks = [
            ActorTask("measure_metrics", (sent[id(own)], list(few), name))
            for own, few, name in zip(models, batches, names, strict=True)
        ]
        return torch.cat([found.tensor() for parts in self._pool.run(tasks, 0) for _, found in parts])

    def measure_each(self, models: Sequence[Memory], batches: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        sent = [(_Packed.of(own["params"]), _Packed.of(own["buffers"])) for own in models]
        tasks = [
            ActorTask("measure_each", (sent[start : start + BLOCK], list(map(list, batches[start : start + BLOCK]))))
            for start in range(0, len(models), BLOCK)
        ]
        found = (of_one for parts in self._pool.run(tasks, 0) for _, of_some in parts for of_one in of_some)
        return [[values.tensor() for values in of_one] for of_one in found]

    @property
    def memories(self) -> Mapping[ClientId, Memory]:
        return self._memories

    def restore(self, memories: Mapping[ClientId, Memory]) -> None:
        self._memories = {client: dict(memory) for client, memory in memories.items()}

    def close(self) -> None:
        self._exit.close()

    def _put_model(self, params: Tensor, buffers: Tensor) -> Any:
        return self._ray.put((_Packed.of(params), _Packed.of(buffers)))


class _Packed(NamedTuple):
    """A tensor as bytes that Ray keeps in shared memory and never copies; numpy has no bfloat16."""

    data: NDArray[Any]  # uint8
    dtype: torch.dtype
    shape: tuple[int, ...]

    @staticmethod
    def of(tensor: Tensor) -> "_Packed":
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        return _Packed(flat.view(torch.uint8).numpy(), tensor.dtype, tuple(tensor.shape))

    def tensor(self) -> Tensor:
        """To read, not to write: the memory belongs to all processes of the machine."""
        if not len(self.data):
            return torch.empty(self.shape, dtype=self.dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about exactly that
            return torch.from_numpy(self.data).view(self.dtype).reshape(self.shape)

    def to(self, other: Tensor) -> Tensor:
        """The tensor on the device of another."""
        return self.tensor().to(other.device)


_PackedMemory = dict[str, _Packed]


class _Answer(NamedTuple):
    """What a worker sends back for one task."""

    sent: list[tuple[Report | Reports, _Packed, _Packed]]  # one block, summed; or one part for each client
    memories: dict[ClientId, _PackedMemory]


class _Actor:
    """What runs in each Ray worker: an in-process session that gets its jobs from the main process."""

    def __init__(self, parcel: Any, module: bytes, threads: int) -> None:
        work = _unwrap(parcel)
        self._session = InProcessSession(FlatModel(pickle.loads(module), work.device), work, threads)

    def ready(self) -> bool:
        return True

    def sum_block(self, model: tuple[_Packed, _Packed], part: Job, memories: dict[ClientId, _PackedMemory]) -> _Answer:
        (block,) = self._session.train(self._job(model, part, memories))
        return self._answer([(block.reports, _Packed.of(block.update), _Packed.of(block.buffers))])

    def run_clients(
        self, model: tuple[_Packed, _Packed], part: Job, memories: dict[ClientId, _PackedMemory]
    ) -> _Answer:
        replies = self._session.replies(self._job(model, part, memories))
        return self._answer([(report, _Packed.of(delta), _Packed.of(buffers)) for report, delta, buffers in replies])

    def measure(self, model: tuple[_Packed, _Packed], batches: list[Tensor]) -> list[_Packed]:
        params, buffers = model
        return [_Packed.of(values) for values in self._session.measure(params.tensor(), buffers.tensor(), batches)]

    def measure_metrics(self, model: tuple[_Packed, _Packed], batches: list[Tensor], name: str) -> _Packed:
        own = {"params": model[0].tensor(), "buffers": model[1].tensor()}
        return _Packed.of(self._session.measure_metrics([own], [batches], [name]))

    def measure_each(self, models: list[tuple[_Packed, _Packed]], batches: list[list[Tensor]]) -> list[list[_Packed]]:
        return [self.measure(model, few) for model, few in zip(models, batches, strict=True)]

    def _job(self, model: tuple[_Packed, _Packed], part: Job, memories: dict[ClientId, _PackedMemory]) -> Job:
        self._session.restore({client: _unpack(memory) for client, memory in memories.items()})
        like = self._session.model.params
        corrections = None if part.corrections is None else part.corrections.to(like.device)
        return replace(part, params=model[0].to(like), buffers=model[1].to(like), corrections=corrections)

    def _answer(self, sent: list[tuple[Report | Reports, _Packed, _Packed]]) -> _Answer:
        return _Answer(sent, {client: _pack(memory) for client, memory in self._session.memories.items()})


def _replies(task: ActorTask, answer: _Answer | None, job: Job) -> list[Reply]:
    if answer is None:
        return [(Report.none(task.clients[0]), job.params[:0], job.buffers[:0])]
    return [
        (report, delta.to(job.params), buffers.to(job.buffers))
        for report, delta, buffers in answer.sent
        if isinstance(report, Report)
    ]


def _pack(memory: Memory) -> _PackedMemory:
    return {name: _Packed.of(tensor) for name, tensor in memory.items()}


def _unpack(memory: _PackedMemory) -> Memory:
    return {name: packed.tensor().clone() for name, packed in memory.items()}


def _room(ray: ModuleType, options: Ray) -> int:
    """How many workers the cluster has room for."""
    have = ray.cluster_resources()
    each = (("CPU", options.cpus), ("GPU", options.gpus))
    return max(1, min(int(have.get(kind, 0) // need) for kind, need in each if need))


def _wrap(ray: ModuleType, work: Workload) -> tuple[bytes, list[_Packed]]:
    """Pickle a workload with its large tensors beside it, so that they are shared and not copied."""
    tensors: list[Tensor] = []

    class Pickler(ray.cloudpickle.CloudPickler):  # type: ignore[misc, name-defined]
        def persistent_id(self, found: object) -> int | None:
            if type(found) is not Tensor or found.numel() < 1024:
                return None
            tensors.append(found)
            return len(tensors) - 1

    stream = BytesIO()
    Pickler(stream).dump(work)
    return stream.getvalue(), [_Packed.of(tensor) for tensor in tensors]


def _unwrap(parcel: tuple[bytes, list[_Packed]]) -> Workload:
    content, tensors = parcel

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, position: int) -> Tensor:
            return tensors[position].tensor()

    work: Workload = Unpickler(BytesIO(content)).load()
    return work
