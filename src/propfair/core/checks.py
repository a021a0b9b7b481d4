"""What would only fail, or silently go wrong, in the middle of training is found before it."""

import dataclasses

import torch
from torch import Tensor, nn

from propfair.core.client import Workload
from propfair.core.losses import leaves_open, settle_classes
from propfair.core.params import all_finite, feed
from propfair.core.tasks import Task
from propfair.data.base import Examples, map_tensors, named_tensors
from propfair.errors import ConfigError, DataError, PropFairError

_CLIENTS_LOOKED_AT = 16


def check_examples(examples: Examples, task: Task) -> None:
    """Numbers in memory must be finite, and targets must be what the task takes."""
    for name, tensor in examples.tensors().items():
        if tensor.is_floating_point() and not all_finite(tensor):
            bad = int((~torch.isfinite(tensor)).sum())
            raise DataError(f"the data has {bad} values that are nan or infinite (in {name!r}); clean them first")
    if examples.labels is not None and len(examples.labels):
        problem = task.target_problem(examples.labels, examples.num_classes)
        if problem:
            raise DataError(problem)


@torch.no_grad()
def check_task(module: nn.Module, work: Workload) -> None:
    """Run a few examples through the model and the loss: do output, target and task fit together?"""
    federation = work.federation
    few = federation.train[0][:2]
    was_training = module.training
    module.to(work.device).eval()
    ((x, target),) = federation.examples.read([few])
    x, target = map_tensors(lambda tensor: tensor.to(work.device), x), target.to(work.device)
    try:
        output = feed(module, x)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(
            f"the model {type(module).__name__} does not take inputs of shape {_shapes(x)}: {error}"
        ) from None
    problem = work.task.problem(output, target, federation.examples.num_classes)
    if problem:
        raise ConfigError(problem)
    try:
        losses = work.loss(output, target)
    except PropFairError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        shapes = f"output {_shapes(output) if isinstance(output, Tensor) else type(output).__name__}"
        raise ConfigError(f"the loss does not take {shapes} and target {_shapes(target)}: {error}") from None
    if losses.shape != (len(few),):
        raise ConfigError(
            f"the loss must give one number for each example, [{len(few)}]; got {list(losses.shape)}. "
            "Use reduction='none': propfair takes the mean itself."
        )
    module.train(was_training)


@torch.no_grad()
def settled(module: nn.Module, work: Workload) -> Workload:
    """The same with the place of the classes settled by single examples, where there is a target at each position."""
    if not leaves_open(work.task):
        return work
    was_training = module.training
    module.to(work.device).eval()
    lists = work.federation.train
    some = [lists[client][:2] for client in range(len(lists)) if int(lists.lengths[client])][:_CLIENTS_LOOKED_AT]
    alone = work.federation.examples.to(work.device).read(torch.split(torch.cat(some), 1))
    task, loss = settle_classes(work.task, work.loss, ((feed(module, x), target) for x, target in alone))
    module.train(was_training)
    return dataclasses.replace(work, task=task, loss=loss)


def _shapes(x: object) -> str:
    tensors = named_tensors(x)
    shapes = [str(tuple(tensor.shape[1:])) for tensor in tensors.values()]
    if len(shapes) == 1:
        return shapes[0]
    return ", ".join(f"{name} {shape}" for name, shape in zip(tensors, shapes, strict=True))
