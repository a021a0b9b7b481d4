"""Whether a workload can be trained in stacks: gradients of stacked clients are compared with plain autograd."""

import warnings
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from propfair.core.client import Workload, batch_loss, batch_order, transformed
from propfair.core.messages import Job, Orders
from propfair.core.params import FlatModel
from propfair.core.tasks import cross_entropy
from propfair.data.base import ArrayExamples
from propfair.engines.stacked.batches import gather_examples, stacked_order
from propfair.engines.stacked.gradients import Gradient, StackedBatch, linear_layers
from propfair.engines.stacked.stacks import Stack, split

TOLERANCE = 1e-4  # of the gradients that are compared at the start, relative to the largest element


class NotBatchableError(Exception):
    """Why a workload can't be trained in stacks."""


def find_stack(model: FlatModel, work: Workload, job: Job) -> tuple[Stack, int]:
    """The fastest way to train this workload in stacks that gives the gradients of plain autograd; bytes per client."""
    if work.local.optimizer != "sgd":
        raise NotBatchableError(f"optimizer {work.local.optimizer!r} is not SGD")
    if not isinstance(work.federation.examples, ArrayExamples):
        raise NotBatchableError("its data are read when they are needed, not held in memory")
    if not isinstance(work.federation.examples.x, Tensor):
        raise NotBatchableError("it has several inputs")
    if work.algorithm.personal is not None and work.algorithm.personal.candidates:
        raise NotBatchableError("each client chooses its own lam on validation examples")
    if work.local.precision == "fp16":
        raise NotBatchableError("in fp16 the gradients of each client are scaled by its own factor")
    probe, precise = Probe(model, work, job), work.local.precision == "float32"
    if precise and work.loss is cross_entropy and linear_layers(model) is not None:
        linear = Stack("linear", model, work)
        if probe.difference(linear.shared) < TOLERANCE:
            return linear, probe.bytes_per_client
    stack = in_float32 = Stack("any", model, work)
    if not precise:
        in_float32 = Stack("any", model, replace(work, local=replace(work.local, precision="float32")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it would only loop over the clients
        try:
            difference = probe.difference(in_float32.shared)
            if not precise:
                probe.difference(stack.shared)  # rounding hides what is wrong; but it may fail altogether
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
        self._batch = StackedBatch(
            *gather_examples(examples, index), stacked, stacked * told.lr_scale.unsqueeze(1), told
        )
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
