"""The client's side: a mod and a criterion for apps that train by themselves, and a whole app for those that don't."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Sampler

from propfair.algorithms.base import ClientId
from propfair.algorithms.fedavg import FedAvg
from propfair.core.client import LocalTraining, Memory, Workload, batch_loss, observe, transformed
from propfair.core.messages import Job, Report
from propfair.core.params import FlatModel
from propfair.core.precision import check_precision
from propfair.core.tasks import LossFunction, cross_entropy
from propfair.data.base import ArrayExamples
from propfair.engines.inprocess import InProcessSession
from propfair.errors import ConfigError
from propfair.federation.federation import SPLITS, Federation, Ragged, Split
from propfair.flower.messages import (
    ARRAYS,
    METRICS,
    NUM_EXAMPLES,
    QUESTION,
    Instruction,
    add_report,
    answer,
    read,
    take_correction,
)
from propfair.seeds import shuffles

Data = Mapping[Split, tuple[Tensor, Tensor]]  # inputs and targets of a client
MEMORY = "propfair.memory"  # the record in the client's state


def fair_mod(num_examples: Callable[[Context], int]) -> Mod:
    """A Flower mod that lets a client take part in a `FairStrategy`. Put it first: `ClientApp(mods=[fair_mod(...)])`.

    It tells the server who the client is, tells `fair_loss` what the server asks for, and puts what `fair_loss`
    measured into the reply. Messages of other strategies pass unchanged.

    Args:
        num_examples: how many training examples the client has.
    """
    return _FairMod(num_examples)


@dataclass(frozen=True)
class _FairMod:
    """See `fair_mod`. A class, because Flower's simulation pickles apps, and a closure would be pickled by value."""

    num_examples: Callable[[Context], int]

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        text = read(message)
        if text is None:
            return call_next(message, context)
        if text == QUESTION:
            metrics = answer(*_place(context), self.num_examples(context))
            return Message(RecordDict({METRICS: metrics}), reply_to=message)
        here = _Round(Instruction.of(text), take_correction(message))
        token = _ROUND.set(here)
        try:
            reply = call_next(message, context)
        finally:
            _ROUND.reset(token)
        if not reply.has_error():
            if not reply.content.metric_records:
                reply.content[METRICS] = MetricRecord()
            add_report(next(iter(reply.content.metric_records.values())), here.report())
        return reply


def fair_loss(
    criterion: LossFunction,
    model: nn.Module,
    batches: Iterable[Any],
    *,
    validation: Iterable[Any] | None = None,
    unpack: Callable[[Any], tuple[Any, Tensor]] = tuple,
) -> Callable[[Any, Tensor], Tensor]:
    """The criterion to train with, in place of yours. Call it after the received model is loaded, before training.

    If the algorithm looks at the clients' losses, the received model is measured here, on all batches.

    Args:
        criterion: a loss with `reduction`, such as nn.CrossEntropyLoss(), or one that returns a loss per example.
        model: with the parameters received.
        batches: the training data. Of a DataLoader, its data set is gone through in order, so that the batches of
            training stay what they were.
        validation: the client's validation data, which the received model is measured on instead if the server's
            `loss_source` says so.
        unpack: from a batch to (inputs, targets), for batches that are not such pairs.
    """
    here = _current("fair_loss")
    algorithm, order = here.instruction.algorithm, here.instruction.order
    if algorithm.personal is not None:
        raise ConfigError(
            f"{algorithm.name} trains a second model on each client, which a criterion can't do. "
            "Use propfair.flower.client_app, which does."
        )
    example_losses, penalty = _per_example(criterion), _drift_penalty(here, model)
    if here.instruction.measure:
        measured = batches if here.instruction.measure == "train" else validation
        if measured is None:
            raise ConfigError(_nothing_to_measure(here.instruction.measure))
        here.full_loss = _measure(here.instruction, example_losses, model, _in_order(measured), unpack)

    def fair(output: Any, target: Tensor) -> Tensor:
        losses = example_losses(output, target)
        loss = batch_loss(algorithm, losses)
        if torch.is_grad_enabled():
            here.losses.append(loss.detach())
            here.sizes.append(len(losses))
        objective = transformed(algorithm, loss, order)
        if penalty is not None and torch.is_grad_enabled():
            objective = objective + penalty()
        return objective if order.lr_scale == 1 else objective * order.lr_scale

    return fair


