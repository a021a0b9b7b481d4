"""What would only fail, or silently go wrong, in the middle of training is found before it."""

import copy

import torch
from torch import nn

from propfair.core.client import Workload, check_personal
from propfair.core.params import all_finite
from propfair.errors import ConfigError, DataError
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
    federation, classes = work.federation, work.federation.examples.num_classes
    for name, tensor in federation.examples.tensors().items():
        if tensor.is_floating_point() and not all_finite(tensor):
            bad = int((~torch.isfinite(tensor)).sum())
            raise DataError(f"the data has {bad} values that are nan or infinite (in {name!r}); clean them first")
    labels = federation.examples.labels
    if classes and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise DataError(
            f"labels must lie in 0..{classes - 1}; found labels from {int(labels.min())} to {int(labels.max())}"
        )
    if isinstance(work.local.steps, tuple) and len(work.local.steps) != federation.num_clients:
        raise ConfigError(f"local.steps lists {len(work.local.steps)} clients, but there are {federation.num_clients}")
    check_personal(work)
    few = federation.train[0][:2]
    was_training = module.training
    module.to(work.device).eval()
    with torch.no_grad():
        x, y = federation.examples.inputs(few).to(work.device), federation.examples.targets(few).to(work.device)
        try:
            output = module(x)
        except RuntimeError as error:
            raise ConfigError(
                f"the model {type(module).__name__} does not take inputs of shape {tuple(x.shape[1:])}: {error}"
            ) from None
        if classes and (output.ndim != 2 or output.shape[1] != classes):
            raise ConfigError(
                f"the model's output must be [batch, {classes}] for {classes} classes; got {list(output.shape)}"
            )
        losses = work.loss(output, y)
    if losses.shape != (len(few),):
        raise ConfigError(
            f"the loss must give one number for each example, [{len(few)}]; got {list(losses.shape)}. "
            "Use reduction='none': propfair takes the mean itself."
        )
    module.train(was_training)
    _check_lone_examples(module, work)


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
            copy.deepcopy(module).train()(federation.examples.inputs(federation.train[lone[0]][:1]).to(work.device))
        except ValueError as error:
            raise ConfigError(
                f"client {lone[0]} ({federation.names[lone[0]]}) has {int(lengths[lone[0]])} training examples, so "
                f"that with local.batch_size={size} a batch has one example, which BatchNorm can't take: {error}. "
                "Use another batch size, or GroupNorm."
            ) from None
