"""Training in stacks: the batches, the steps and the reports of many clients at once, and whether a model allows it."""

import copy
import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from propfair.algorithms.base import ClientId
from propfair.core.client import LocalTraining, Workload, batch_loss, batch_order, cross_entropy, transformed
from propfair.core.messages import Block, Job, Orders, Reports
from propfair.core.params import FlatModel
from propfair.data.base import Examples
from propfair.engines.stacked.gradients import (
    AnyModule,
    Goal,
    Gradient,
    LinearLayers,
    StackedBatch,
    StackedOrder,
    first,
    linear_layers,
    order_of,
)
from propfair.seeds import generator, shuffles

Integers = NDArray[np.int64]
Kind = Literal["linear", "any"]

TOLERANCE = 1e-4  # of the gradients that are compared at the start, relative to the largest element


class NotBatchableError(Exception):
    """Why a workload can't be trained in stacks."""


def reduce_stack(job: Job, positions: range, reports: Reports, deltas: Tensor) -> Block:
    """The block of the clients at these positions of the cohort, from their updates [C, P]."""
    chosen = slice(positions.start, positions.stop)
    share = job.share[chosen]
    weights = None if job.weights is None else job.weights[chosen]
    if not reports.finite.all():
        finite = torch.from_numpy(reports.finite)
        deltas, share = deltas[finite.to(deltas.device)], share[finite]
        weights = None if weights is None else weights[finite]
    update = deltas if weights is None else weights.to(deltas) @ deltas
    return Block(reports, update, job.buffers * float(share.sum()) if len(job.buffers) else job.buffers)


