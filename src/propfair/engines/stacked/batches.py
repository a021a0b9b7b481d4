"""The batches of stacked clients: the same as those of each client by itself, padded to one length."""

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from propfair.algorithms.base import ClientId
from propfair.core.client import Workload
from propfair.core.messages import Orders
from propfair.data.base import Examples
from propfair.engines.stacked.gradients import StackedBatch, StackedOrder
from propfair.seeds import generator, shuffles

Integers = NDArray[np.int64]


class StackedBatches:
    """The batches of some clients of a round, step by step.

    Clients go by falling number of steps, so that those who still train at a step are the first few.

    Args:
        work, round_, clients, orders: as for `Stack.train`.
        like: of the dtype and on the device to compute in.
        room: examples that are read at a time, at least a step of all clients.

    Attributes:
        clients: in that order.
        rank: [C], where each of them stands among the given clients; `back` is the inverse.
        num_steps: [C], of the given clients, in their order.
        order: what they are told.
        counts: [S, C], the real examples of each batch.
        weight: [S, C, B], 1 / count for real examples and 0 for padding.
    """

    def __init__(
        self, work: Workload, round_: int, clients: Sequence[ClientId], orders: Orders, like: Tensor, room: int
    ) -> None:
        self._work, self._round, self._room = work, round_, room
        lengths = work.federation.train.lengths.numpy()[list(clients)]
        self.num_steps = work.local.steps_of(clients, lengths)
        self.rank = rank = np.argsort(-self.num_steps, kind="stable")
        self.back = np.argsort(rank)
        self.clients = [clients[k] for k in rank.tolist()]
        self._index, self.counts = stacked_batches(work, round_, self.clients, lengths[rank], self.num_steps[rank])
        self._still = (self.counts > 0).sum(1).tolist()  # how many clients still train, step by step
        count = self.counts[:, :, None]
        weight = (np.arange(self._index.shape[2]) < count) / np.maximum(count, 1)
        self.weight = torch.from_numpy(weight).to(like)
        self.order = stacked_order(orders, rank, like)

    def unscaled(self) -> "StackedBatches":
        """The same batches for clients that take no orders."""
        same = copy.copy(self)
        same.order = StackedOrder((), (torch.ones_like(self.order.lr_scale),))
        return same

    def __iter__(self) -> Iterator[tuple[int, StackedBatch]]:
        """How many clients still train, and the batches of all, step by step."""
        examples, still = self._work.federation.examples, self._still
        scaled = (self.weight * self.order.lr_scale.unsqueeze(1)).unbind(0)
        weight = self.weight.unbind(0)
        window = max(1, self._room // self._index[0].numel())
        if examples.augment is not None:
            generators = [generator(self._work.seed, "batches", self._round, client, 1) for client in self.clients]
        for start in range(0, len(self._index), window):
            x, y = gather_examples(examples, self._index[start : start + window])
            for step, (inputs, targets) in enumerate(zip(x.unbind(0), y.unbind(0), strict=True), start):
                if examples.augment is not None:
                    for own, count, rng in zip(
                        inputs[: still[step]], self.counts[step].tolist(), generators, strict=False
                    ):
                        own[:count] = examples.augment(own[:count].clone(), rng)
                yield still[step], StackedBatch(inputs, targets, weight[step], scaled[step], self.order)


def stacked_order(orders: Orders, rank: Integers, like: Tensor) -> StackedOrder:
    """The orders in the order `rank`, of the dtype and on the device of `like`."""
    columns = (orders.lr_scale, *orders.numbers.values())
    return StackedOrder(tuple(orders.numbers), tuple(torch.from_numpy(column[rank]).to(like) for column in columns))


def stacked_batches(
    work: Workload, round_: int, clients: Sequence[ClientId], lengths: Integers, num_steps: Integers
) -> tuple[Tensor, Integers]:
    """The batches of `batch_order` for several clients: example indices [S, C, B] and how many of them are real [S, C].

    Padding repeats an example of the client.
    """
    train, size = work.federation.train, work.local.batch_size
    width = min(size, train.longest)
    starts = train.offsets.numpy()[list(clients)]
    per_epoch = -(-lengths // size)
    step = np.arange(num_steps.max())[:, None]
    counts = np.minimum(lengths - step % per_epoch * size, size) * (step < num_steps)
    places = np.empty((len(step), len(clients), width), dtype=np.int64)  # in train.values
    places[:] = starts[:, None]
    for epoch in range(int(np.ceil(num_steps / per_epoch).max())):
        for some in _alike(lengths, (num_steps > epoch * per_epoch).nonzero()[0]):
            order = shuffles(work.seed, round_, epoch, np.asarray(clients)[some], lengths[some])
            padded = np.empty((len(some), -(-order.shape[1] // width) * width), dtype=np.int64)
            np.minimum(order, lengths[some, None] - 1, out=padded[:, : order.shape[1]])
            padded[:, order.shape[1] :] = 0
            padded += starts[some, None]
            batches = padded.reshape(len(some), -1, width).swapaxes(0, 1)  # [batches of an epoch, clients, B]
            if epoch == 0 and len(some) == len(clients):  # the usual case; rows past a client's end count for nothing
                places[: len(batches)] = batches[: len(places)]
                continue
            now = np.arange(len(batches))[:, None]
            later = now + epoch * per_epoch[some]
            real = (now < per_epoch[some]) & (later < num_steps[some])
            places[later[real], np.broadcast_to(some, later.shape)[real]] = batches[real]
    index = train.values.index_select(0, torch.from_numpy(places).view(-1))  # `take` is four times slower
    return index.view(places.shape), counts


def _alike(lengths: Integers, chosen: Integers) -> list[Integers]:
    """`chosen` clients in groups of similar lengths, so that rows padded to the longest of a group waste little."""
    some = lengths[chosen]
    if len(some) * some.max() <= 3 * some.sum():
        return [chosen]
    magnitude = np.log2(some).astype(np.int64) // 2
    return [chosen[magnitude == value] for value in np.unique(magnitude)]


def gather_examples(examples: Examples, index: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets of an index tensor of any shape."""
    x, y = examples.inputs(index.flatten()), examples.targets(index.flatten())
    return x.view(*index.shape, *x.shape[1:]), y.view(*index.shape, *y.shape[1:])
