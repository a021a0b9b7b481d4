"""Losses and accuracies of clients, computed in wide batches across clients rather than client by client."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from propfair.algorithms.base import ClientId
from propfair.core.params import FlatModel
from propfair.data.base import Examples
from propfair.federation.federation import Ragged

LossFunction = Callable[[Tensor, Tensor], Tensor]  # (output, target) -> losses of the examples [B]
SMALLEST_BATCH, LARGEST_BATCH, PARTS = 128, 1024, 16  # few examples still keep several workers busy


class Evaluation(NamedTuple):
    """What a model does for each of K clients. nan where a client has no examples, or where accuracy has no meaning."""

    loss: Tensor  # [K], mean over the client's examples
    accuracy: Tensor  # [K], share of examples whose largest output is their label
    num_examples: Tensor  # [K]


def chunks(index: Ragged, clients: Sequence[ClientId]) -> list[Tensor]:
    """The examples of the clients, one after the other, cut into batches. The unit of work for parallel engines.

    Batches are the same on every engine, since their shapes decide the last bits.
    """
    whole = torch.cat([index[client] for client in clients]) if clients else index.values[:0]
    size = min(LARGEST_BATCH, max(SMALLEST_BATCH, len(whole) // PARTS))
    return list(torch.split(whole, size)) if len(whole) else []


@torch.no_grad()
def measure(model: FlatModel, examples: Examples, loss: LossFunction, index: Tensor) -> Tensor:
    """Loss and correctness of single examples, [2, B]; correctness is nan for real-valued targets."""
    model.train(False)
    output, target = model.module(examples.inputs(index)), examples.targets(index)
    losses = loss(output, target).float()
    if target.is_floating_point() or output.ndim != 2:
        return torch.stack([losses, torch.full_like(losses, torch.nan)]).cpu()
    return torch.stack([losses, (output.argmax(1) == target).float()]).cpu()


def gather(parts: Sequence[Tensor], index: Ragged, clients: Sequence[ClientId]) -> Evaluation:
    """Means per client, in float64, from the measured chunks in order."""
    lengths = index.lengths[list(clients)]
    owner = torch.repeat_interleave(torch.arange(len(clients)), lengths)
    values = torch.cat(list(parts), dim=1).double() if parts else torch.empty(2, 0, dtype=torch.float64)
    sums = torch.zeros(2, len(clients), dtype=torch.float64).index_add_(1, owner, values)
    loss, accuracy = sums / lengths  # 0 / 0 = nan for a client without examples
    return Evaluation(loss, accuracy, lengths)
