"""Many small clients trained at once on stacked parameters."""

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from propfair.algorithms.base import Algorithm, ClientId, Order
from propfair.client import LocalTraining, Report, Workload, batch_order, cross_entropy
from propfair.data.base import Examples
from propfair.engines.allocator import keep_freed_memory
from propfair.engines.base import ENGINES, Block, Engine, Job
from propfair.engines.inprocess import InProcessSession, torch_threads
from propfair.engines.stacked import AnyModule, Goal, Gradient, LinearLayers, StackedBatch, first, linear_layers
from propfair.errors import ConfigError
from propfair.params import FlatModel
from propfair.seeds import generator, shuffles, untouched_global_rng

Integers = NDArray[np.int64]

TOLERANCE = 1e-4  # of the gradients that are compared at the start, relative to the largest element
GATHERED = 0.25  # the share of the memory that inputs may take at a time


@ENGINES.register("vectorized")
@dataclass(frozen=True, kw_only=True)
class Vectorized(Engine):
    """Trains many clients at once on stacked parameters: for small models, where Python is the bottleneck.

    The results are those of `inprocess` up to rounding. Before the first round the gradients of two clients are
    compared with plain autograd. A model that can't be batched (running statistics, dropout, recurrent layers,
    branches on data) or an optimiser other than SGD is run as `inprocess` does, and a note says why.

    Args:
        memory: gigabytes for stacked models and batches; cohorts that need more are cut into chunks.
        threads: torch threads; 0 leaves the setting of the process alone.
    """

    memory: float = 0.5
    threads: int = 1

    def __post_init__(self) -> None:
        if not self.memory > 0:
            raise ConfigError(f"memory must be positive, in gigabytes; got memory={self.memory}")
        if self.threads < 0:
            raise ConfigError(f"threads must be >= 0; got threads={self.threads}. Use 0 for torch's own setting.")

    def start(self, model: FlatModel, work: Workload) -> "VectorizedSession":
        return VectorizedSession(model, work, self)


