"""Batches as loops have them: what is the input and what the target, how many examples there are, and their loss."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from propfair.core.losses import choose_task, settle_classes
from propfair.core.params import feed
from propfair.core.tasks import LossFunction
from propfair.errors import ConfigError
from propfair.seeds import untouched_global_rng

Unpack = Callable[[Any], tuple[Any, Tensor]]  # from a batch to (inputs, targets)
_Pair = tuple[Any, Tensor]  # output and target
_AT_ONCE = 32  # examples that are measured, where a loader does not say how many it takes
TARGETS = ("labels", "label", "targets", "target", "y")


def unpack_batch(batch: Any) -> tuple[Any, Tensor]:
    """Inputs and targets of a batch: a pair, or a dict or an object that calls its targets label(s), target(s) or y.

    What a dict or an object holds beside the targets is the input: one tensor is the argument of the model, several are
    its named arguments.

    >>> inputs, targets = unpack_batch({"img": torch.ones(2, 3), "label": torch.tensor([0, 1])})
    >>> inputs.shape, targets.tolist()
    (torch.Size([2, 3]), [0, 1])
    """
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    named = _named(batch)
    target = next((name for name in TARGETS if isinstance(named.get(name), Tensor)), None)
    inputs = {name: value for name, value in named.items() if name != target and isinstance(value, Tensor)}
    if target is None or not inputs:
        found = f"{type(batch).__name__} with {', '.join(map(str, named)) or f'{len(batch)} parts'}"
        raise ConfigError(
            f"can't tell inputs from targets in a batch that is a {found}. "
            'Pass unpack=lambda batch: (batch["img"], batch["digit"]), or the like.'
        )
    return (next(iter(inputs.values())) if len(inputs) == 1 else inputs), named[target]


def _named(batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping):
        return batch
    if hasattr(batch, "_asdict"):
        fields: Mapping[str, Any] = batch._asdict()
        return fields
    return {} if isinstance(batch, tuple | list | Tensor) else vars(batch)


def count_examples(batches: Any, unpack: Unpack) -> int:
    """How many examples there are in a number, a DataLoader, or batches in a row."""
    if isinstance(batches, int):
        return batches
    if isinstance(batches, DataLoader) and not isinstance(batches.dataset, IterableDataset):
        return len(batches.dataset)  # type: ignore[arg-type]
    return sum(len(unpack(batch)[1]) for batch in batches)


@torch.no_grad()
def losses_of(model: nn.Module, batches: Iterable[Any], criterion: LossFunction, unpack: Unpack) -> Tensor:
    """The losses [N] of the model on all examples of the batches, in evaluation mode; nothing is left changed.

    Of a DataLoader, its data set is gone through in order, so that the batches of training stay what they were.
    """
    if isinstance(batches, DataLoader) and not isinstance(batches.dataset, IterableDataset):
        size = batches.batch_size
        if size is None and batches.batch_sampler is not None:  # one that makes batches in its own way
            size = _AT_ONCE
        batches = DataLoader(batches.dataset, size, collate_fn=batches.collate_fn)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        with untouched_global_rng():
            pairs = ((feed(model, _on(inputs, device)), targets.to(device)) for inputs, targets in map(unpack, batches))
            seen: list[_Pair] = []  # while it is not settled what the outputs mean
            first = _kept(pairs, seen)
            pair = next(first, None)
            if pair is None:
                raise ConfigError(
                    "there are no batches to measure the received model on. Is the data of this client empty?"
                )
            task, losses = choose_task(None, criterion, pair[1])
            _, losses = settle_classes(task, losses, itertools.chain(seen[:1], first))
            parts = [losses(output, target).double().cpu() for output, target in itertools.chain(seen, pairs)]
    finally:
        model.train(was_training)
    return torch.cat(parts)


def _kept(pairs: Iterable[_Pair], seen: list[_Pair]) -> Iterator[_Pair]:
    """What is taken from here is still there afterwards, in `seen`."""
    for pair in pairs:
        seen.append(pair)
        yield pair


def _on(inputs: Any, device: torch.device) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {name: _on(value, device) for name, value in inputs.items()}
    return tuple(_on(value, device) for value in inputs) if isinstance(inputs, tuple | list) else inputs
