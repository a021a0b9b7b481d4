"""Several runs in one process at once, for many short runs of small models: a sweep, a comparison.

Each run is trained by the same code as a run alone, with its own aggregator, records and folder. What runs ask of their
engine at the same time is computed as one where that is possible: see `propfair.engines.stacked.fold`.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from propfair.core.client import Workload
from propfair.core.messages import Block, Job
from propfair.core.params import FlatModel
from propfair.engines.allocator import keep_freed_memory
from propfair.engines.inprocess import torch_threads
from propfair.engines.session import Engine
from propfair.engines.stacked.fold import Fold, can_fold
from propfair.engines.stacked.gradients import Layer, linear_layers
from propfair.engines.stacked.probe import NotBatchableError, find_stack
from propfair.engines.turns import Program, Turns
from propfair.engines.vectorized import GATHERED, Vectorized, VectorizedSession
from propfair.seeds import untouched_global_rng

T = TypeVar("T")
NOTE = (
    "trained in products that several runs share: the records are the same whichever runs these are, and agree with "
    "those of the run alone to 1e-5 over a few rounds"
)


class Runner(Generic[T]):
    """Runs several trainings of one model on the same clients, by turns.

    They may differ in algorithm, learning rate, seed and schedule. Models of another architecture, or on other clients,
    are trained too, but with nothing in common.

    Args:
        engine: the one that was asked for.
    """

    def __init__(self, engine: Vectorized) -> None:
        self._engine = engine
        self._folds: dict[Any, Fold | None] = {}
        self._checked: dict[Any, bool] = {}

    def run(self, trainings: Sequence[Callable[[Engine], T]]) -> list[T | BaseException]:
        """The result of each training, which gets the engine to use; or what it raised.

        Raises KeyboardInterrupt where a training did, once all have ended.
        """
        keep_freed_memory()
        turns = Turns(self._serve, urgent=lambda request: isinstance(request, Measuring))

        def program(training: Callable[[Engine], T]) -> Callable[[Program], T]:
            return lambda own: training(Together(**vars(self._engine), program=own))

        done = turns.run([program(training) for training in trainings])
        return [one.result if one.error is None else one.error for one in done]

    def _serve(self, requests: "Sequence[Training | Measuring]") -> list[Any]:
        groups: dict[Any, list[int]] = {}
        for place, request in enumerate(requests):
            key = self._key(request)
            groups.setdefault(place if key is None else key, []).append(place)
        answers: list[Any] = [None] * len(requests)
        with torch_threads(self._engine.threads):
            for key, places in groups.items():
                asked, began = [requests[place] for place in places], time.monotonic()
                found = [_answer_alone(asked[0])] if key == places[0] else self._answers(asked)
                for place, answer in zip(places, found, strict=True):
                    answers[place] = answer
                for request in asked:
                    request.session.served += (time.monotonic() - began) / len(asked)
        return answers

    def _key(self, request: "Training | Measuring") -> Any:
        """What requests must share to be answered at once; None for one that is answered alone.

        Nothing here looks at the other runs: how a run is trained, and so its bits, does not depend on them.
        """
        work, model = request.session.work, request.session.model
        if not can_fold(work) or len(model.buffers) or self._fold(request) is None:
            return None
        shared = (id(work.federation.examples), request.session.architecture)
        if isinstance(request, Measuring):
            return (*shared, tuple((len(batch), batch.data_ptr()) for batch in request.batches))
        job, local = request.job, work.local
        if job.corrections is not None or not self._agrees(request):
            return None
        return (*shared, work.seed, job.round, job.clients, local.batch_size, local.epochs, local.steps)

    def _answers(self, requests: "Sequence[Training | Measuring]") -> list[Any]:
        fold = self._fold(requests[0])
        assert fold is not None
        most = self._most(requests[0])
        return [
            answer
            for start in range(0, len(requests), most)
            for answer in _answer_together(fold, requests[start : start + most])
        ]

    def _most(self, request: "Training | Measuring") -> int:
        """How many runs fit into the memory that the engine may take."""
        clients = len(request.job.clients) if isinstance(request, Training) else 1
        width = max(map(max, request.session.model.shapes))
        if isinstance(request, Training):
            work = request.session.work
            longest = int(work.federation.train.lengths.max())  # a batch size may stand for all that there is
            examples = min(work.local.batch_size, longest) * clients
        else:
            examples = max(map(len, request.batches), default=1)
        of_one = 4 * (3 * clients * len(request.session.model.params) + 6 * examples * width)
        return max(1, int(self._engine.memory * 1e9 * (1 - GATHERED) / of_one))

    def _fold(self, request: "Training | Measuring") -> Fold | None:
        model, key = request.session.model, request.session.architecture
        if key not in self._folds:
            layers: list[Layer] | None = linear_layers(model)
            room = int(self._engine.memory * 1e9 * GATHERED)
            self._folds[key] = None if layers is None else Fold(layers, model, room)
        return self._folds[key]

    def _agrees(self, request: "Training") -> bool:
        """Whether closed-form gradients are those of plain autograd: looked at once for each algorithm.

        One that has an objective under some of its options only counts as two.
        """
        work, model = request.session.work, request.session.model
        rule = work.algorithm
        key = (type(rule), rule.objective is None, rule.order is None, request.session.architecture)
        if key not in self._checked:
            try:
                with untouched_global_rng():
                    stack, _ = find_stack(model, work, request.job)
                self._checked[key] = stack.kind == "linear"
            except NotBatchableError:
                self._checked[key] = False
        return self._checked[key]


class Training(NamedTuple):
    """A round that a run waits for."""

    session: "TogetherSession"
    job: Job


class Measuring(NamedTuple):
    """Losses and scores that a run waits for."""

    session: "TogetherSession"
    params: Tensor
    buffers: Tensor
    batches: Sequence[Tensor]


def _answer_alone(request: Training | Measuring) -> Any:
    """What the run's own session computes; an exception is for the run that asked."""
    try:
        if isinstance(request, Training):
            return list(request.session.train_alone(request.job))
        return request.session.measure_alone(request.params, request.buffers, request.batches)
    except Exception as error:
        return error


