"""What a training gives back: the run, with per-client numbers as tables, and the model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from torch import Tensor, nn

from propfair.core.evaluation import Evaluation
from propfair.errors import MissingExtraError
from propfair.fairness.statistics import ClientStatistics
from propfair.federation.federation import Split
from propfair.runs.html import run_html
from propfair.runs.measures import Measure
from propfair.runs.run import Run, RunState

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


@dataclass(frozen=True, eq=False)
class Result:
    """One finished (or interrupted) run and its model.

    Attributes:
        run: all that is known of the run; the same type as one that is read from a folder.
        model: the trained module.
        personal_models: by client, the state dict of the model that it trained for itself, for algorithms that have
            such; only of a training that has just ended.
    """

    run: Run
    model: nn.Module
    personal_models: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the run."""
        return self.run.name

    @property
    def algorithm(self) -> str:
        """With its hyper-parameters."""
        return self.run.algorithm

    @property
    def state(self) -> RunState:
        """How it ended: "finished", "interrupted" or "failed"; `reason` says why."""
        return self.run.status.state

    @property
    def reason(self) -> str:
        """Why it ended, if it is not finished."""
        return self.run.status.reason

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return self.run.status.rounds

    @property
    def seconds(self) -> float:
        """How long it took, breaks left out."""
        return self.run.status.seconds

    @property
    def clients(self) -> tuple[str, ...]:
        """A name for each client."""
        return self.run.clients.names

    @property
    def records(self) -> pa.Table:
        """run, round, client, split, metric, value (Arrow)."""
        return self.run.records

    @property
    def rounds_table(self) -> pa.Table:
        """run, round, metric, value (Arrow)."""
        return self.run.diagnostics

    @property
    def evaluations(self) -> dict[Split, Evaluation]:
        """The last evaluation of the global model, by split."""
        return self.run.global_evaluations()

    @property
    def personal(self) -> dict[Split, Evaluation]:
        """The last evaluation of the clients' personal models, for algorithms that have them."""
        return self.run.personal_evaluations()

    @property
    def num_dropped(self) -> int:
        """How often a client was left out of a round because it diverged."""
        return self.run.num_dropped

    @property
    def notes(self) -> tuple[str, ...]:
        """How the engine ran the clients, where it chose."""
        return self.run.environment.notes

    @property
    def folder(self) -> Path | None:
        """Where the run was written, if it was."""
        return self.run.folder

    def evaluation(self, split: Split = "test") -> Evaluation:
        """What the last evaluated model does for each client; personal models where the algorithm trains them."""
        return self.run.evaluation(split)

    @property
    def accuracy(self) -> Tensor:
        """Test accuracy of each client, [n]."""
        return self.evaluation("test").accuracy

    def summary(self, split: Split = "test", metric: str | None = None) -> ClientStatistics:
        """Mean, spread, worst and best clients, and indices of equality; weighted ones by data share.

        Without a metric: of accuracies, or of what the task has in their place.
        """
        chosen = self.run.leading(split)
        if metric is not None:
            chosen = Measure(split, metric, self.run.environment.metrics.get(metric))
        return self.run.summary(chosen)

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

    def __repr__(self) -> str:
        return f"Result({self.name!r}, {self.algorithm}, {self.state} after {self.rounds} rounds)"

    def _repr_html_(self) -> str:
        """The statistics over clients as a table, for notebooks."""
        return run_html(self.run)
