"""What clients tell the server beside their updates."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from propfair.algorithms.base import ClientId

Floats = NDArray[np.float32] | NDArray[np.float64]
LossSource = Literal["before_full", "running_mean", "first_batch"]


class Report(NamedTuple):
    """What one client tells the server."""

    client: ClientId
    num_steps: int
    finite: bool  # False: the client diverged or gave no answer, and its update is not used
    norm2: float  # ||delta||^2
    first_loss: float  # mean loss of the first batch: of the model received
    running_loss: float  # mean over all examples seen while training
    observed: Mapping[str, float]
    full_loss: float = math.nan  # of the model received on all training examples, if the client measures it itself

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
        columns = [np.array([getattr(row, name) for row in rows]) for name in Reports._fields[1:7]]
        names = sorted({name for row in rows for name in row.observed})
        observed = {name: np.array([row.observed.get(name, math.nan) for row in rows]) for name in names}
        return Reports._make([tuple(row.client for row in rows), *columns, observed])

    @staticmethod
    def joined(parts: "Sequence[Reports]") -> "Reports":
        """Those of several groups of clients, one after the other."""
        if len(parts) == 1:
            return parts[0]
        columns = [np.concatenate(columns) for columns in zip(*(part[1:7] for part in parts), strict=True)]
        names = sorted({name for part in parts for name in part.observed})
        observed = {
            name: np.concatenate([part.observed.get(name, np.full(len(part.clients), math.nan)) for part in parts])
            for name in names
        }
        return Reports._make([tuple(client for part in parts for client in part.clients), *columns, observed])

    def rows(self) -> tuple[Report, ...]:
        """One by one."""
        columns = dict(zip(self._fields[1:7], (column.tolist() for column in self[1:7]), strict=True))
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


_COLUMNS: dict[LossSource, str] = {
    "before_full": "full_loss", "first_batch": "first_loss", "running_mean": "running_loss",
}  # fmt: skip
