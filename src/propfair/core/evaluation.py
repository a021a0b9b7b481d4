"""Losses, scores and metrics of clients, computed in wide batches across clients rather than client by client."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from propfair.algorithms.base import ClientId
from propfair.core.metrics import Metric, read_meter
from propfair.core.params import FlatModel, feed
from propfair.core.tasks import LossFunction, Task
from propfair.data.base import Examples
from propfair.federation.federation import Federation, Ragged, Split

SMALLEST_BATCH, PARTS = 128, 16  # few examples still keep several workers busy
MOST_KEPT = 4  # answers of `chunks`, for each split of a federation
_KEPT = WeakTensorKeyDictionary()


class Evaluation(NamedTuple):
    """What a model does for each of K clients. nan where a client has no examples, or where accuracy has no meaning."""

    loss: Tensor  # [K], mean over the client's examples
    accuracy: Tensor  # [K], share of what is judged (examples, labels, positions) that is right
    num_examples: Tensor  # [K]
    metrics: Mapping[str, Tensor] = {}  # [K] each, by name: the score of tasks without accuracy, and what was asked for
    right: Tensor | None = (
        None  # [N] bool, of each example, client by client; None where answers are not right or wrong
    )

    def values(self) -> dict[str, Tensor]:
        """Everything that was measured, by name; accuracy only where it has a meaning."""
        named = {"loss": self.loss} | ({} if self.accuracy.isnan().all() else {"accuracy": self.accuracy})
        return {**named, **self.metrics}


def chunks(federation: Federation, split: Split, clients: Sequence[ClientId]) -> list[Tensor]:
    """The examples of the clients, one after the other, cut into batches. The unit of work for parallel engines.

    Batches are the same on every engine, since their shapes decide the last bits. The latest few answers are kept: most
    runs ask for the same in every round.
    """
    index, key = federation.split(split), (federation.examples.most_at_once, tuple(clients))
    if index.values not in _KEPT:
        _KEPT[index.values] = OrderedDict()
    kept: OrderedDict[object, list[Tensor]] = _KEPT[index.values]
    if key not in kept:
        kept[key] = _cut(index, clients, federation.examples.most_at_once)
        if len(kept) > MOST_KEPT:
            kept.popitem(last=False)
    return kept[key]


def _cut(index: Ragged, clients: Sequence[ClientId], most: int) -> list[Tensor]:
    whole = torch.cat([index[client] for client in clients]) if clients else index.values[:0]
    size = min(most, max(SMALLEST_BATCH, len(whole) // PARTS))
    return list(torch.split(whole, size)) if len(whole) else []


@torch.no_grad()
def measure(
    model: FlatModel, examples: Examples, task: Task, loss: LossFunction, batches: Sequence[Tensor]
) -> list[Tensor]:
    """Loss and score of single examples, [2, B] for each batch of indices; scores are nan where a task has none."""
    model.train(False)
    rows = []
    for x, target in examples.read(batches):
        output = feed(model.module, x)
        losses = loss(output, target).float()
        rows.append(torch.stack([losses, task.scores(output, target).to(losses)]).cpu())
    return rows


@torch.no_grad()
def measure_metrics(
    model: FlatModel, examples: Examples, task: Task, metrics: Sequence[Metric], batches: Sequence[Tensor], where: str
) -> Tensor:
    """The metrics [M] of one client from all its batches of indices, float64; nan for a client without examples."""
    model.train(False)
    if not batches:
        return torch.full((len(metrics),), torch.nan, dtype=torch.float64)
    meters = [metric.meter(task) for metric in metrics]
    for x, target in examples.read(batches):
        output = feed(model.module, x)
        for meter in meters:
            meter.update(output, target)
    found = [read_meter(metric, meter, where) for metric, meter in zip(metrics, meters, strict=True)]
    return torch.tensor(found, dtype=torch.float64)


def gather(parts: Sequence[Tensor], index: Ragged, clients: Sequence[ClientId], score: str = "accuracy") -> Evaluation:
    """Means per client, in float64, from the measured chunks in order; `score` is what scores are called."""
    lengths = index.lengths[list(clients)]
    owner = torch.repeat_interleave(torch.arange(len(clients)), lengths)
    values = torch.cat(list(parts), dim=1).double() if parts else torch.empty(2, 0, dtype=torch.float64)
    sums = torch.zeros(2, len(clients), dtype=torch.float64).index_add_(1, owner, values)
    loss, scores = sums / lengths  # 0 / 0 = nan for a client without examples
    if score == "accuracy":
        right = values[1] == 1
        return Evaluation(loss, scores, lengths, right=right if (right | (values[1] == 0)).all() else None)
    return Evaluation(loss, torch.full_like(loss, torch.nan), lengths, {score: scores} if score else {})
