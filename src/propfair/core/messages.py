"""What travels between the server and its clients in a round: orders, jobs, reports, blocks, and how those are summed.

An engine gets a `Job` and gives `Block`s: the cohort in order, cut into runs of `BLOCK` clients, each summed by itself.
Sums of floats depend on their order, so this order is part of the contract: it lets an engine reduce a block wherever
it likes and still give the same bits.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from propfair.algorithms.base import ClientId, Order

BLOCK = 8  # clients that are summed together
Floats = NDArray[np.float32] | NDArray[np.float64]
LossSource = Literal["before_full", "validation", "running_mean", "first_batch"]


class Orders(NamedTuple):
    """What several clients are told: an `Order` whose numbers are columns [C]."""

    lr_scale: NDArray[np.float64]
    numbers: Mapping[str, NDArray[np.float64]]

    @staticmethod
    def of(orders: Sequence[Order]) -> "Orders":
        """From single orders, which all name the same numbers."""
        first = orders[0]
        if orders.count(first) == len(orders):  # as in most algorithms
            return Orders(
                np.full(len(orders), first.lr_scale),
                {name: np.full(len(orders), value) for name, value in first.numbers.items()},
            )
        return Orders(
            np.array([order.lr_scale for order in orders]),
            {name: np.array([order.numbers[name] for order in orders]) for name in first.numbers},
        )


class Report(NamedTuple):
    """What one client tells the server."""

    client: ClientId
    num_steps: int
    finite: bool  # False: the client diverged or gave no answer, and its update is not used
    norm2: float  # ||delta||^2
    first_loss: float  # mean loss of the first batch: of the model received
    running_loss: float  # mean over all examples seen while training
    observed: Mapping[str, float]
    full_loss: float = math.nan  # of the model received on all examples of a split, if the client measures it itself

    @classmethod
    def none(cls, client: ClientId) -> "Report":
        """Stands for a client that gave no answer."""
        return cls(client, 0, False, math.nan, math.nan, math.nan, {})

    def received_loss(self, source: LossSource) -> float:
        """The loss of the model received, from the named source."""
        return float(getattr(self, _COLUMNS[source]))


class Reports(NamedTuple):
    """The reports of several clients as columns [K]; where a round takes milliseconds, K small objects cost much."""

    clients: tuple[ClientId, ...]
    num_steps: NDArray[np.int64]
    finite: NDArray[np.bool_]
    norm2: Floats
    first_loss: Floats
    running_loss: Floats
    full_loss: Floats
    observed: Mapping[str, Floats]  # nan: the client did not say

    @staticmethod
    def of(rows: Sequence[Report]) -> "Reports":
        """From single reports."""
        columns = [np.array([getattr(row, name) for row in rows]) for name in _NUMBERS]
        names = sorted({name for row in rows for name in row.observed})
        observed = {name: np.array([row.observed.get(name, math.nan) for row in rows]) for name in names}
        return Reports._make([tuple(row.client for row in rows), *columns, observed])

    @staticmethod
    def joined(parts: "Sequence[Reports]") -> "Reports":
        """Those of several groups of clients, one after the other."""
        if len(parts) == 1:
            return parts[0]
        columns = [np.concatenate([getattr(part, name) for part in parts]) for name in _NUMBERS]
        names = sorted({name for part in parts for name in part.observed})
        observed = {
            name: np.concatenate([part.observed.get(name, np.full(len(part.clients), math.nan)) for part in parts])
            for name in names
        }
        return Reports._make([tuple(client for part in parts for client in part.clients), *columns, observed])

    def rows(self) -> tuple[Report, ...]:
        """One by one."""
        columns = {name: getattr(self, name).tolist() for name in _NUMBERS}
        observed = {name: values.tolist() for name, values in self.observed.items()}
        return tuple(
            Report(
                client=client, **{name: values[place] for name, values in columns.items()},
                observed={name: values[place] for name, values in observed.items() if not math.isnan(values[place])},
            )
            for place, client in enumerate(self.clients)
        )  # fmt: skip

    @property
    def answered(self) -> NDArray[np.bool_]:
        """False: the client was lost or too slow, and took no part in the round."""
        return self.num_steps > 0

    def received_loss(self, source: LossSource) -> Floats:
        """The losses of the model received, from the named source."""
        column: Floats = getattr(self, _COLUMNS[source])
        return column


_NUMBERS = ("num_steps", "finite", "norm2", "first_loss", "running_loss", "full_loss")  # in the order of `Reports`
_COLUMNS: dict[LossSource, str] = {
    "before_full": "full_loss", "validation": "full_loss", "first_batch": "first_loss", "running_mean": "running_loss",
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One round's work."""

    round: int
    params: Tensor  # [P], the model sent out
    buffers: Tensor  # [B]
    clients: tuple[ClientId, ...]
    orders: tuple[Order, ...]
    weights: Tensor | None  # [K] if they are known before training: updates are then summed as they arrive
    share: Tensor  # [K], the weights of buffers
    corrections: Tensor | None = None  # [K, P], what each client adds to its gradients

    def correction(self, position: int) -> Tensor | None:
        """Of the client at this position of the cohort."""
        return None if self.corrections is None else self.corrections[position]

    def blocks(self) -> list[slice]:
        """The positions of each block in the cohort."""
        return [slice(start, min(start + BLOCK, len(self.clients))) for start in range(0, len(self.clients), BLOCK)]


@dataclass(frozen=True)
class Block:
    """What some consecutive clients of the cohort send back. Clients that diverged take no part in any sum.

    Whoever gets the block may write to `update`.
    """

    reports: Reports
    update: Tensor  # [P], sum of weights_k delta_k; or [k, P], the finite clients' updates, if weights were not given
    buffers: Tensor  # [B], sum of share_k buffers_k


Reply = tuple[Report, Tensor, Tensor]  # of one client: its report, its update [P] and its buffers [B]


def reduce_block(job: Job, positions: Sequence[int], replies: Iterable[Reply]) -> Block:
    """Sum what the clients at these positions of the cohort sent, in order: the sum that every engine must give.

    A reply is done with when the next one is asked for, so that engines may use its memory again.
    """
    reports, num_kept = [], 0
    summed = job.weights is not None
    update = torch.empty_like(job.params) if summed else job.params.new_empty(len(positions), len(job.params))
    buffers = torch.zeros_like(job.buffers)
    for position, (report, delta, own_buffers) in zip(positions, replies, strict=True):
        reports.append(report)
        if not report.finite:
            continue
        if job.weights is None:
            update[num_kept] = delta
        elif num_kept:
            update.add_(delta, alpha=float(job.weights[position]))
        else:
            torch.mul(delta, float(job.weights[position]), out=update)
        num_kept += 1
        if len(buffers):
            buffers.add_(own_buffers, alpha=float(job.share[position]))
    if summed and not num_kept:
        update.zero_()
    return Block(Reports.of(reports), update if summed else update[:num_kept], buffers)