def _drift_penalty(here: "_Round", model: nn.Module) -> Callable[[], Tensor] | None:
    """What has the gradient pull (params - received) + correction; None if the algorithm asks for neither."""
    drift = here.instruction.algorithm.drift
    if drift is None:
        return None
    params = [parameter for parameter in model.parameters() if parameter.requires_grad]
    received, correction = nn.utils.parameters_to_vector(params).detach().clone(), here.correction

    def penalty() -> Tensor:
        flat = nn.utils.parameters_to_vector(params)
        pulled: Tensor = drift.pull / 2 * (flat - received).square().sum()
        return pulled if correction is None else pulled + correction.to(flat) @ flat

    return penalty


class _FairSampler(Sampler[int]):
    """See `fair_sampler`."""

    def __init__(self, length: int, instruction: Instruction) -> None:
        self._length, self._instruction, self._epoch = length, instruction, 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        at = self._instruction
        (order,) = shuffles(at.seed, at.round, self._epoch, [at.client], np.array([self._length]))
        self._epoch += 1
        return iter(order.tolist())


def fair_sampler(data: Sized) -> Sampler[int]:
    """Shuffles by (seed, round, client), as the simulation does: for a DataLoader whose runs can be repeated."""
    return _FairSampler(len(data), _current("fair_sampler").instruction)


