"""The engine boundary: how `run_client` is mapped over the clients of a round.

Algorithms and the server loop never know which engine runs them. An engine gets a `Job` and gives `Block`s, see
`propfair.core.messages`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from propfair.algorithms.base import ClientId
from propfair.core.client import Memory, Workload, batch_loss
from propfair.core.evaluation import Evaluation, chunks, gather
from propfair.core.messages import Block, Job
from propfair.core.params import FlatModel
from propfair.federation.federation import Split
from propfair.registry import Registry


class Event(NamedTuple):
    """Something that went wrong in a round and was dealt with."""

    round: int
    kind: str  # "rerun": the clients were run again; "lost": they took no part
    clients: tuple[ClientId, ...]
    detail: str  # for people


class Session(ABC):
    """An engine at work: holds models, workers and client memories until it is closed.

    Attributes:
        work: what clients need, and what never changes during a run.
        events: what went wrong and was dealt with, oldest first; whoever records them empties the list.
        notes: what the user should know about how clients are run, one line each; logged as well.
        choice: for the record, which engine really runs clients; "" if it is the one that was asked for.
        num_rounds: about how many rounds are to come, if whoever runs them says so.
    """

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.events: list[Event] = []
        self.notes: list[str] = []
        self.choice = ""
        self.num_rounds = 100
        self._memories: dict[ClientId, Memory] = {}

    @abstractmethod
    def train(self, job: Job) -> Iterator[Block]:
        """Run all clients of the round; blocks in order."""

    @abstractmethod
    def measure(self, params: Tensor, buffers: Tensor, batches: Sequence[Tensor]) -> list[Tensor]:
        """Loss and score [2, B] of the examples in each batch of indices, in order; see `evaluation.measure`."""

    @abstractmethod
    def measure_metrics(
        self, models: Sequence[Memory], batches: Sequence[Sequence[Tensor]], names: Sequence[str]
    ) -> Tensor:
        """The metrics of the workload for several clients, [K, M] float64: each by its model, on its own batches.

        `names` are of the clients, for messages. The same model may be given for all.
        """

    @property
    def waited(self) -> float:
        """Seconds that other runs took, where several are run at once."""
        return 0.0

    def evaluate(self, params: Tensor, buffers: Tensor, split: Split, clients: Sequence[ClientId]) -> Evaluation:
        """The global model on each client's examples."""
        found = self._rows(params, buffers, split, clients)
        model = {"params": params, "buffers": buffers}
        return self._with_metrics(found, [model] * len(clients), split, clients)

    def _rows(self, params: Tensor, buffers: Tensor, split: Split, clients: Sequence[ClientId]) -> Evaluation:
        index = self.work.federation.split(split)
        parts = self.measure(params, buffers, chunks(self.work.federation, split, clients))
        return gather(parts, index, clients, self.work.task.score)

    def _with_metrics(
        self, found: Evaluation, models: Sequence[Memory], split: Split, clients: Sequence[ClientId]
    ) -> Evaluation:
        """An evaluation with the metrics of the workload, if it has any; the batches are then gone through again."""
        federation, metrics = self.work.federation, self.work.metrics
        if not metrics or not clients:
            return found
        batches = [chunks(federation, split, [client]) for client in clients]
        names = [f"client {client} ({federation.names[client]})" for client in clients]
        columns = self.measure_metrics(models, batches, names).unbind(1)
        named = {metric.name: column for metric, column in zip(metrics, columns, strict=True)}
        return found._replace(metrics={**found.metrics, **named})

    def losses(self, params: Tensor, buffers: Tensor, clients: Sequence[ClientId], split: Split = "train") -> Tensor:
        """What rules that need LOSS look at: the loss of the model on each client's examples, [K] float64."""
        if self.work.algorithm.reduce is None:
            return self._rows(params, buffers, split, clients).loss
        index = self.work.federation.split(split)
        measured = self.measure(params, buffers, chunks(self.work.federation, split, clients))
        examples = torch.cat(measured, dim=1)[0].double()
        parts = torch.split(examples, index.lengths[list(clients)].tolist())
        return torch.stack([batch_loss(self.work.algorithm, part) for part in parts])

    def first_losses(
        self, params: Tensor, buffers: Tensor, clients: Sequence[ClientId], split: Split = "train"
    ) -> Tensor:
        """`losses` before round 1 where each client starts from its own model, [K]."""
        assert self.work.starts is not None
        own = (self.work.starts(client) for client in clients)
        return torch.cat([self.losses(start, buffers, [c], split) for start, c in zip(own, clients, strict=True)])

    def evaluate_personal(self, split: Split, clients: Sequence[ClientId]) -> Evaluation:
        """Each client's personal model on its own examples; nan for clients that have none yet."""
        index = self.work.federation.split(split)
        known = [client for client in clients if client in self.memories]
        models = [self.memories[client] for client in known]
        parts = self.measure_each(models, [chunks(self.work.federation, split, [client]) for client in known])
        own = gather([part for parts_of_one in parts for part in parts_of_one], index, known, self.work.task.score)
        own = self._with_metrics(own, models, split, known)
        place = torch.tensor([client in self.memories for client in clients], dtype=torch.bool)

        def spread(values: Tensor) -> Tensor:
            everyone = torch.full((len(clients),), torch.nan, dtype=torch.float64)
            everyone[place] = values
            return everyone

        metrics = {name: spread(values) for name, values in own.metrics.items()}
        right = own.right if place.all() else None
        return Evaluation(spread(own.loss), spread(own.accuracy), index.lengths[list(clients)], metrics, right)

    def measure_each(self, models: Sequence[Memory], batches: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        """`measure` for several models, each on its own batches."""
        return [self.measure(own["params"], own["buffers"], few) for own, few in zip(models, batches, strict=True)]

    @property
    def memories(self) -> Mapping[ClientId, Memory]:
        """What clients keep between rounds."""
        return self._memories

    def restore(self, memories: Mapping[ClientId, Memory]) -> None:
        """Take these as what clients kept from earlier rounds, as after a checkpoint."""
        self._memories = {client: dict(memory) for client, memory in memories.items()}

    def note(self, line: str, level: int = logging.WARNING) -> None:
        """Tell the user something about how clients are run: in the log and in the record of the run."""
        self.notes.append(line)
        logging.getLogger("propfair").log(level, line)

    def close(self) -> None:  # noqa: B027 (most engines hold nothing that outlives them)
        """Free workers and memory. Safe to call twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Engine(ABC):
    """A named way to run clients: a frozen dataclass whose fields are its options. Subclasses register themselves."""

    name: ClassVar[str]

    @abstractmethod
    def start(self, model: FlatModel, work: Workload) -> Session:
        """Get ready to run rounds of `model`, which the session may use as its workspace until it is closed."""


ENGINES: Registry[Engine] = Registry("engine", "propfair.engines", "propfair.engines")
