"""Training in stacks: the steps and the reports of many clients at once."""

import functools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from propfair.algorithms.base import Algorithm, ClientId
from propfair.core.client import LocalTraining, Workload
from propfair.core.messages import Block, Job, Orders, Reports
from propfair.core.params import FlatModel
from propfair.engines.stacked.batches import StackedBatches
from propfair.engines.stacked.gradients import (
    AnyModule,
    Goal,
    Gradient,
    LinearLayers,
    StackedOrder,
    first,
    linear_layers,
    order_of,
)

StackKind = Literal["linear", "any"]


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

    def __init__(self, kind: StackKind, model: FlatModel, work: Workload) -> None:
        self.kind, self._model, self._work = kind, model, work
        self._goal, own_goal = Goal(work.algorithm), Goal(work.algorithm, with_objective=False)
        self.shared: Gradient
        self.personal: Gradient
        if kind == "linear":
            layers = linear_layers(model)
            assert layers is not None
            self.shared, self.personal = LinearLayers(layers, self._goal), LinearLayers(layers, own_goal)
        else:
            self.shared = AnyModule(model, work, self._goal)
            self.personal = AnyModule(model, work, own_goal)

    def train(
        self, round_: int, clients: Sequence[ClientId], orders: Orders, received: Tensor,
        memories: Sequence[Tensor | None], room: int, corrections: Tensor | None = None,
    ) -> tuple[Reports, Tensor, Tensor | None]:  # fmt: skip
        """Reports, updates [C, P] and personal models [C, P] of these clients, in their order.

        Args:
            round_: the round.
            clients: who trains.
            orders: what they are told.
            received: [P], the global model.
            memories: the personal model [P] of each; None if it has none yet.
            room: bytes for inputs.
            corrections: [C, P], what each adds to its gradients.
        """
        work, rule, drift = self._work, self._work.algorithm.personal, self._work.algorithm.drift
        batches = StackedBatches(work, round_, clients, orders, received, room // self._example_bytes)
        leaves, own = split(received.unsqueeze(0), self._model), None
        if rule is not None:
            before = torch.stack([received if memories[k] is None else memories[k] for k in batches.rank.tolist()])
            params = split(before.clone(), self._model)
            lr, pull = rule.lr or work.local.lr, Extra(leaves, rule.lam)
            descend(self.personal, params, batches.unscaled(), work.local, lr, pull)
            after = join(params)
            own = torch.where(after.isfinite().all(1, keepdim=True), after, before)[torch.from_numpy(batches.back)]
        if work.starts is not None and round_ == 1:
            params = split(torch.stack([work.starts(client) for client in batches.clients]), self._model)
        else:
            everyone = [leaf.expand(len(clients), *leaf.shape[1:]) for leaf in leaves]
            params = [leaf.clone(memory_format=torch.contiguous_format) for leaf in everyone]
        extra = Extra(
            leaves, 0.0 if drift is None else drift.pull,
            None if corrections is None else split(corrections[torch.from_numpy(batches.rank)], self._model),
        )  # fmt: skip
        seen = descend(self.shared, params, batches, work.local, work.local.lr, extra)
        losses = self._goal.batch_losses(seen, batches.weight)
        deltas = join(params).sub_(received).index_select(0, torch.from_numpy(batches.back).to(received.device))
        reports = make_reports(work.algorithm, tuple(clients), batches, batches.order, losses, deltas)
        return reports, deltas, own

    def get_ready(self, job: Job, num_clients: int, room: int) -> None:
        """Do now what would make the first rounds slower than those that follow."""
        clients, orders = job.clients[:num_clients], Orders.of(job.orders[:num_clients])
        batches = StackedBatches(self._work, job.round, clients, orders, job.params, room // self._example_bytes)
        _, batch = next(iter(batches))
        self.shared.get_ready(split(job.params.repeat(num_clients, 1), self._model), batch)

    @functools.cached_property
    def _example_bytes(self) -> int:
        return int(self._work.federation.examples.inputs(self._work.federation.train.values[:1]).nbytes)


def make_reports(
    algorithm: Algorithm, clients: tuple[ClientId, ...], batches: StackedBatches, told: StackedOrder, losses: Tensor,
    deltas: Tensor,
) -> Reports:  # fmt: skip
    """From batch losses [S, C] in the order of the batches, and updates [C, P] in the order of the clients."""
    losses, observed = losses.float().cpu(), {}
    found, counts = losses.numpy()[:, batches.back], batches.counts[:, batches.back]
    trained = counts > 0
    norm2 = torch.linalg.vecdot(deltas, deltas).cpu().numpy()
    with np.errstate(invalid="ignore"):  # losses of clients that diverged
        running = np.where(trained, found * counts, 0).sum(0) / counts.sum(0)
        if algorithm.watch is not None:
            order = order_of(told.names, [column.float().cpu() for column in told.columns])
            for name, values in algorithm.watch(losses, order).items():
                observed[name] = np.where(trained, values.numpy()[:, batches.back], 0).sum(0) / batches.num_steps
    return Reports(
        clients,
        batches.num_steps,
        norm2 < np.inf,
        norm2,
        found[0],
        running,
        np.full(len(clients), np.nan),
        observed,
    )


class Extra(NamedTuple):
    """What is added to gradients: lam (params - anchor), and a correction for each client."""

    anchor: list[Tensor]  # [1, ...] each
    lam: float
    correction: list[Tensor] | None = None  # [C, ...] each


def descend(
    gradient: Gradient, params: list[Tensor], batches: StackedBatches, local: LocalTraining, lr: float, extra: Extra
) -> Tensor:
    """Take all steps of the batches, in place; the losses of all examples [S, C, B]."""
    everyone = len(batches.clients)
    losses, velocity = torch.zeros_like(batches.weight), [torch.zeros_like(p) for p in params] if local.momentum else []
    plain = not (local.momentum or local.weight_decay or extra.lam or extra.correction)
    with torch.inference_mode(not gradient.recorded):
        for row, (still, batch) in zip(losses.unbind(0), batches, strict=True):
            size = _ready_size(still, everyone) if gradient.recorded else still
            if size < everyone:
                batch = batch.first(size)
            if plain:
                gradient.descend(first(params, size), batch, lr, row[:still])
                continue
            steps, loss = gradient(first(params, size), batch)
            row[:still] = loss[:still]
            mine, steps = first(params, still), first(steps, still)
            scale = [batch.order.lr_scale[:still].view(-1, *[1] * (p.ndim - 1)) for p in mine]
            if extra.lam:
                away = [p - anchor for p, anchor in zip(mine, extra.anchor, strict=True)]
                steps = torch._foreach_add(steps, torch._foreach_mul(away, scale), alpha=extra.lam)
            if extra.correction is not None:
                steps = torch._foreach_add(steps, torch._foreach_mul(first(extra.correction, still), scale))
            if local.weight_decay:
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


def split(vectors: Tensor, model: FlatModel) -> list[Tensor]:
    """[C, P] as one stacked tensor [C, ...] for each parameter."""
    parts = vectors.split_with_sizes(model.sizes, dim=1)
    return [part.reshape(len(vectors), *shape).contiguous() for part, shape in zip(parts, model.shapes, strict=True)]


def join(params: list[Tensor]) -> Tensor:
    """The inverse of `split`, in new memory."""
    return torch.cat([p.reshape(len(p), -1) for p in params], dim=1)
