"""The one client program: local training from the received model. Every engine runs this and nothing else."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from propfair.algorithms.base import Algorithm, ClientId, Order, Personal
from propfair.core.evaluation import chunks, measure
from propfair.core.messages import Report
from propfair.core.metrics import Metric
from propfair.core.params import FlatModel, all_finite
from propfair.core.precision import Differentiator, Precision, predict
from propfair.core.tasks import SINGLE_LABEL, LossFunction, Task, cross_entropy
from propfair.data.base import Occasion
from propfair.errors import ConfigError, shown, unknown
from propfair.federation.federation import Federation
from propfair.registry import LARGEST, check_fields
from propfair.seeds import derive, seed_global, shuffles

Tensors = tuple[Tensor, ...] | list[Tensor]
Memory = dict[str, Tensor]  # what a client keeps between rounds
_MOST = 2**31 - 1  # of any count, so that products of two fit


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains within a round. The defaults are the paper's protocol.

    Args:
        lr: the learning rate.
        batch_size: examples per step; the last, shorter batch of an epoch is kept.
        epochs: passes over the client's data.
        steps: SGD steps instead of epochs: one number, or one for each client.
        optimizer: "sgd", or the name of a class in torch.optim, in any case; its state starts anew in each round.
        momentum, weight_decay: of SGD.
        options: further arguments of another optimiser.
        precision: of the products in training steps: "float32"; "bf16", faster on processors and GPUs that have it;
            "fp16", for GPUs without bf16. Parameters, losses, sums, evaluation and rules stay float32.
    """

    lr: float = 0.1
    batch_size: int = 64
    epochs: int = 1
    steps: int | tuple[int, ...] | None = None
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        check_fields(self)
        steps = (self.steps,) if isinstance(self.steps, int) else self.steps or (1,)
        counts = {"batch_size": (self.batch_size,), "epochs": (self.epochs,), "steps": steps}
        for name, value in ((name, end) for name, values in counts.items() for end in (min(values), max(values))):
            if not 1 <= value <= _MOST:
                raise ConfigError(f"{name} must be at least 1 and at most {_MOST}; got {name}={shown(value)}")
        for name, number in (
            ("lr", self.lr),
            ("momentum", self.momentum),
            ("weight_decay", self.weight_decay),
        ):
            if not 0 <= number <= LARGEST:
                raise ConfigError(f"{name} must be between 0 and {LARGEST:g}; got {name}={number}")
        known = ["sgd", *_optimizers()]
        if self.optimizer not in known:
            same = [name for name in known if name.lower() == self.optimizer.lower()]
            if not same:
                raise unknown("optimizer", self.optimizer, known)
            object.__setattr__(self, "optimizer", same[0])  # names are taken in any case
        if self.optimizer != "sgd":
            if self.momentum or self.weight_decay:
                raise ConfigError(
                    f"momentum and weight_decay are options of optimizer='sgd'; for {self.optimizer} "
                    "put them into local.options"
                )
        elif self.options:
            raise ConfigError(f"local.options are for other optimizers than 'sgd'; got {dict(self.options)}")

    def num_steps(self, client: ClientId, num_examples: int) -> int:
        """SGD steps of one round."""
        if self.steps is None:
            return self.epochs * -(-num_examples // self.batch_size)
        return self.steps if isinstance(self.steps, int) else self.steps[client]

    def steps_of(self, clients: Sequence[ClientId], num_examples: NDArray[np.int64]) -> NDArray[np.int64]:
        """`num_steps` of several clients."""
        if self.steps is None:
            return self.epochs * -(-num_examples // self.batch_size)
        return np.full(len(clients), self.steps) if isinstance(self.steps, int) else np.array(self.steps)[list(clients)]


@dataclass(frozen=True)
class Workload:
    """All that clients need and that never changes during a run."""

    federation: Federation
    algorithm: Algorithm
    local: LocalTraining
    seed: int = 0
    loss: LossFunction = cross_entropy
    device: str = "cpu"
    starts: Callable[[ClientId], Tensor] | None = None  # [P], each client's own first model; None: one for all
    task: Task = SINGLE_LABEL
    metrics: tuple[Metric, ...] = ()  # measured beside the loss and the score of the task


def batch_loss(algorithm: Algorithm, losses: Tensor, weight: Tensor | None = None) -> Tensor:
    """The loss of a batch from the losses of its examples [B]; `weight` [B] sums to 1 and masks padding."""
    if algorithm.reduce is not None:
        return algorithm.reduce(losses, weight)
    return losses.mean() if weight is None else (losses * weight).sum()


def transformed(algorithm: Algorithm, loss: Tensor, order: Order) -> Tensor:
    """What a client differentiates instead of its batch loss."""
    return loss if algorithm.objective is None else algorithm.objective(loss, order)


def observe(algorithm: Algorithm, losses: Tensor, order: Order) -> dict[str, float]:
    """What a client reports for the record: the means of what the algorithm watches over its batch losses [S]."""
    if algorithm.watch is None:
        return {}
    return {name: float(values.mean()) for name, values in algorithm.watch(losses, order).items()}


def batch_order(work: Workload, round_: int, client: ClientId) -> Iterator[Tensor]:
    """The example indices of each local batch, in the order of this (seed, round, client)."""
    index = work.federation.train[client]
    left = work.local.num_steps(client, len(index))
    for epoch in itertools.count():
        (order,) = shuffles(work.seed, round_, epoch, [client], np.array([len(index)]))
        batches = torch.split(index[torch.from_numpy(order)], work.local.batch_size)[:left]
        yield from batches
        left -= len(batches)
        if left == 0:
            return


def run_client(
    model: FlatModel, work: Workload, round_: int, order: Order, client: ClientId,
    received: Tensor, buffers: Tensor, memory: Memory | None, correction: Tensor | None = None,
    out: Tensor | None = None,
) -> tuple[Report, Tensor, Memory | None]:  # fmt: skip
    """Train one client from the received model.

    Returns its report, its update `local - received` [P], in `out` if that is given, and its new memory. The new
    buffers are left in `model`. `correction` [P] is added to every gradient; it may be the same memory as `out`.
    Torch's global generator is seeded for the model's own randomness (dropout); the engine restores it.
    """
    algorithm, observed = work.algorithm, {}
    if algorithm.personal is not None:
        start = memory or {"params": received, "buffers": buffers}
        memory, lam = _train_personal(model, work, algorithm.personal, round_, client, received, start)
        observed = {"lam": lam} if algorithm.personal.candidates else {}
    model.load(received if work.starts is None or round_ > 1 else work.starts(client), buffers)
    lr = work.local.lr * order.lr_scale
    losses, sizes = _train(
        model, work, round_, client, lambda loss: transformed(algorithm, loss, order), lr,
        anchor=received, lam=0.0 if algorithm.drift is None else algorithm.drift.pull, correction=correction,
    )  # fmt: skip
    delta = torch.sub(model.params, received, out=out)
    norm2 = float(torch.dot(delta, delta))
    report = Report(
        client=client,
        num_steps=len(losses),
        finite=norm2 < float("inf") and all_finite(model.buffers),
        norm2=norm2,
        first_loss=float(losses[0]),
        running_loss=float((losses * sizes).sum() / sizes.sum()),
        observed={**observe(algorithm, losses, order), **observed},
    )
    return report, delta, memory


def _train_personal(
    model: FlatModel, work: Workload, rule: Personal, round_: int, client: ClientId, received: Tensor, start: Memory
) -> tuple[Memory, float]:
    """The personal model after the round and the pull it was trained with; `start` again if it diverged."""
    kept, chosen, least = {name: tensor.clone() for name, tensor in start.items()}, math.nan, math.inf
    for lam in rule.candidates or (rule.lam,):
        model.load(start["params"], start["buffers"])
        _train(model, work, round_, client, lambda loss: loss, rule.lr or work.local.lr, anchor=received, lam=lam)
        trained = {"params": model.params.clone(), "buffers": model.buffers}
        if not all(map(all_finite, trained.values())):
            continue
        loss = _validation_loss(model, work, client) if rule.candidates else 0.0
        if loss < least:
            kept, chosen, least = trained, lam, loss
    return kept, chosen


def _validation_loss(model: FlatModel, work: Workload, client: ClientId) -> float:
    batches = chunks(work.federation, "validation", [client])
    if not batches:
        raise ConfigError(_no_validation(work.federation, client))
    rows = measure(model, work.federation.examples, work.task, work.loss, batches)
    return float(torch.cat(rows, dim=1)[0].double().mean())


def check_personal(work: Workload) -> None:
    """Personal models that can't be chosen, or that the pull throws off, are found before training."""
    rule, local = work.algorithm.personal, work.local
    if rule is None:
        return
    lr, lam = rule.lr or local.lr, max(rule.candidates or (rule.lam,))
    if local.optimizer == "sgd" and not lr * lam < 2:
        raise ConfigError(
            f"personal models diverge unless lr * lam is below 2; got lr={lr}, lam={lam}. "
            f"Lower lam, or set the lr of the algorithm to {1 / lam:.2g}."
        )
    without = (work.federation.validation.lengths == 0).nonzero().flatten().tolist()
    if rule.candidates and without:
        raise ConfigError(_no_validation(work.federation, without[0]))


def _no_validation(federation: Federation, client: ClientId) -> str:
    return (
        f"lam is chosen on validation examples, and client {client} ({federation.names[client]}) has none. "
        "Set data.split.validation=0.1, or give one number for lam."
    )


def _train(
    model: FlatModel, work: Workload, round_: int, client: ClientId, objective: Callable[[Tensor], Tensor], lr: float,
    anchor: Tensor, lam: float, correction: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Local steps on `objective(batch loss) + lam/2 ||params - anchor||^2 + <correction, params>`.

    Returns the batch losses [S] and sizes [S].
    """
    seed_global(derive(work.seed, "model", round_, client))
    length = len(work.federation.train[client])
    occasion = Occasion(work.seed, round_, client, -(-length // work.local.batch_size))
    take_step = _optimizer(model, work.local, lr)
    losses: list[Tensor] = []
    sizes: list[int] = []
    model.train()
    for x, y in work.federation.examples.read(batch_order(work, round_, client), occasion):
        loss = batch_loss(work.algorithm, work.loss(predict(model.module, x, work.local.precision, work.device), y))
        extra = correction
        if lam:
            pull = (model.params.detach() - anchor).mul_(lam)
            extra = pull if correction is None else pull.add_(correction)
        take_step(objective(loss), extra)
        losses.append(loss.detach())
        sizes.append(len(y))
    return torch.stack(losses).float().cpu(), torch.tensor(sizes, dtype=torch.float32)


def _optimizer(model: FlatModel, local: LocalTraining, lr: float) -> Callable[[Tensor, Tensor | None], None]:
    """A function that takes one step on an objective, plus a given gradient [P] on the flat vector."""
    trainable: Tensors = model.trainable
    differentiate = Differentiator(trainable, local.precision)
    if local.optimizer != "sgd":
        optimizer = getattr(torch.optim, local.optimizer)(trainable, lr=lr, **local.options)

        def any_step(objective: Tensor, extra: Tensor | None) -> None:
            for parameter, gradient in zip(trainable, differentiate(objective, zeros=False), strict=True):
                parameter.grad = gradient
            if extra is not None:
                for parameter, part in zip(trainable, _like(extra, trainable), strict=True):
                    parameter.grad = part if parameter.grad is None else parameter.grad + part
            optimizer.step()

        return any_step

    velocity: list[Tensor] = []

    @torch.no_grad()
    def sgd_step(objective: Tensor, extra: Tensor | None) -> None:
        gradient: Tensors = differentiate(objective)
        if extra is not None:
            gradient = torch._foreach_add(gradient, _like(extra, trainable))
        if local.weight_decay:
            gradient = torch._foreach_add(gradient, trainable, alpha=local.weight_decay)
        if local.momentum:
            if velocity:
                torch._foreach_mul_(velocity, local.momentum)
                torch._foreach_add_(velocity, gradient)
            else:
                velocity.extend(g.clone() for g in gradient)
            gradient = velocity
        torch._foreach_add_(trainable, gradient, alpha=-lr)

    return sgd_step


def _like(flat: Tensor, parameters: Tensors) -> list[Tensor]:
    parts = torch.split(flat, [p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


def _optimizers() -> list[str]:
    return [name for name in dir(torch.optim) if name[0].isupper() and name != "Optimizer"]
