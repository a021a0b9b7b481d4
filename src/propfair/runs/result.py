"""What a training gives back: per-client numbers as tables, and the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from torch import Tensor, nn

from propfair.core.evaluation import Evaluation
from propfair.errors import DataError, MissingExtraError
from propfair.fairness.statistics import ClientStatistics, summarize
from propfair.federation.federation import Split

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

EndState = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Result:
    """One finished (or interrupted) run.

    Attributes:
        name: of the run.
        algorithm: with its hyper-parameters.
        state: "finished", "interrupted" or "failed"; `reason` says why.
        rounds: rounds done.
        clients: a name for each client.
        records: run, round, client, split, metric, value (Arrow).
        rounds_table: run, round, metric, value (Arrow).
        evaluations: the last evaluation, by split.
        personal: the last evaluation of the clients' personal models, for algorithms that have them.
        model: the trained module.
        num_dropped: how often a client was left out of a round because it diverged.
        notes: how the engine ran the clients, where it chose.
        folder: where the run was written, if it was.
    """

    name: str
    algorithm: str
    state: EndState
    reason: str
    rounds: int
    clients: tuple[str, ...]
    records: pa.Table
    rounds_table: pa.Table
    evaluations: dict[Split, Evaluation]
    personal: dict[Split, Evaluation]
    model: nn.Module
    num_dropped: int
    seconds: float
    notes: tuple[str, ...] = ()
    folder: Path | None = None

    def evaluation(self, split: Split = "test") -> Evaluation:
        """What the last evaluated model does for each client; personal models where the algorithm trains them."""
        found = {**self.evaluations, **self.personal}
        if split not in found:
            raise DataError(
                f"run {self.name!r} has no evaluation on {split!r}; it has: {', '.join(found) or 'none'}. "
                f"The run is {self.state}{f': {self.reason}' if self.reason else ''}"
            )
        return found[split]

    @property
    def accuracy(self) -> Tensor:
        """Test accuracy of each client, [n]."""
        return self.evaluation("test").accuracy

    def summary(self, split: Split = "test") -> ClientStatistics:
        """Mean, spread, worst and best clients, and indices of equality of the accuracies."""
        return summarize(self.evaluation(split).accuracy.numpy())

    def to_arrow(self) -> pa.Table:
        """The records: run, round, client, split, metric, value."""
        return self.records

    def to_pandas(self) -> "pd.DataFrame":
        """The records as a pandas data frame."""
        try:
            return self.records.to_pandas()
        except ImportError:
            raise MissingExtraError("Result.to_pandas()", "pandas") from None

    def to_polars(self) -> "pl.DataFrame":
        """The records as a polars data frame."""
        try:
            import polars as pl
        except ImportError:
            raise MissingExtraError("Result.to_polars()", "polars") from None
        frame = pl.from_arrow(self.records)
        assert isinstance(frame, pl.DataFrame)
        return frame