def client_app(
    model: Callable[[], nn.Module],
    data: Callable[[Context], Data],
    *,
    loss: LossFunction = cross_entropy,
    mods: Iterable[Mod] = (),
) -> ClientApp:
    """A whole Flower client: the client program of the simulation, told how to train by the strategy's `local`.

    The personal models of Ditto stay in the client's `context.state`.

    Args:
        model: makes the network.
        data: the client's own inputs and targets, by split; "train" at least. "test" is what is evaluated.
        loss: of single examples, [B].
        mods: others, such as those for differential privacy.
    """
    app = ClientApp(mods=[fair_mod(lambda context: len(data(context)["train"][1])), *mods])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        here = _current("client_app")
        at = here.instruction
        num_clients = _place(context)[1]
        work = Workload(_OwnData.of(at.client, num_clients, data(context)), at.algorithm, at.local, at.seed, loss)
        session = InProcessSession(FlatModel(model()), work)
        check_precision(at.local.precision, work.device, session.model.params.dtype)
        params, buffers = session.model.vectors(_arrays(message))
        session.restore({at.client: memory} if (memory := _load_memory(context)) else {})
        if at.measure:
            if not len(work.federation.split(at.measure)[at.client]):
                raise ConfigError(_nothing_to_measure(at.measure))
            here.full_loss = float(session.losses(params, buffers, [at.client], at.measure)[0])
        correction = None if here.correction is None else here.correction.unsqueeze(0)
        job = Job(at.round, params, buffers, (at.client,), (at.order,), None, torch.ones(1), correction)
        ((here.trained, _, buffers),) = session.replies(job)
        if at.client in session.memories:
            _save_memory(context, session.memories[at.client])
        arrays = ArrayRecord(session.model.state_dict(session.model.params, buffers))
        metrics = MetricRecord({NUM_EXAMPLES: len(work.federation.train[at.client])})
        return Message(RecordDict({ARRAYS: arrays, METRICS: metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client, num_clients = _place(context)
        federation = _OwnData.of(client, num_clients, data(context))
        session = InProcessSession(FlatModel(model()), Workload(federation, FedAvg(), LocalTraining(), loss=loss))
        result = session.evaluate(*session.model.vectors(_arrays(message)), "test", [client])
        metrics = {"loss": float(result.loss[0]), "accuracy": float(result.accuracy[0])}
        if memory := _load_memory(context):
            session.restore({client: memory})
            own = session.evaluate_personal("test", [client])
            metrics |= {"personal_loss": float(own.loss[0]), "personal_accuracy": float(own.accuracy[0])}
        record = MetricRecord({**metrics, NUM_EXAMPLES: int(result.num_examples[0])})
        return Message(RecordDict({METRICS: record}), reply_to=message)

    return app


@dataclass
class _Round:
    """What a client does in a round: what it was told, and what is to be reported."""

    instruction: Instruction
    correction: Tensor | None = None  # [P], added to gradients
    losses: list[Tensor] = field(default_factory=list)  # of the batches
    sizes: list[int] = field(default_factory=list)
    full_loss: float = math.nan
    trained: Report | None = None  # if the client program has made it already

    def report(self) -> Report:
        if self.trained is not None:
            return self.trained._replace(full_loss=self.full_loss)
        if not self.losses:
            raise ConfigError(
                "the client did not train with the criterion of propfair.flower.fair_loss: see docs/flower.md"
            )
        losses, sizes = torch.stack(self.losses).float().cpu(), torch.tensor(self.sizes, dtype=torch.float32)
        at = self.instruction
        return Report(
            client=at.client,
            num_steps=len(losses),
            finite=True,  # the server looks for itself
            norm2=math.nan,
            first_loss=float(losses[0]),
            running_loss=float((losses * sizes).sum() / sizes.sum()),
            observed=observe(at.algorithm, losses, at.order),
            full_loss=self.full_loss,
        )


_ROUND: ContextVar[_Round | None] = ContextVar("propfair_round", default=None)


def _current(caller: str) -> _Round:
    here = _ROUND.get()
    if here is None:
        raise ConfigError(
            f"{caller} works inside a training message of a FairStrategy: build the app with "
            "ClientApp(mods=[fair_mod(...)]) and use FairStrategy on the server"
        )
    return here


def _place(context: Context) -> tuple[ClientId, int]:
    """Which client this is, of how many."""
    try:
        client, num_clients = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    except KeyError as error:
        raise ConfigError(
            f"the node has no {error.args[0]}: start its SuperNode with --node-config 'partition-id=0 num-partitions=3'"
        ) from None
    if not 0 <= client < num_clients:
        raise ConfigError(f"partition-id={client} must be below num-partitions={num_clients}, and not negative")
    return client, num_clients


def _per_example(criterion: LossFunction) -> LossFunction:
    if hasattr(criterion, "reduction"):
        criterion = copy.copy(criterion)
        criterion.reduction = "none"

    def losses(output: Any, target: Tensor) -> Tensor:
        found = criterion(output, target)
        if found.ndim == 0:
            raise ConfigError(
                "the criterion must have `reduction`, as nn.CrossEntropyLoss() has, or return one loss for each "
                "example; it returned a single number"
            )
        return found.flatten(1).mean(1) if found.ndim > 1 else found

    return losses


def _nothing_to_measure(split: Split) -> str:
    return (
        f"the server asks for the loss on {split} examples, and the client has none. Give them to fair_loss or "
        "client_app, or set loss_source='before_full' in the Rounds of the strategy."
    )


def _in_order(batches: Iterable[Any]) -> Iterable[Any]:
    if not isinstance(batches, DataLoader) or isinstance(batches.dataset, IterableDataset):
        return batches
    return DataLoader(batches.dataset, batches.batch_size, collate_fn=batches.collate_fn)


@torch.no_grad()
def _measure(
    instruction: Instruction, losses: LossFunction, model: nn.Module, batches: Iterable[Any],
    unpack: Callable[[Any], tuple[Any, Tensor]],
) -> float:  # fmt: skip
    """The loss of the received model on all examples of the batches, in evaluation mode."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    parts = []
    for inputs, targets in map(unpack, batches):
        on_device = inputs.to(device) if isinstance(inputs, Tensor) else inputs
        parts.append(losses(model(on_device), targets.to(device)).double().cpu())
    model.train(was_training)
    return float(batch_loss(instruction.algorithm, torch.cat(parts)))


class _OwnData(Federation):
    """A federation as one of its clients sees it: its own examples under its own number, and nothing of the others."""

    def __post_init__(self) -> None:
        """The others may well have no examples here."""

    @staticmethod
    def of(client: ClientId, num_clients: int, data: Data) -> "_OwnData":
        present = [split for split in SPLITS if split in data]
        x, y = (torch.cat([data[split][part] for split in present]) for part in (0, 1))
        sizes = [len(data[split][1]) for split in present]
        mine = dict(zip(present, torch.split(torch.arange(len(y)), sizes), strict=True))
        nothing = torch.empty(0, dtype=torch.int64)

        def lists(split: Split) -> Ragged:
            return Ragged.of([mine.get(split, nothing) if k == client else nothing for k in range(num_clients)])

        examples = ArrayExamples(x, y, num_classes=0 if y.is_floating_point() else int(y.max()) + 1)
        names = tuple(map(str, range(num_clients)))
        return _OwnData(examples, names, lists("train"), lists("validation"), lists("test"))


def _arrays(message: Message) -> dict[str, Tensor]:
    return dict(next(iter(message.content.array_records.values())).to_torch_state_dict())


def _load_memory(context: Context) -> Memory | None:
    if MEMORY not in context.state.array_records:
        return None
    return dict(context.state.array_records[MEMORY].to_torch_state_dict())


def _save_memory(context: Context, memory: Memory) -> None:
    context.state[MEMORY] = ArrayRecord({name: Array(tensor) for name, tensor in memory.items()})
