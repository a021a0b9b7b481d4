"""The updates of a round on the server: added up as they come, or kept; their Gram matrix; those of earlier rounds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from propfair.algorithms.base import ClientId, Cohort, PastRows
from propfair.core.messages import Block, Job, Reports

_GRAM_BYTES, _GRAM_ROWS = 64 << 20, 256  # of the float64 strips that a Gram matrix is computed in


class Sums:
    """Adds blocks up as they come. Only rules that look at single updates make it keep them."""

    def __init__(self, job: Job) -> None:
        self.reports: list[Reports] = []
        self.buffers = torch.zeros_like(job.buffers)
        self.total: Tensor | None = None  # [P]
        self._rows = None if job.weights is not None else job.params.new_empty(len(job.clients), len(job.params))
        self._filled = 0

    def add(self, block: Block) -> None:
        """Take the next block."""
        self.reports.append(block.reports)
        self.buffers += block.buffers
        if self._rows is None:
            self.total = block.update if self.total is None else self.total.add_(block.update)
        else:
            self._rows[self._filled : self._filled + len(block.update)] = block.update
            self._filled += len(block.update)

    @property
    def updates(self) -> Tensor:
        """[K', P], one row for each client that did not diverge."""
        assert self._rows is not None
        return self._rows[: self._filled]


@dataclass(frozen=True)
class PastUpdates:
    """The latest updates of clients that took part in earlier rounds, for rules that `remember` them."""

    updates: Tensor  # [R, P]
    clients: Tensor  # [R]
    rounds: Tensor  # [R], when each was sent
    num_steps: Tensor  # [R], local steps behind each, float64

    @staticmethod
    def none(like: Tensor) -> "PastUpdates":
        """Nothing kept yet of a model such as `like` [P]."""
        nobody = torch.empty(0, dtype=torch.int64)
        return PastUpdates(like.new_empty(0, len(like)), nobody, nobody, nobody.double())

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def rows(self) -> PastRows:
        """Which they are, for a cohort."""
        return PastRows(tuple(self.clients.tolist()), tuple(self.rounds.tolist()), tuple(self.num_steps.tolist()))

    def absent(self, present: Sequence[ClientId]) -> "PastUpdates":
        """Only those of clients that are not present."""
        if not len(self):
            return self
        return self._select(~torch.isin(self.clients, torch.tensor(present)))

    def followed_by(self, updates: Tensor, cohort: Cohort, remember: int) -> "PastUpdates":
        """What is kept after a round with these updates [K, P]: nothing older than `remember` rounds."""
        recent = self._select(self.rounds > cohort.round - remember)
        older = recent.absent(cohort.clients)
        return PastUpdates(
            torch.cat([older.updates, updates]),
            torch.cat([older.clients, torch.tensor(cohort.clients)]),
            torch.cat([older.rounds, torch.full((len(cohort),), cohort.round)]),
            torch.cat([older.num_steps, cohort.num_steps]),
        )

    def tensors(self) -> dict[str, Tensor]:
        """By name, for a checkpoint; none if there are no rows."""
        return dict(vars(self)) if len(self) else {}

    @staticmethod
    def of(tensors: Mapping[str, Tensor], like: Tensor) -> "PastUpdates":
        """The inverse of `tensors`."""
        return PastUpdates(**tensors) if tensors else PastUpdates.none(like)

    def _select(self, keep: Tensor) -> "PastUpdates":
        if bool(keep.all()):
            return self
        updates = self.updates[keep.to(self.updates.device)]
        return PastUpdates(updates, self.clients[keep], self.rounds[keep], self.num_steps[keep])


def gram_matrix(*parts: Tensor) -> Tensor:
    """<delta_j, delta_k> in float64 of all rows of the parts [K, P], one part after the other.

    Strip by strip of parameters, so that float64 copies stay small.
    """
    parts = tuple(part for part in parts if len(part)) or parts[:1]
    count, num_params = sum(map(len, parts)), parts[0].shape[1]
    gram = torch.zeros(count, count, dtype=torch.float64)
    width = max(1, _GRAM_BYTES // (8 * max(1, count)))
    for start in range(0, num_params, width):
        strips = [part[:, start : start + width] for part in parts]
        wide = strips[0].double() if len(strips) == 1 else torch.cat(strips).double()
        for first in range(0, len(wide), _GRAM_ROWS):  # each pair of clients once: the rest is symmetric
            gram[first : first + _GRAM_ROWS, first:] += (wide[first : first + _GRAM_ROWS] @ wide[first:].T).cpu()
    return gram.triu() + gram.triu(1).T