def _answer_together(fold: Fold, requests: Sequence[Training | Measuring]) -> list[Any]:
    """Of several runs at once. What fails is the trouble of one of them, and shows again there."""
    try:
        return _fold_all(fold, requests)
    except Exception:
        if len(requests) == 1:
            return [_answer_alone(requests[0])]
        return [answer for request in requests for answer in _answer_together(fold, [request])]


def _fold_all(fold: Fold, requests: Sequence[Training | Measuring]) -> list[Any]:
    works = [request.session.work for request in requests]
    if isinstance(requests[0], Training):
        for request in requests:
            request.session.note_once()
        return [[block] for block in fold.train(works, [one.job for one in requests if isinstance(one, Training)])]
    measuring = [one for one in requests if isinstance(one, Measuring)]
    rows = fold.measure(works[0], torch.stack([one.params for one in measuring]), measuring[0].batches)
    return [[own] for own in rows]


@dataclass(frozen=True, kw_only=True)
class Together(Vectorized):
    """The engine of one of several runs. Not for configs: a run alone is run by `vectorized`."""

    program: Program

    def start(self, model: FlatModel, work: Workload) -> "TogetherSession":
        return TogetherSession(model, work, self)


class TogetherSession(VectorizedSession):
    """Asks for what it needs, and waits until the other runs do.

    Attributes:
        served: its share of the seconds in which requests were answered.
    """

    def __init__(self, model: FlatModel, work: Workload, engine: Together) -> None:
        super().__init__(model, work, engine)
        self.model, self._program, self.served = model, engine.program, 0.0
        self._before = engine.program.waited

    @cached_property
    def architecture(self) -> Any:
        """What runs must share to be one in products: not only shapes, since a model may have options without any.

        Modules of torch tell what they are; others are traced, which takes longer than a round.
        """
        module = self.model.module
        plain = all(type(part).__module__.startswith("torch.nn.") for part in module.modules())
        return type(module), repr(module) if plain else str(linear_layers(self.model)), tuple(self.model.shapes)

    @property
    def waited(self) -> float:
        return self._program.waited - self._before - self.served

    def train(self, job: Job) -> Iterator[Block]:
        yield from self._ask(Training(self, job))

    def measure(self, params: Tensor, buffers: Tensor, batches: Sequence[Tensor]) -> list[Tensor]:
        found: list[Tensor] = self._ask(Measuring(self, params, buffers, batches))
        return found

    def _ask(self, request: Training | Measuring) -> Any:
        return self._program.ask(request)

    def train_alone(self, job: Job) -> Iterator[Block]:
        """As `vectorized` does."""
        return super().train(job)

    def measure_alone(self, params: Tensor, buffers: Tensor, batches: Sequence[Tensor]) -> list[Tensor]:
        """As `vectorized` does."""
        return super().measure(params, buffers, batches)

    def note_once(self) -> None:
        """Say in the record of the run that its bits are not those of a run alone."""
        if NOTE not in self.notes:
            self.note(NOTE, level=logging.DEBUG)