class VectorizedSession(InProcessSession):
    """See `Vectorized`."""

    def __init__(self, model: FlatModel, work: Workload, engine: Vectorized, stack: "Stack | None" = None) -> None:
        super().__init__(model, work, engine.threads)
        self._room = int(engine.memory * 1e9)
        self._stack = stack
        self._decided = stack is not None

    def train(self, job: Job) -> Iterator[Block]:
        if not self._decided:
            self._decide(job)
        if self._stack is None:
            yield from super().train(job)
            return
        keep_freed_memory()
        with torch_threads(self._threads):
            for positions in self._chunks(self._stack, job):
                yield self._train_stack(self._stack, job, positions)

    def get_ready(self, job: Job) -> None:
        """Do now what would make the first rounds slower than those that follow."""
        if self._stack is not None:
            positions = self._chunks(self._stack, job)[0]
            _, batch = next(iter(Plan(self.work, job, positions, self._room)))
            self._stack.shared.get_ready(_split(job.params.repeat(len(positions), 1), self.model), batch)

    def _chunks(self, stack: "Stack", job: Job) -> list[range]:
        size = max(1, min(len(job.clients), self._room // stack.bytes_per_client))
        return [range(k, min(k + size, len(job.clients))) for k in range(0, len(job.clients), size)]

    def _decide(self, job: Job) -> None:
        self._decided = True
        with torch_threads(self._threads), untouched_global_rng():
            try:
                self._stack = find_stack(self.model, self.work, job)
            except NotBatchableError as reason:
                self.note(f"engine 'vectorized' runs this model client by client, as 'inprocess' does: {reason}")

    def _train_stack(self, stack: "Stack", job: Job, positions: range) -> Block:
        """The clients at these positions of the cohort."""
        work, personal = self.work, self.work.algorithm.personal
        plan = Plan(work, job, positions, int(self._room * GATHERED))
        received = _split(job.params.unsqueeze(0), self.model)
        if personal is not None:
            own = [self._memories[c]["params"] if c in self._memories else job.params for c in plan.clients]
            params = _split(torch.stack(own), self.model)
            pull = Pull([leaf.expand_as(p) for leaf, p in zip(received, params, strict=True)], personal.lam)
            _descend(stack.personal, params, plan.unscaled(), work.local, personal.lr or work.local.lr, pull)
            for client, vector in zip(plan.clients, _join(params), strict=True):
                self._memories[client] = {"params": vector.clone(), "buffers": job.buffers.clone()}
        if work.starts is not None and job.round == 1:
            params = _split(torch.stack([work.starts(client) for client in plan.clients]), self.model)
        else:
            params = [leaf.repeat(len(positions), *[1] * (leaf.ndim - 1)) for leaf in received]
        losses = _descend(stack.shared, params, plan, work.local, work.local.lr)
        batch_losses = stack.goal.batch_losses(losses, plan.weight)
        return _block(work.algorithm, job, positions, plan, _join(params).sub_(job.params), batch_losses)


class NotBatchableError(Exception):
    """Why a workload can't be trained in stacks."""


class Stack(NamedTuple):
    """How a workload is trained in stacks."""

    shared: Gradient  # of the global model
    personal: Gradient
    goal: Goal  # of the global model
    bytes_per_client: int


class Plan:
    """The batches of some clients of a round, for stacks.

    Clients go by falling number of steps, so that those who still train at a step are the first few.

    Attributes:
        clients: in that order.
        rank: [C], where each of them stands among the given positions.
        num_steps: [C], falling.
        order: what they are told, stacked: tensors [C].
        counts: [S, C], the real examples of each batch.
        weight: [S, C, B], 1 / count for real examples and 0 for padding.
    """

    def __init__(self, work: Workload, job: Job, positions: range, room: int) -> None:
        self._work, self._round, self._room = work, job.round, room
        chosen = job.clients[positions.start : positions.stop]
        lengths = work.federation.train.lengths.numpy()[list(chosen)]
        steps = work.local.steps_of(chosen, lengths)
        rank = np.argsort(-steps, kind="stable")
        self.rank, self.num_steps = torch.from_numpy(rank), torch.from_numpy(steps[rank])
        order = rank.tolist()
        self.clients = [chosen[k] for k in order]
        self._index, counts = stacked_batches(work, job.round, self.clients, lengths[rank], steps[rank])
        weight = (np.arange(self._index.shape[2]) < counts[:, :, None]) / np.maximum(counts, 1)[:, :, None]
        self.counts = torch.from_numpy(counts)
        self.weight = torch.from_numpy(weight).to(job.params.device, job.params.dtype)
        orders = job.orders[positions.start : positions.stop]
        lr_scale, baseline = [orders[k].lr_scale for k in order], [orders[k].baseline for k in order]
        self.order = StackedOrder(job.params.new_tensor(lr_scale), job.params.new_tensor(baseline))

    def unscaled(self) -> "Plan":
        """The same batches for clients that take no orders."""
        same = copy.copy(self)
        same.order = StackedOrder(*(torch.ones_like(values) for values in self.order))
        return same

    def __iter__(self) -> Iterator[tuple[int, StackedBatch]]:
        """How many clients still train, and the batches of all, step by step."""
        still = (self.counts > 0).sum(1).tolist()
        examples, weight = self._work.federation.examples, self.weight.unbind(0)
        one = examples.inputs(self._index[0, 0, :1])
        window = max(1, self._room // (one.nbytes * self._index[0].numel()))
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
                yield still[step], StackedBatch(inputs, targets, weight[step], *self.order)


class StackedOrder(NamedTuple):
    """Orders of several clients: an `Order` whose fields are tensors [C]."""

    lr_scale: Tensor
    baseline: Tensor


def stacked_batches(
    work: Workload, round_: int, clients: Sequence[ClientId], lengths: Integers, num_steps: Integers
) -> tuple[Tensor, Integers]:
    """The batches of `batch_order` for several clients: example indices [S, C, B] and how many of them are real [S, C].

    Padding repeats an example of the client.
    """
    train, size = work.federation.train, work.local.batch_size
    width = min(size, int(train.lengths.max()))
    starts = train.offsets.numpy()[list(clients)]
    per_epoch = -(-lengths // size)
    step = np.arange(num_steps.max())[:, None]
    counts = np.minimum(lengths - step % per_epoch * size, size) * (step < num_steps)
    places = np.empty((len(step), len(clients), width), dtype=np.int64)  # in train.values
    places[:] = starts[:, None]
    for epoch in range(int(np.ceil(num_steps / per_epoch).max())):
        for some in _alike(lengths, (num_steps > epoch * per_epoch).nonzero()[0]):
            order = shuffles(work.seed, round_, epoch, np.asarray(clients)[some], lengths[some])
            order = np.minimum(order, lengths[some, None] - 1) + starts[some, None]
            order = np.pad(order, ((0, 0), (0, -order.shape[1] % width)), mode="edge")
            batches = order.reshape(len(some), -1, width).swapaxes(0, 1)  # [batches of an epoch, clients, B]
            if epoch == 0 and len(some) == len(clients):  # the usual case; rows past a client's end count for nothing
                places[: len(batches)] = batches[: len(places)]
                continue
            now = np.arange(len(batches))[:, None]
            later = now + epoch * per_epoch[some]
            real = (now < per_epoch[some]) & (later < num_steps[some])
            places[later[real], np.broadcast_to(some, later.shape)[real]] = batches[real]
    return train.values.take(torch.from_numpy(places)), counts


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


def _descend(
    gradient: Gradient, params: list[Tensor], plan: Plan, local: LocalTraining, lr: float, pull: Pull | None = None
) -> Tensor:
    """Take all steps of the plan, in place; the losses of all examples [S, C, B]."""
    everyone = len(plan.clients)
    losses, velocity = torch.zeros_like(plan.weight), [torch.zeros_like(p) for p in params] if local.momentum else []
    plain = not (local.momentum or local.weight_decay or (pull is not None and pull.lam))
    for row, (still, batch) in zip(losses.unbind(0), plan, strict=True):
        size = _ready_size(still, everyone) if gradient.fixed_shapes else still
        if size < everyone:
            batch = batch.first(size)
        if plain:
            row[:still] = gradient.descend(first(params, size), batch, lr, still)[:still]
            continue
        steps, loss = gradient(first(params, size), batch)
        row[:still] = loss[:still]
        mine, steps = first(params, still), first(steps, still)
        if pull is not None and pull.lam:
            away = torch._foreach_sub(mine, first(pull.anchor, still))
            steps = torch._foreach_add(steps, away, alpha=pull.lam)
        if local.weight_decay:
            scale = [batch.lr_scale[:still].view(-1, *[1] * (p.ndim - 1)) for p in mine]
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


def _block(algorithm: Algorithm, job: Job, positions: range, plan: Plan, deltas: Tensor, losses: Tensor) -> Block:
    """What clients with these updates [C, P] and batch losses [S, C], in the order of the plan, send back."""
    losses, sizes = losses.float().cpu(), plan.counts.float()
    trained = sizes > 0
    norm2 = torch.linalg.vecdot(deltas, deltas).cpu()
    finite = norm2 < torch.inf
    running = (losses * sizes).where(trained, 0).sum(0) / sizes.sum(0)
    watched = algorithm.watch(losses, Order(*(values.float().cpu() for values in plan.order)))  # type: ignore[arg-type]
    means = {name: (values.where(trained, 0).sum(0) / trained.sum(0)).tolist() for name, values in watched.items()}
    observed = [dict(zip(means, values, strict=True)) for values in zip(*means.values(), strict=True)]
    numbers = (plan.num_steps, finite, norm2, losses[0], running)
    reports = [
        Report(*row) for row in zip(plan.clients, *(n.tolist() for n in numbers), observed or repeat({}), strict=False)
    ]
    back = plan.rank.argsort()
    if not finite.all():
        deltas = deltas.index_fill(0, (~finite).nonzero().flatten().to(deltas.device), 0)
    if job.weights is None:
        deltas = deltas[back[finite[back]].to(deltas.device)]
    else:
        deltas = job.weights[positions.start : positions.stop][plan.rank].to(deltas) @ deltas
    share = float(job.share[positions.start : positions.stop][plan.rank][finite].sum())
    return Block(tuple(reports[k] for k in back.tolist()), deltas, job.buffers * share)


def find_stack(model: FlatModel, work: Workload, job: Job) -> Stack:
    """The fastest way to train this workload in stacks that gives the gradients of plain autograd."""
    if work.local.optimizer != "sgd":
        raise NotBatchableError(f"optimizer {work.local.optimizer!r} is not SGD")
    probe = Probe(model, work, job)
    goals = Goal(work.algorithm), Goal(work.algorithm, transformed=False)
    layers = linear_layers(model) if work.loss is cross_entropy else None
    if layers is not None:
        linear = LinearLayers(layers, goals[0])
        if probe.difference(linear) < TOLERANCE:
            return Stack(linear, LinearLayers(layers, goals[1]), goals[0], probe.bytes_per_client)
    stacked = AnyModule(model, work.loss, goals[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it would only loop over the clients
        try:
            difference = probe.difference(stacked)
        except Exception as error:  # a module may fail in any way when its inputs are not plain tensors
            first_line = (str(error) or type(error).__name__).strip().splitlines()[0]
            raise NotBatchableError(first_line) from error
    if not difference < TOLERANCE:
        raise NotBatchableError(
            f"its gradients on stacked, padded batches differ by {difference:.0e} from plain ones, "
            "as when a layer looks at the whole batch"
        )
    return Stack(stacked, AnyModule(model, work.loss, goals[1]), goals[0], probe.bytes_per_client)


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
            model.module.train()
            with saved:
                losses = work.loss(model.module(examples.inputs(batch)), examples.targets(batch))
                goal = order.lr_scale * work.algorithm.objective(work.algorithm.batch_loss(losses), order)
            self._expected.append(torch.autograd.grad(goal, model.trainable, allow_unused=True, materialize_grads=True))
        if not torch.equal(model.buffers, job.buffers):
            raise NotBatchableError("it changes its buffers while it trains, as BatchNorm does")
        width = len(batches[0])
        index = torch.stack([torch.cat([b, b[:1].expand(width - len(b))]) for b in batches])
        weight = [(torch.arange(width) < len(b)) / len(b) for b in batches]
        lr_scale, baseline = torch.tensor(self._orders, dtype=job.params.dtype, device=job.params.device).T
        self._batch = StackedBatch(
            *_gather(examples, index),
            torch.stack(weight).to(job.params),
            lr_scale,
            baseline,
        )
        self.bytes_per_client = saved.total + 6 * job.params.nbytes

    def difference(self, gradient: Gradient) -> float:
        """The largest deviation from plain autograd, relative to the largest element of the gradient."""
        params = _split(self._job.params.repeat(2, 1), self._model)
        found, _ = gradient(params, self._batch)
        worst = 0.0
        for k, expected in enumerate(self._expected):
            size = max(float(g.abs().max()) for g in expected) or 1.0
            gap = max(float((g[k] - right).abs().max()) for g, right in zip(found, expected, strict=True))
            worst = max(worst, gap / size)
        return worst


def _split(vectors: Tensor, model: FlatModel) -> list[Tensor]:
    """[C, P] as one stacked tensor [C, ...] for each parameter."""
    parts = torch.split(vectors, [p.numel() for p in model.trainable], dim=1)
    return [part.reshape(len(vectors), *p.shape).contiguous() for part, p in zip(parts, model.trainable, strict=True)]


def _join(params: list[Tensor]) -> Tensor:
    """The inverse of `_split`, in new memory."""
    return torch.cat([p.reshape(len(p), -1) for p in params], dim=1)


def _gather(examples: Examples, index: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets of an index tensor of any shape."""
    x, y = examples.inputs(index.flatten()), examples.targets(index.flatten())
    return x.view(*index.shape, *x.shape[1:]), y.view(*index.shape, *y.shape[1:])
