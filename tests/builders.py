"""Tiny federations and models, which all tests train: from given examples or from a seed."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from propfair.data import ArrayExamples
from propfair.federation.federation import Federation
from propfair.federation.ragged import Ragged

REQUIRED: dict[str, dict[str, Any]] = {"gifair": {"coeff": 0.5}}  # options without a default, by algorithm


def everything(index: Tensor) -> Tensor:
    return index


def nothing(index: Tensor) -> Tensor:
    return index[:0]


def federation_of(
    x: Tensor,
    y: Tensor,
    sizes: Sequence[int],
    *,
    num_classes: int = 3,
    names: Sequence[str] | None = None,
    train: Callable[[Tensor], Tensor] = everything,
    validation: Callable[[Tensor], Tensor] = nothing,
    test: Callable[[Tensor], Tensor] = nothing,
) -> Federation:
    """Clients hold the examples in a row, sizes[k] of them client k; functions pick which of its own go where."""
    held = torch.split(torch.arange(len(y)), list(sizes))

    def picked(pick: Callable[[Tensor], Tensor]) -> Ragged:
        return Ragged.of([pick(index) for index in held])

    examples = ArrayExamples(x, y, num_classes=num_classes)
    called = tuple(names or map(str, range(len(sizes))))
    return Federation(examples, called, picked(train), picked(validation), picked(test))


def random_federation(
    sizes: Sequence[int], *, features: int = 4, num_classes: int = 3, seed: int = 0, shift: float = 0.0, **how: Any
) -> Federation:
    """Normal inputs and labels by chance; with a shift the inputs of clients have different means."""
    rng = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    centre = torch.zeros(total, features)
    if shift:
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        centre = (shift * torch.randn(len(sizes), features, generator=rng))[owner]
    x = torch.randn(total, features, generator=rng) + centre
    y = torch.randint(num_classes, (total,), generator=rng)
    return federation_of(x, y, sizes, num_classes=num_classes, **how)


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A model whose first parameters follow from the seed; the global generator stays as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()
