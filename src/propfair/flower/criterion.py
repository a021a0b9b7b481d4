"""A client's round: the criterion of its loop has the gradient of the algorithm's objective, and is watched.

The criterion is found by itself: while the client trains, torch tells us of every module that is called, and the one
that is a loss is the criterion. `fair_loss` names it where that does not work.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_hooks
from torch.nn.modules.loss import _Loss

from propfair.core.client import batch_loss, observe, transformed
from propfair.core.losses import choose_task
from propfair.core.messages import Report
from propfair.core.tasks import LossFunction, check_same
from propfair.errors import ConfigError
from propfair.federation.federation import Split
from propfair.flower.batches import Unpack, losses_of, unpack_batch
from propfair.flower.messages import Instruction

NAME_IT = "Name it in the loop: criterion = propfair.flower.fair_loss(criterion, model, batches)"


@dataclass
class ClientRound:
    """What a client does in a round: what it was told, what it is trained with, and what is to be reported.

    Attributes:
        instruction: of the server.
        received: the state dict that came with it.
        batches: gives the examples of a split to measure the received model on; None: there are none.
        unpack: from one of these batches to inputs and targets.
        correction: [P], added to gradients.
        trained: the report, if the client program has made it already.
        full_loss: of the received model, once it is measured.
    """

    instruction: Instruction
    received: dict[str, Tensor] = field(default_factory=dict)
    batches: Callable[[Split], Iterable[Any] | None] = lambda _: None
    unpack: Unpack = unpack_batch
    correction: Tensor | None = None
    trained: Report | None = None
    full_loss: float = math.nan
    losses: list[Tensor] = field(default_factory=list)  # of the batches
    objectives: list[Tensor] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    model: nn.Module | None = None
    found: nn.Module | None = None  # the criterion that was found
    named: bool = False  # the criterion was named by fair_loss: no other is looked for
    busy: bool = False  # modules that are called now are called by us
    criterion: LossFunction | None = None  # in use, found or named
    example_losses: LossFunction | None = None
    penalty: Callable[[], Tensor] | None = None

    def begin(self, criterion: LossFunction, model: nn.Module | None) -> None:
        """Before the first step: measure the received model if the server asks for it."""
        at = self.instruction
        if at.algorithm.personal is not None:
            raise ConfigError(
                f"{at.algorithm.name} trains a second model on each client, which a criterion can't do. "
                "Use propfair.flower.client_app, which does."
            )
        self.criterion, self.example_losses = criterion, _of_examples(criterion)
        if model is None and (at.measure or at.algorithm.drift):
            raise ConfigError(
                f"{at.algorithm.name} has to look at the model, and no module was called whose parameters have the "
                f"names of the arrays received. {NAME_IT}"
            )
        if at.measure:
            measured = self.batches(at.measure)
            if measured is None:
                raise ConfigError(nothing_to_measure(at.measure))
            assert model is not None
            found = losses_of(model, measured, criterion, self.unpack)
            self.full_loss = float(batch_loss(at.algorithm, found))
        self.penalty = None if model is None else _drift_penalty(self, model)

    def step(self, output: Any, target: Tensor, plain: Tensor | None) -> Tensor:
        """The loss of a batch as the loop sees it, with the gradient of what the algorithm has the client minimise.

        `plain` is what the criterion itself returned, its mean over the batch; None: it returns no mean.
        """
        assert self.example_losses is not None
        if not self.losses and choose_task(None, self.criterion, target)[0].elementwise:
            check_same(output, target)
        algorithm, order = self.instruction.algorithm, self.instruction.order
        if algorithm.reduce is None and plain is not None:
            loss = plain
        else:
            loss = batch_loss(algorithm, self.example_losses(output, target))
        objective = transformed(algorithm, loss, order)
        self.losses.append(loss.detach())
        self.objectives.append(objective.detach())
        self.sizes.append(len(target))
        changed = objective
        if self.penalty is not None:
            changed = changed + self.penalty()
        if order.lr_scale != 1:
            changed = changed * order.lr_scale
        shown = loss if plain is None else plain
        return shown if changed is shown else _Shown.apply(changed, shown.detach())  # type: ignore[no-untyped-call]

    def report(self) -> Report:
        """What the server is told."""
        if self.trained is not None:
            return self.trained._replace(full_loss=self.full_loss)
        if not self.losses:
            raise ConfigError(f"no torch criterion was called while the client trained. {NAME_IT}")
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

    @property
    def objective(self) -> float:
        """The mean over batches of what was minimised; nan where the client program has trained."""
        return float(torch.stack(self.objectives).float().mean()) if self.objectives else math.nan

    # How the criterion is found.

    def before_forward(self, module: nn.Module, args: Any) -> None:
        """The model is the first module that has the names of the arrays received; outer ones are called first."""
        if self.model is None and not self.busy and self.received and not isinstance(module, _Loss):
            names = module.state_dict().keys()
            if self.received.keys() <= names:
                self.model = module

    def after_forward(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        """A criterion has been called: what it returns gets another gradient."""
        if not isinstance(module, _Loss) or self.busy or self.named or not torch.is_grad_enabled():
            return None
        if self.found is not None and self.found is not module:
            raise ConfigError(
                f"the loop has two criteria, {type(self.found).__name__} and {type(module).__name__}. {NAME_IT}"
            )
        prediction, target = _arguments(module, args, named)
        with self.by_us():
            if self.found is None:
                self.found = module
                with self._as_received():
                    self.begin(module, self.model)
            return self.step(prediction, target, output)

    @contextlib.contextmanager
    def by_us(self) -> Iterator[None]:
        """Modules that are called here are not looked at."""
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before

    @contextlib.contextmanager
    def _as_received(self) -> Iterator[None]:
        """The model as it was received: the first batch has moved the running statistics of BatchNorm."""
        if self.model is None or not self.instruction.measure:
            yield
            return
        buffers = {name: buffer for name, buffer in self.model.named_buffers() if name in self.received}
        moved = {name: buffer.clone() for name, buffer in buffers.items()}
        for name, buffer in buffers.items():
            buffer.data.copy_(self.received[name])  # `data`: the backward pass of the first batch is still to come
        try:
            yield
        finally:
            for name, buffer in buffers.items():
                buffer.data.copy_(moved[name])


_ROUND: ContextVar[ClientRound | None] = ContextVar("propfair_round", default=None)


def current_round() -> ClientRound | None:
    """The round that is under way here; None: this message is of another strategy, or there is none."""
    return _ROUND.get()


@contextlib.contextmanager
def under_way(here: ClientRound) -> Iterator[None]:
    """A client trains: its criterion is looked for. Other threads of the process are left alone."""
    token = _ROUND.set(here)

    def before(module: nn.Module, args: Any) -> None:
        if _ROUND.get() is here:
            here.before_forward(module, args)

    def after(module: nn.Module, args: Any, named: Any, output: Any) -> Any:
        return here.after_forward(module, args, named, output) if _ROUND.get() is here else None

    hooks = [
        torch_hooks.register_module_forward_pre_hook(before),
        torch_hooks.register_module_forward_hook(after, with_kwargs=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        _ROUND.reset(token)


class FairCriterion(nn.Module):
    """See `fair_loss`."""

    def __init__(self, criterion: LossFunction, here: ClientRound | None) -> None:
        super().__init__()
        self.criterion, self._here = criterion, here

    def forward(self, output: Any, target: Tensor) -> Tensor:
        """The loss of a batch."""
        here = self._here
        with here.by_us() if here is not None else contextlib.nullcontext():
            plain = self.criterion(output, target)
            mean = plain if plain.ndim == 0 else None
            if here is None or not torch.is_grad_enabled():
                return plain.mean() if mean is None else mean
            return here.step(output, target, mean)


def fair_loss(
    criterion: LossFunction,
    model: nn.Module,
    batches: Iterable[Any],
    *,
    validation: Iterable[Any] | None = None,
    unpack: Unpack = unpack_batch,
) -> nn.Module:
    """The criterion to train with, in place of yours, where `fair_mod` can't find it by itself.

    That is so if it is a function or a class of your own, if the loop has several, or if the model has other names than
    the arrays that travel. Call it after the received model is loaded, before training. Where no `FairStrategy` asks,
    it is your criterion. Its value stays the plain loss; only the gradient is another.

    Args:
        criterion: a loss with `reduction`, such as nn.CrossEntropyLoss(), or one that returns a loss per example.
        model: with the parameters received.
        batches: the training data. Of a DataLoader, its data set is gone through in order, so that the batches of
            training stay what they were.
        validation: the client's validation data, which the received model is measured on instead if the server's
            `loss_source` says so.
        unpack: from a batch to (inputs, targets), for batches that are neither pairs nor dicts or objects with targets
            called label(s), target(s) or y.
    """
    here = current_round()
    if here is not None:
        here.named, here.unpack = True, unpack
        here.batches = lambda split: batches if split == "train" else validation
        with here.by_us():
            here.begin(criterion, model)
    return FairCriterion(criterion, here)


def nothing_to_measure(split: Split) -> str:
    """For a client that has no examples of a split."""
    return (
        f"the server asks for the loss on {split} examples, and the client has none. Give them to fair_mod, fair_loss "
        "or client_app, or set loss_source='before_full' in the Rounds of the strategy."
    )


def _of_examples(criterion: LossFunction) -> LossFunction:
    """The losses [B] of examples by a criterion; which task it is follows from the first targets.

    Loops that have a target at each position may hand them to the criterion as one long row, which is another task.
    """
    chosen: dict[int, LossFunction] = {}

    def losses(output: Any, target: Tensor) -> Tensor:
        if target.ndim not in chosen:
            chosen[target.ndim] = choose_task(None, criterion, target)[1]
        return chosen[target.ndim](output, target)

    return losses


def _drift_penalty(here: ClientRound, model: nn.Module) -> Callable[[], Tensor] | None:
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


def _arguments(criterion: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Tensor]:
    """Output and target, however they were given."""
    given = [*args, *(named[name] for name in ("input", "target") if name in named)]
    if len(given) != 2 or len(args) + len(named) != 2:
        raise ConfigError(f"{type(criterion).__name__} takes more than an output and a target. {NAME_IT}")
    if getattr(criterion, "reduction", "mean") != "mean":
        raise ConfigError(
            f"{type(criterion).__name__} must have reduction='mean', the loss of a batch; got {criterion.reduction!r}. "
            f"{NAME_IT}"
        )
    return given[0], given[1]


class _Shown(torch.autograd.Function):
    """The value of one loss with the gradient of another."""

    @staticmethod
    def forward(ctx: Any, changed: Tensor, shown: Tensor) -> Tensor:  # noqa: ARG004 (torch's own signature)
        return shown.to(changed.dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return gradient, None
