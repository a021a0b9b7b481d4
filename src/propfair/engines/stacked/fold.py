"""Several runs of a chain of linear layers as one: what sees the same examples is multiplied with them together.

Runs that differ in algorithm or learning rate, and share seed and clients, meet the same batches in the same round.
Their first layers are laid side by side as the rows of one wide matrix [R * out, in], so that a batch is read once and
one large product takes the place of R small ones. Later layers and losses are stacked over runs as well as clients.

What comes of a run does not depend on the others, to the last bit. How a product adds up depends on its shape where
that is narrow, a single row or fewer than `WIDE` columns, so narrow ones are widened by rows and runs of zeros; and
sums run over the examples of one run.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from propfair.algorithms.base import Algorithm
from propfair.core.client import Workload
from propfair.core.messages import Block, Job, Orders
from propfair.core.params import FlatModel
from propfair.core.tasks import SINGLE_LABEL, cross_entropy
from propfair.data.base import ArrayExamples
from propfair.engines.stacked.batches import StackedBatches, stacked_order
from propfair.engines.stacked.gradients import Goal, Layer, StackedBatch, StackedOrder
from propfair.engines.stacked.stacks import make_reports, reduce_stack

WIDE = 16  # columns of a product from which on each is added up in the same way, however many there are


def is_simple(work: Workload) -> bool:
    """Whether a workload is plain SGD with cross-entropy on examples in memory, whatever the algorithm."""
    local, examples = work.local, work.federation.examples
    plain = local.optimizer == "sgd" and not local.momentum and not local.weight_decay and local.precision == "float32"
    held = isinstance(examples, ArrayExamples) and isinstance(examples.x, Tensor) and examples.augment is None
    usual = work.loss is cross_entropy and work.task is SINGLE_LABEL and work.device == "cpu" and work.starts is None
    return plain and held and usual


def can_fold(work: Workload) -> bool:
    """Whether the steps of a workload are gradients of a transformed mean loss, and nothing else."""
    algorithm = work.algorithm
    return algorithm.personal is None and algorithm.reduce is None and algorithm.drift is None and is_simple(work)


class Fold:
    """Trains and measures R models at once.

    Args:
        layers: of the module, see `linear_layers`.
        model: one of the models; only its shapes count.
        room: bytes for inputs that are read ahead.
    """

    def __init__(self, layers: Sequence[Layer], model: FlatModel, room: int) -> None:
        self._layers, self._shapes, self._sizes, self._room = layers, model.shapes, model.sizes, room
        self._goals: list[tuple[Algorithm, Goal]] = []

    def train(self, works: Sequence[Workload], jobs: Sequence[Job]) -> list[Block]:
        """The block of each run. All jobs are of one round, have the same clients and see the same batches."""
        first, clients, count = works[0], jobs[0].clients, len(jobs)
        received = self._widened(torch.stack([job.params for job in jobs]))  # [R, P]
        example = first.federation.examples.inputs(first.federation.train.values[:1])
        assert isinstance(example, Tensor)
        told = [Orders.of(job.orders) for job in jobs]
        batches = StackedBatches(first, jobs[0].round, clients, told[0], received, self._room // example.nbytes)
        orders = [stacked_order(own, batches.rank, received) for own in told]
        parties = self._parties(works, orders)
        rates = torch.zeros(len(received)).to(received)
        rates[:count] = torch.tensor([work.local.lr for work in works])
        params = [
            part.view(-1, *shape)
            .expand(len(clients), len(received), *shape)
            .clone(memory_format=torch.contiguous_format)
            for part, shape in zip(received.split_with_sizes(self._sizes, dim=1), self._shapes, strict=True)
        ]  # [C, R, ...] each
        losses = torch.zeros(*batches.weight.shape[:2], len(received))  # [S, C, R], of batches
        with torch.inference_mode():
            for row, (still, batch) in zip(losses.unbind(0), batches, strict=True):
                self._step([tensor[:still] for tensor in params], batch.first(still), parties, rates, row[:still])
        deltas = torch.cat([tensor.flatten(2) for tensor in params], dim=2).sub_(received)  # [C, R, P]
        back = torch.from_numpy(batches.back)
        blocks = []
        for run, (work, job, order) in enumerate(zip(works, jobs, orders, strict=True)):
            own = deltas[:, run].index_select(0, back)
            reports = make_reports(work.algorithm, clients, batches, order, losses[:, :, run], own)
            blocks.append(reduce_stack(job, range(len(clients)), reports, own))
        return blocks

    @torch.no_grad()
    def measure(self, work: Workload, models: Tensor, batches: Sequence[Tensor]) -> Tensor:
        """Loss and score of all examples under each of the models [R, P]: [R, 2, N]."""
        wide = self._widened(models)
        params = [
            part.view(len(wide), *shape)
            for part, shape in zip(wide.split_with_sizes(self._sizes, dim=1), self._shapes, strict=True)
        ]
        found = []
        for x, target in work.federation.examples.read(batches):
            assert isinstance(x, Tensor)
            scores = self._forward([tensor.unsqueeze(0) for tensor in params], _two_rows(x.flatten(1).unsqueeze(0)))[-1]
            output = scores[0, : len(models), : len(target)]
            flat, targets = output.reshape(-1, output.shape[-1]), target.repeat(len(models))  # [R * B, classes]
            rows = torch.stack([work.loss(flat, targets).float(), work.task.scores(flat, targets)])
            found.append(rows.view(2, len(models), -1))
        return torch.cat(found, dim=2).transpose(0, 1)

    def _step(
        self, params: Sequence[Tensor], batch: StackedBatch, parties: Sequence["Party"], rates: Tensor, losses: Tensor
    ) -> None:
        """Take a step with all clients of the batch, in place; fills in the losses of their batches [C, R]."""
        x, y, weight = _two_rows(batch.x.flatten(2)), _two_rows(batch.y), _two_rows(batch.weight).unsqueeze(1)
        *inputs, scores = self._forward(params, x)
        label = y[:, None, :, None].expand(*scores.shape[:3], 1)
        scores.sub_(scores.amax(3, keepdim=True))
        chosen = scores.gather(3, label).squeeze(3)
        total = scores.exp_().sum(3)
        examples = (total.log() - chosen).contiguous()  # [C, R, B]
        torch.sum(examples * weight, 2, out=losses)
        pull = torch.zeros_like(examples)
        for party in parties:
            pull[:, party.runs] = party.pull(examples, weight)
        pull *= rates.unsqueeze(1)
        back = scores.mul_((pull / total).unsqueeze(3)).scatter_add_(3, label, pull.neg().unsqueeze(3))
        for number in reversed(range(1, len(self._layers))):
            layer, given, after = self._layers[number], inputs[number - 1], back.flatten(0, 1)
            weights = params[layer.weight].flatten(0, 1)
            before = torch.bmm(after, weights)
            if self._layers[number - 1].relu:
                before = torch.ops.aten.threshold_backward(before, given, 0)
            weights.baddbmm_(after.mT, given, alpha=-1)
            if layer.bias is not None:
                params[layer.bias].flatten(0, 1).sub_(after.sum(1))
            back = before.view(*back.shape[:2], *before.shape[1:])
        side_by_side = back.transpose(1, 2).flatten(2)  # [C, B, R * out]
        layer = self._layers[0]
        params[layer.weight].flatten(1, 2).baddbmm_(side_by_side.mT, x, alpha=-1)
        if layer.bias is not None:
            params[layer.bias].sub_(back.contiguous().sum(2))

    def _forward(self, params: Sequence[Tensor], x: Tensor) -> list[Tensor]:
        """The inputs [C * R, B, in] of all layers but the first, and the scores [C, R, B, classes]; x is [C, B, in]."""
        first, *others = self._layers
        num_clients, num_runs = params[first.weight].shape[:2]
        weight = params[first.weight].flatten(1, 2).mT  # [C, in, R * out]
        if first.bias is None:
            out = torch.bmm(x, weight)
        else:
            out = torch.baddbmm(params[first.bias].flatten(1).unsqueeze(1), x, weight)
        out = out.view(*out.shape[:2], num_runs, -1).transpose(1, 2)  # [C, R, B, out]
        inputs = []
        for before, layer in zip(self._layers, others, strict=False):
            given = (out.relu_() if before.relu else out).flatten(0, 1).contiguous()
            inputs.append(given)
            bias = None if layer.bias is None else params[layer.bias].flatten(0, 1).unsqueeze(1)
            weight = params[layer.weight].flatten(0, 1).mT
            out = torch.bmm(given, weight) if bias is None else torch.baddbmm(bias, given, weight)
            out = out.view(num_clients, num_runs, *out.shape[1:])
        return [*inputs, out]

    def _widened(self, models: Tensor) -> Tensor:
        """The models [R, P], with models of zeros behind them where the first layers side by side would be narrow."""
        outputs = self._shapes[self._layers[0].weight][0]
        missing = max(0, -(-WIDE // outputs) - len(models))
        return torch.cat([models, models.new_zeros(missing, models.shape[1])]) if missing else models

    def _parties(self, works: Sequence[Workload], orders: Sequence[StackedOrder]) -> list["Party"]:
        """Runs of the same algorithm with the same hyper-parameters: their goals are computed together."""
        places: dict[int, list[int]] = {}
        for run, work in enumerate(works):
            known = (place for place, (algorithm, _) in enumerate(self._goals) if algorithm == work.algorithm)
            place = next(known, len(self._goals))
            if place == len(self._goals):
                self._goals.append((work.algorithm, Goal(work.algorithm)))
            places.setdefault(place, []).append(run)
        return [Party(self._goals[place][1], runs, [orders[run] for run in runs]) for place, runs in places.items()]


def _two_rows(batch: Tensor) -> Tensor:
    """The same with a second row of zeros for each client, if there is only one."""
    return batch if batch.shape[1] > 1 else torch.cat([batch, torch.zeros_like(batch)], dim=1)


class Party:
    """Runs whose clients have one goal.

    Attributes:
        runs: their places among all runs.
    """

    def __init__(self, goal: Goal, runs: list[int], orders: Sequence[StackedOrder]) -> None:
        self._goal, self.runs, self._names = goal, runs, orders[0].names
        columns = zip(*(order.columns for order in orders), strict=True)
        self._columns = [torch.stack(column, dim=1) for column in columns]  # [C, r] each

    def pull(self, examples: Tensor, weight: Tensor) -> Tensor:
        """The derivatives of the goals [C, r, B] with respect to the losses of all examples [C, R, B]."""
        own = examples[:, self.runs]
        weight = weight.expand_as(own).flatten(0, 1)
        order = StackedOrder(self._names, tuple(column[: len(own)].flatten() for column in self._columns))
        batch = StackedBatch(own, own, weight, weight * order.lr_scale.unsqueeze(1), order)
        return self._goal.pull(own.flatten(0, 1), batch).view(own.shape)
