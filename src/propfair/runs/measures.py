"""What is measured of every client: a number of a split, over the rounds, and as statistics over clients."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from propfair.core.metrics import LOWER_IS_BETTER
from propfair.fairness.arrays import FloatArray
from propfair.fairness.statistics import ClientStatistics, summarize


@dataclass(frozen=True)
class Measure:
    """A number that every client has after a round: its test accuracy, say.

    >>> Measure.parse("validation/loss").label, Measure().key
    ('validation loss', 'test/accuracy')
    """

    split: str = "test"
    metric: str = "accuracy"
    higher: bool | None = field(default=None, compare=False)  # is better; None: as the name says

    @classmethod
    def parse(cls, key: str) -> "Measure":
        """From the written form, split/metric."""
        split, _, metric = key.partition("/")
        return cls(split, metric)

    @property
    def key(self) -> str:
        """The written form."""
        return f"{self.split}/{self.metric}"

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.split} {self.metric}"

    @property
    def higher_is_better(self) -> bool:
        """Losses and errors are better when they are lower."""
        return self.metric not in LOWER_IS_BETTER if self.higher is None else self.higher


ACCURACY = Measure()


def ordered(metrics: Iterable[str]) -> list[str]:
    """The names of metrics, the most telling first: accuracy, the others, the loss."""
    return sorted(metrics, key=lambda name: (name == "loss", name != "accuracy"))


def leading(split: str, metrics: Iterable[str], directions: Mapping[str, bool] | None = None) -> Measure:
    """The most telling of some metrics of a split."""
    metric = next(iter(ordered(metrics)), "accuracy")
    return Measure(split, metric, (directions or {}).get(metric))


@dataclass(frozen=True, eq=False)
class Series:
    """Values of every client over some rounds; NaN where a client has none.

    Attributes:
        rounds: [T].
        values: [T, n].
        thinned: some rounds were left out or averaged to keep a page small.
    """

    rounds: npt.NDArray[np.int64]
    values: FloatArray
    thinned: bool = False

    @property
    def last(self) -> FloatArray:
        """[n], of the last round."""
        final: FloatArray = self.values[-1]
        return final

    def at(self, round_: int) -> FloatArray:
        """[n], of one round; NaN if it has none."""
        found = np.flatnonzero(self.rounds == round_)
        row: FloatArray = self.values[found[0]] if len(found) else np.full(self.values.shape[1], np.nan)
        return row

    def picked(self, columns: int) -> "Series":
        """At most so many of the rounds, evenly spaced; the last one stays."""
        if len(self.rounds) <= columns:
            return self
        keep = np.unique(np.linspace(0, len(self.rounds) - 1, columns).round().astype(int))
        return Series(self.rounds[keep], self.values[keep], thinned=True)

    def averaged(self, columns: int) -> "Series":
        """Means over blocks of rounds, at most so many of them; each is known by its first round."""
        if len(self.rounds) <= columns:
            return self
        starts = np.unique(np.linspace(0, len(self.rounds), columns, endpoint=False).astype(int))
        counts = np.add.reduceat(~np.isnan(self.values), starts, axis=0)
        totals = np.add.reduceat(np.nan_to_num(self.values), starts, axis=0)
        means = np.divide(totals, counts, out=np.full_like(totals, np.nan), where=counts > 0)
        return Series(self.rounds[starts], means, thinned=True)


def summarize_clients(values: npt.ArrayLike, shares: npt.ArrayLike, measure: Measure = ACCURACY) -> ClientStatistics:
    """The one summary of a table of client values [n]: weighted statistics are by the clients' shares of the data.

    Results, comparisons, reports, the choice and the pruning of sweeps all take their numbers from here.
    """
    return summarize(values, weights=shares, higher_is_better=measure.higher_is_better)