class Stack:
    """How a workload is trained in stacks.

    Args:
        kind: "linear" for a chain of linear layers, "any" for any module that torch.func can batch.
        model: the module; its parameters are not touched.
        work: what clients need.
    """

    def __init__(self, kind: Kind, model: FlatModel, work: Workload) -> None:
        self.kind, self._model, self._work = kind, model, work
        self._goal, own_goal = Goal(work.algorithm), Goal(work.algorithm, with_objective=False)
        self.shared: Gradient
        self.personal: Gradient
        if kind == "linear":
            layers = linear_layers(model)
            assert layers is not None
            self.shared, self.personal = LinearLayers(layers, self._goal), LinearLayers(layers, own_goal)
        else:
            self.shared = AnyModule(model, work.loss, self._goal)
            self.personal = AnyModule(model, work.loss, own_goal)

    def train(
        self, round_: int, clients: Sequence[ClientId], orders: Orders, received: Tensor,
        memories: Sequence[Tensor | None], room: int,
    ) -> tuple[Reports, Tensor, Tensor | None]:  # fmt: skip
        """Reports, updates [C, P] and personal models [C, P] of these clients, in their order.

        Args:
            round_: the round.
            clients: who trains.
            orders: what they are told.
            received: [P], the global model.
            memories: the personal model [P] of each; None if it has none yet.
            room: bytes for inputs.
        """
        work, rule = self._work, self._work.algorithm.personal
        plan = Plan(work, round_, clients, orders, received, room // self._example_bytes)
        leaves, own = split(received.unsqueeze(0), self._model), None
        if rule is not None:
            before = torch.stack([received if memories[k] is None else memories[k] for k in plan.rank.tolist()])
            params = split(before.clone(), self._model)
            pull = Pull([leaf.expand_as(p) for leaf, p in zip(leaves, params, strict=True)], rule.lam)
            descend(self.personal, params, plan.unscaled(), work.local, rule.lr or work.local.lr, pull)
            after = join(params)
            own = torch.where(after.isfinite().all(1, keepdim=True), after, before)[torch.from_numpy(plan.back)]
        if work.starts is not None and round_ == 1:
            params = split(torch.stack([work.starts(client) for client in plan.clients]), self._model)
        else:
            everyone = [leaf.expand(len(clients), *leaf.shape[1:]) for leaf in leaves]
            params = [leaf.clone(memory_format=torch.contiguous_format) for leaf in everyone]
        losses = self._goal.batch_losses(descend(self.shared, params, plan, work.local, work.local.lr), plan.weight)
        deltas = join(params).sub_(received).index_select(0, torch.from_numpy(plan.back).to(received.device))
        return self._reports(tuple(clients), plan, losses, deltas), deltas, own

    def get_ready(self, job: Job, num_clients: int, room: int) -> None:
        """Do now what would make the first rounds slower than those that follow."""
        clients, orders = job.clients[:num_clients], Orders.of(job.orders[:num_clients])
        plan = Plan(self._work, job.round, clients, orders, job.params, room // self._example_bytes)
        _, batch = next(iter(plan))
        self.shared.get_ready(split(job.params.repeat(num_clients, 1), self._model), batch)

    @functools.cached_property
    def _example_bytes(self) -> int:
        return self._work.federation.examples.inputs(self._work.federation.train.values[:1]).nbytes

    def _reports(self, clients: tuple[ClientId, ...], plan: "Plan", losses: Tensor, deltas: Tensor) -> Reports:
        """From batch losses [S, C] in the order of the plan, and updates [C, P] in the order of the clients."""
        losses, algorithm, observed = losses.float().cpu(), self._work.algorithm, {}
        found, counts = losses.numpy()[:, plan.back], plan.counts[:, plan.back]
        trained = counts > 0
        norm2 = torch.linalg.vecdot(deltas, deltas).cpu().numpy()
        with np.errstate(invalid="ignore"):  # losses of clients that diverged
            running = np.where(trained, found * counts, 0).sum(0) / counts.sum(0)
            if algorithm.watch is not None:
                order = order_of(plan.order.names, [column.float().cpu() for column in plan.order.columns])
                for name, values in algorithm.watch(losses, order).items():
                    observed[name] = np.where(trained, values.numpy()[:, plan.back], 0).sum(0) / plan.num_steps
        return Reports(
            clients, plan.num_steps, norm2 < np.inf, norm2, found[0], running, np.full(len(clients), np.nan), observed
        )


class Plan:
    """The batches of some clients of a round, for stacks.

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

    def unscaled(self) -> "Plan":
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
            x, y = _gather(examples, self._index[start : start + window])
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


class Pull(NamedTuple):
    """A pull lam (params - anchor) towards other parameters."""

    anchor: list[Tensor]
    lam: float


def descend(
    gradient: Gradient, params: list[Tensor], plan: Plan, local: LocalTraining, lr: float, pull: Pull | None = None
) -> Tensor:
    """Take all steps of the plan, in place; the losses of all examples [S, C, B]."""
    everyone = len(plan.clients)
    losses, velocity = torch.zeros_like(plan.weight), [torch.zeros_like(p) for p in params] if local.momentum else []
    plain = not (local.momentum or local.weight_decay or (pull is not None and pull.lam))
    with torch.inference_mode(not gradient.recorded):
        for row, (still, batch) in zip(losses.unbind(0), plan, strict=True):
            size = _ready_size(still, everyone) if gradient.recorded else still
            if size < everyone:
                batch = batch.first(size)
            if plain:
                gradient.descend(first(params, size), batch, lr, row[:still])
                continue
            steps, loss = gradient(first(params, size), batch)
            row[:still] = loss[:still]
            mine, steps = first(params, still), first(steps, still)
            if pull is not None and pull.lam:
                away = torch._foreach_sub(mine, first(pull.anchor, still))
                steps = torch._foreach_add(steps, away, alpha=pull.lam)
            if local.weight_decay:
                scale = [batch.order.lr_scale[:still].view(-1, *[1] * (p.ndim - 1)) for p in mine]
                steps = torch._foreach_add(steps, torch._foreach_mul(mine, scale), alpha=local.weight_decay)
            if local.momentum:
                moving = first(velocity, still)
                torch._foreach_mul_(moving, local.momentum)
                torch._foreach_add_(moving, steps)
                steps = moving
            torch._foreach_add_(mine, steps, alpha=-lr)
    return losses


def _ready_size(count: int, most: int) -> int:
    """The smallest of `most`, a third of it, a ninth ... that holds `count`: so that few shapes are ever recorded."""
    while (smaller := -(-most // 3)) >= count and smaller < most:
        most = smaller
    return most


def find_stack(model: FlatModel, work: Workload, job: Job) -> tuple[Stack, int]:
    """The fastest way to train this workload in stacks that gives the gradients of plain autograd; bytes per client."""
    if work.local.optimizer != "sgd":
        raise NotBatchableError(f"optimizer {work.local.optimizer!r} is not SGD")
    if work.algorithm.personal is not None and work.algorithm.personal.candidates:
        raise NotBatchableError("each client chooses its own lam on validation examples")
    probe = Probe(model, work, job)
    if work.loss is cross_entropy and linear_layers(model) is not None:
        linear = Stack("linear", model, work)
        if probe.difference(linear.shared) < TOLERANCE:
            return linear, probe.bytes_per_client
    stack = Stack("any", model, work)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it would only loop over the clients
        try:
            difference = probe.difference(stack.shared)
        except Exception as error:  # a module may fail in any way when its inputs are not plain tensors
            first_line = (str(error) or type(error).__name__).strip().splitlines()[0]
            raise NotBatchableError(first_line) from error
    if not difference < TOLERANCE:
        raise NotBatchableError(
            f"its gradients on stacked, padded batches differ by {difference:.0e} from plain ones, "
            "as when a layer looks at the whole batch"
        )
    return stack, probe.bytes_per_client


class SavedBytes(saved_tensors_hooks):
    """Counts what autograd keeps for the backward pass of the code inside."""

    def __init__(self) -> None:
        self.total = 0
        super().__init__(self._count, lambda tensor: tensor)

    def _count(self, tensor: Tensor) -> Tensor:
        self.total += tensor.nbytes
        return tensor


class Probe:
    """The gradients of two clients by plain autograd, to compare with. The second client's batch is cut short."""

    def __init__(self, model: FlatModel, work: Workload, job: Job) -> None:
        self._model, self._job = model, job
        lengths = work.federation.train.lengths[list(job.clients)]
        pair = [int(lengths.argmax()), int(lengths.argmin())]
        batches = [next(batch_order(work, job.round, job.clients[k])) for k in pair]
        batches[1] = batches[1][: (len(batches[1]) + 1) // 2]
        self._orders = [job.orders[k] for k in pair]
        self._expected = []
        saved = SavedBytes()
        examples = work.federation.examples
        for batch, order in zip(batches, self._orders, strict=True):
            model.load(job.params, job.buffers)
            model.train()
            with saved:
                losses = work.loss(model.module(examples.inputs(batch)), examples.targets(batch))
                loss = batch_loss(work.algorithm, losses)
                goal = order.lr_scale * transformed(work.algorithm, loss, order)
            self._expected.append(torch.autograd.grad(goal, model.trainable, allow_unused=True, materialize_grads=True))
        if not torch.equal(model.buffers, job.buffers):
            raise NotBatchableError("it changes its buffers while it trains, as BatchNorm does")
        width = len(batches[0])
        index = torch.stack([torch.cat([b, b[:1].expand(width - len(b))]) for b in batches])
        weight = [(torch.arange(width) < len(b)) / len(b) for b in batches]
        stacked = torch.stack(weight).to(job.params)
        told = stacked_order(Orders.of(self._orders), np.arange(2), job.params)
        self._batch = StackedBatch(*_gather(examples, index), stacked, stacked * told.lr_scale.unsqueeze(1), told)
        self.bytes_per_client = saved.total + 6 * job.params.nbytes

    def difference(self, gradient: Gradient) -> float:
        """The largest deviation from plain autograd, relative to the largest element of the gradient."""
        params = split(self._job.params.repeat(2, 1), self._model)
        found, _ = gradient(params, self._batch)
        worst = 0.0
        for k, expected in enumerate(self._expected):
            size = max(float(g.abs().max()) for g in expected) or 1.0
            gap = max(float((g[k] - right).abs().max()) for g, right in zip(found, expected, strict=True))
            worst = max(worst, gap / size)
        return worst


def split(vectors: Tensor, model: FlatModel) -> list[Tensor]:
    """[C, P] as one stacked tensor [C, ...] for each parameter."""
    parts = vectors.split_with_sizes(model.sizes, dim=1)
    return [part.reshape(len(vectors), *shape).contiguous() for part, shape in zip(parts, model.shapes, strict=True)]


def join(params: list[Tensor]) -> Tensor:
    """The inverse of `split`, in new memory."""
    return torch.cat([p.reshape(len(p), -1) for p in params], dim=1)


def _gather(examples: Examples, index: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets of an index tensor of any shape."""
    x, y = examples.inputs(index.flatten()), examples.targets(index.flatten())
    return x.view(*index.shape, *x.shape[1:]), y.view(*index.shape, *y.shape[1:])
