"""One client after the other in this process: the reference that other engines are compared with."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from propfair.core.client import Memory, Workload, run_client
from propfair.core.evaluation import measure, measure_metrics
from propfair.core.messages import Block, Job, Reply, reduce_block
from propfair.core.params import FlatModel
from propfair.engines.allocator import keep_freed_memory
from propfair.engines.session import ENGINES, Engine, Session
from propfair.errors import ConfigError
from propfair.federation.federation import Federation
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
        self._ready = False

    def train(self, job: Job) -> Iterator[Block]:
        self._get_ready()
        with torch_threads(self._threads), untouched_global_rng():
            for block in job.blocks():
                positions, workspace = range(block.start, block.stop), self.model.params
                yield reduce_block(job, positions, (self._run(job, position, workspace) for position in positions))

    def _get_ready(self) -> None:
        if not self._ready:
            keep_freed_memory()
            self._ready = True

    def replies(self, job: Job) -> Iterator[Reply]:
        """Every client by itself, in order: for engines that sum elsewhere."""
        with torch_threads(self._threads), untouched_global_rng():
            for position in range(len(job.clients)):
                yield self._run(job, position)

    def _run(self, job: Job, position: int, out: Tensor | None = None) -> Reply:
        client = job.clients[position]
        report, delta, memory = run_client(
            self.model, self.work, job.round, job.orders[position], client,
            job.params, job.buffers, self._memories.get(client), job.correction(position), out,
        )  # fmt: skip
        if memory is not None:
            self._memories[client] = memory
        return report, delta, self.model.buffers

    def measure(self, params: Tensor, buffers: Tensor, batches: Sequence[Tensor]) -> list[Tensor]:
        self.model.load(params, buffers)
        with torch_threads(self._threads):
            return measure(self.model, self.work.federation.examples, self.work.task, self.work.loss, batches)

    def measure_metrics(
        self, models: Sequence[Memory], batches: Sequence[Sequence[Tensor]], names: Sequence[str]
    ) -> Tensor:
        rows, loaded = [], None
        with torch_threads(self._threads):
            for own, few, name in zip(models, batches, names, strict=True):
                if own is not loaded:
                    self.model.load(own["params"], own["buffers"])
                    loaded = own
                work = self.work
                rows.append(measure_metrics(self.model, work.federation.examples, work.task, work.metrics, few, name))
        return torch.stack(rows)


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run with this many torch threads; 0 leaves the setting alone."""
    before = torch.get_num_threads()
    if count in (0, before):
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def on_device(federation: Federation, device: str) -> Federation:
    """The same federation with its examples on the device. Index lists stay on the CPU."""
    if torch.device(device).type == "cpu":
        return federation
    return dataclasses.replace(federation, examples=federation.examples.to(device))
