"""What would only fail, or silently go wrong, in the middle of training is found before it."""

import copy

import torch
from torch import nn

from propfair.core.checks import check_examples, check_task
from propfair.core.client import LocalTraining, Workload, check_personal
from propfair.core.params import feed
from propfair.core.precision import check_precision
from propfair.errors import ConfigError
from propfair.seeds import untouched_global_rng


def check_device(device: str) -> None:
    """Refuse a device that is not there, before anything is loaded."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {device!r} can't be used here: {str(error).splitlines()[0]}. Try --device cpu."
        ) from None


def check_workload(module: nn.Module, work: Workload) -> None:
    """Find what would only fail, or silently go wrong, in the middle of training."""
    federation = work.federation
    check_examples(federation.examples, work.task)
    if isinstance(work.local.steps, tuple) and len(work.local.steps) != federation.num_clients:
        raise ConfigError(f"local.steps lists {len(work.local.steps)} clients, but there are {federation.num_clients}")
    check_personal(work)
    for parameter in module.parameters():
        check_precision(work.local.precision, work.device, parameter.dtype)
    check_task(module, work)
    _check_optimizer(module, work.local)
    _check_lone_examples(module, work)


def _check_optimizer(module: nn.Module, local: LocalTraining) -> None:
    """Some optimisers want sparse gradients, a closure or parameters of one shape; options may be of another."""
    if local.optimizer == "sgd":
        return
    parameters = [nn.Parameter(torch.zeros_like(one)) for one in module.parameters() if one.requires_grad]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        getattr(torch.optim, local.optimizer)(parameters, lr=local.lr, **local.options).step()
    except Exception as error:
        options = f" with options {dict(local.options)}" if local.options else ""
        raise ConfigError(f"local.optimizer={local.optimizer!r}{options} can't train this model: {error}") from None


def _check_lone_examples(module: nn.Module, work: Workload) -> None:
    """BatchNorm over a single value has no variance, and torch refuses it: find such a batch before training."""
    if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()):
        return
    federation, size = work.federation, work.local.batch_size
    lengths = federation.train.lengths
    reached = torch.from_numpy(work.local.steps_of(range(len(lengths)), lengths.numpy())) >= -(-lengths // size)
    lone = (reached & (lengths % size == 1 if size > 1 else lengths > 0)).nonzero().flatten().tolist()
    if not lone:
        return
    with untouched_global_rng(), torch.no_grad():
        try:
            x = federation.examples.to(work.device).inputs(federation.train[lone[0]][:1])
            feed(copy.deepcopy(module).train(), x)
        except ValueError as error:
            raise ConfigError(
                f"client {lone[0]} ({federation.names[lone[0]]}) has {int(lengths[lone[0]])} training examples, so "
                f"that with local.batch_size={size} a batch has one example, which BatchNorm can't take: {error}. "
                "Use another batch size, or GroupNorm."
            ) from None
