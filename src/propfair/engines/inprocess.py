"""One client after the other in this process: the reference that other engines are compared with."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from propfair.algorithms.base import ClientId
from propfair.client import Memory, Workload, run_client
from propfair.engines.base import ENGINES, Block, Engine, Job, Session
from propfair.errors import ConfigError
from propfair.evaluation import Evaluation, chunks, gather, measure
from propfair.federation import Federation, Split
from propfair.params import FlatModel
from propfair.seeds import untouched_global_rng


@ENGINES.register("inprocess")
@dataclass(frozen=True, kw_only=True)
class InProcess(Engine):
    """Runs clients one by one in this process, on one model.

    Args:
        threads: torch threads while clients run; 0 leaves the setting of the process alone.
    """

    threads: int = 0

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise ConfigError(f"threads must be >= 0; got threads={self.threads}. Use 0 for torch's own setting.")

    def start(self, model: FlatModel, work: Workload) -> "InProcessSession":
        return InProcessSession(model, work, self.threads)


class InProcessSession(Session):
    """See `InProcess`."""

    def __init__(self, model: FlatModel, work: Workload, threads: int = 0) -> None:
        super().__init__(dataclasses.replace(work, federation=on_device(work.federation, work.device)))
        self.model = model
        self._threads = threads
        self._memories: dict[ClientId, Memory] = {}

    def train(self, job: Job) -> Iterator[Block]:
        with self._threads_set(), untouched_global_rng():
            for positions in job.blocks():
                yield self._block(job, positions)

    def _block(self, job: Job, positions: slice) -> Block:
        reports, kept = [], []
        total = torch.zeros_like(job.params)
        buffers = torch.zeros_like(job.buffers)
        for position in range(positions.start, positions.stop):
            client = job.clients[position]
            report, delta, memory = run_client(
                self.model, self.work, job.round, job.orders[position], client,
                job.params, job.buffers, self._memories.get(client),
            )  # fmt: skip
            reports.append(report)
            if memory is not None:
                self._memories[client] = memory
            if not report.finite:
                continue
            if job.weights is None:
                kept.append(delta)
            else:
                total.add_(delta, alpha=float(job.weights[position]))
            if len(buffers):
                buffers.add_(self.model.buffers, alpha=float(job.share[position]))
        if job.weights is None:
            total = torch.stack(kept) if kept else total.new_empty(0, len(total))
        return Block(tuple(reports), total, buffers)

    def measure(self, params: Tensor, buffers: Tensor, batches: Sequence[Tensor]) -> list[Tensor]:
        self.model.load(params, buffers)
        with self._threads_set():
            return [measure(self.model, self.work.federation.examples, self.work.loss, batch) for batch in batches]

    def evaluate_personal(self, split: Split, clients: Sequence[ClientId]) -> Evaluation:
        index = self.work.federation.split(split)
        loss, accuracy = torch.full((2, len(clients)), torch.nan, dtype=torch.float64)
        for position, client in enumerate(clients):
            if client in self._memories:
                own = self._memories[client]
                one = gather(self.measure(own["params"], own["buffers"], chunks(index, [client])), index, [client])
                loss[position], accuracy[position] = one.loss[0], one.accuracy[0]
        return Evaluation(loss, accuracy, index.lengths[list(clients)])

    @property
    def memories(self) -> Mapping[ClientId, Memory]:
        return self._memories

    def restore(self, memories: Mapping[ClientId, Memory]) -> None:
        self._memories = {client: dict(memory) for client, memory in memories.items()}

    @contextlib.contextmanager
    def _threads_set(self) -> Iterator[None]:
        before = torch.get_num_threads()
        if self._threads:
            torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def on_device(federation: Federation, device: str) -> Federation:
    """The same federation with its examples on the device. Index lists stay on the CPU."""
    if torch.device(device).type == "cpu":
        return federation
    examples = federation.examples
    return dataclasses.replace(
        federation,
        examples=examples.with_tensors({name: tensor.to(device) for name, tensor in examples.tensors().items()}),
    )
