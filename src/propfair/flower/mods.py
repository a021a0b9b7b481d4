"""The one line of a client: a mod that lets an app with a training loop of its own take part."""

import math
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, MetricRecord
from flwr.app import MessageType as Kind
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch.utils.data import RandomSampler, Sampler

from propfair.algorithms.base import ClientId, Order
from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.transforms import check_baseline, slope
from propfair.core.client import LocalTraining
from propfair.errors import ConfigError
from propfair.federation.federation import Split
from propfair.flower.batches import Unpack, count_examples, unpack_batch
from propfair.flower.criterion import ClientRound, current_round, under_way
from propfair.flower.messages import (
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

Batches = Callable[[Context], Any]


def fair_mod(batches: Batches, *, validation: Batches | None = None, unpack: Unpack = unpack_batch) -> Mod:
    """A Flower mod that makes a client fair. Put it first: `ClientApp(mods=[fair_mod(my_training_batches)])`.

    It tells the server who the client is and how much data it has. While the client trains, the torch criterion that
    its loop calls gets the gradient that the server's algorithm asks for; its value stays the plain loss. If the
    algorithm looks at losses, the received model is measured on the batches first. Messages of other strategies pass
    unchanged, so the same client runs under `FairStrategy` and under Flower's own.

    Args:
        batches: gives the client's training data: a DataLoader, or any batches. For a loop that names its criterion by
            `fair_loss`, the number of examples is enough.
        validation: gives the client's validation data, for servers whose `loss_source` asks for them.
        unpack: from a batch to (inputs, targets), for batches that are neither pairs nor dicts or objects with targets
            called label(s), target(s) or y.
    """
    return _FairMod(batches, validation, unpack)


@dataclass(frozen=True)
class _FairMod:
    """See `fair_mod`. A class, because Flower's simulation pickles apps, and a closure would be pickled by value."""

    batches: Batches
    validation: Batches | None
    unpack: Unpack

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        text = read(message)
        if text is None:
            return call_next(message, context)
        if text == QUESTION:
            client, num_clients = place(context)
            number = count_examples(self.batches(context), self.unpack)
            return Message(answer(client, num_clients, number, context.node_config.get("name")), reply_to=message)
        correction = take_correction(message)
        here = self._round(Instruction.of(text), message, context)
        here.correction = correction
        with under_way(here):
            reply = call_next(message, context)
        if not reply.has_error():
            if not reply.content.metric_records:
                reply.content[METRICS] = MetricRecord()
            add_report(next(iter(reply.content.metric_records.values())), here.report(), here.objective)
        return reply

    def _round(self, instruction: Instruction, message: Message, context: Context) -> ClientRound:
        def measured(split: Split) -> Iterable[Any] | None:
            source = self.batches if split == "train" else self.validation
            found = None if source is None else source(context)
            return None if isinstance(found, int) else found

        received = next(iter(message.content.array_records.values())).to_torch_state_dict()
        return ClientRound(instruction, dict(received), measured, self.unpack)


def propfair_mod(
    batches: Batches, *, M: float = 5.0, epsilon: float = 0.2, uniform: bool = False, unpack: Unpack = unpack_batch
) -> Mod:
    r"""PropFair without any change of the server: the mod for clients of Flower's own FedAvg.

    The client measures the received model on its training data and reports `num-examples` times the slope
    $1 / (M - f_i)$, so that the server's average is that of PropFair, with the dual weights of Proposition 3.2. The
    server sees a number where it saw another, and nothing else. M is one for good; `FairStrategy` has an M that follows
    the worst-off client, and `placement="update"` does there what this does here.

    Args:
        batches: gives the client's training data.
        M: the loss at which a client has no utility left: above the losses to expect, and the lower the fairer.
        epsilon: the utility below which the slope stays as it is.
        uniform: every client counts once, whatever data it has.
        unpack: from a batch to (inputs, targets), for batches that are neither pairs nor dicts or objects with targets
            called label(s), target(s) or y.
    """
    check_baseline(M, epsilon)
    return _PropFairMod(batches, None, unpack, M, epsilon, uniform)


_MEASURE = Instruction(0, 0, 0, FedAvg(), Order(), LocalTraining(), "train")


@dataclass(frozen=True)
class _PropFairMod(_FairMod):
    """See `propfair_mod`."""

    M: float
    epsilon: float
    uniform: bool

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if read(message) is not None or message.metadata.message_type.partition(".")[0] != Kind.TRAIN:
            return super().__call__(message, context, call_next)
        here = self._round(_MEASURE, message, context)
        with under_way(here):
            reply = call_next(message, context)
        if not reply.has_error():
            for metrics in reply.content.metric_records.values():
                said = metrics.get(NUM_EXAMPLES)
                if isinstance(said, int | float):
                    metrics[NUM_EXAMPLES] = (1.0 if self.uniform else float(said)) * self._slope(here)
        return reply

    def _slope(self, here: ClientRound) -> float:
        if math.isnan(here.full_loss):
            here.report()  # says that no criterion was called, if that is why
            raise ConfigError("the loss of the received model is not a number: lower the learning rate")
        loss = torch.tensor(here.full_loss, dtype=torch.float64)
        return float(slope(loss, self.M, self.epsilon, "huber"))


def place(context: Context) -> tuple[ClientId, int]:
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
    """Shuffles by (seed, round, client), as the simulation does: for a DataLoader whose runs can be repeated.

    Where no `FairStrategy` asks, it shuffles as `shuffle=True` does.
    """
    here = current_round()
    return RandomSampler(data) if here is None else _FairSampler(len(data), here.instruction)
