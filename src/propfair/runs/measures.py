"""What is measured of every client: a number of a split, over the rounds, and as statistics over clients."""

from collections.abc import Iterable, Iterator
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


@dataclass(frozen=True, eq=False)
class Values:
    """Values of clients over rounds as they are recorded: only those that there are, N of them.

    A table of 20,000 clients and 20,000 rounds would take gigabytes where a few clients take part in a round.

    Attributes:
        rounds: [T], in which there are any.
        place: [N], of the round in `rounds`.
        client: [N].
        value: [N].
        num_clients: n.
    """

    rounds: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    client: npt.NDArray[np.int32]
    value: FloatArray
    num_clients: int

    @classmethod
    def of(
        cls, round_: npt.NDArray[np.int32], client: npt.NDArray[np.int32], value: FloatArray, num_clients: int
    ) -> "Values":
        """From three columns [N]."""
        rounds, place = np.unique(round_, return_inverse=True)
        return cls(rounds.astype(np.int64), place, client, value, num_clients)

    def whole(self) -> Series:
        """All of them as a table."""
        return self._table(np.arange(len(self.rounds)))

    def last(self) -> Series:
        """The last round."""
        return self._table(np.arange(len(self.rounds))[-1:])

    def pieces(self, most: int) -> Iterator[Series]:
        """All of them as tables one after the other, each of about `most` values."""
        height = max(1, most // self.num_clients)
        for start in range(0, len(self.rounds), height):
            yield self._table(np.arange(len(self.rounds))[start : start + height])

    def picked(self, columns: int) -> Series:
        """At most so many of the rounds, evenly spaced; the last one stays."""
        if len(self.rounds) <= columns:
            return self.whole()
        return self._table(np.unique(np.linspace(0, len(self.rounds) - 1, columns).round().astype(int)), thinned=True)

    def averaged(self, columns: int) -> Series:
        """Means over blocks of rounds, at most so many of them; each is known by its first round."""
        if len(self.rounds) <= columns:
            return self.whole()
        starts = np.unique(np.linspace(0, len(self.rounds), columns, endpoint=False).astype(int))
        block = np.searchsorted(starts, self.place, side="right") - 1
        cell, shape = block * self.num_clients + self.client, (len(starts), self.num_clients)
        counts = np.bincount(cell, minlength=shape[0] * shape[1])
        totals = np.bincount(cell, self.value, minlength=shape[0] * shape[1])
        means = np.divide(totals, counts, out=np.full_like(totals, np.nan), where=counts > 0)
        return Series(self.rounds[starts], means.reshape(shape), thinned=True)

    def _table(self, kept: npt.NDArray[np.int64], *, thinned: bool = False) -> Series:
        """The rounds at these places."""
        row = np.full(len(self.rounds), -1)
        row[kept] = np.arange(len(kept))
        chosen = np.flatnonzero(row[self.place] >= 0)
        values = np.full((len(kept), self.num_clients), np.nan)
        values[row[self.place[chosen]], self.client[chosen]] = self.value[chosen]
        return Series(self.rounds[kept], values, thinned)


def summarize_clients(values: npt.ArrayLike, shares: npt.ArrayLike, measure: Measure = ACCURACY) -> ClientStatistics:
    """The one summary of a table of client values [n]: weighted statistics are by the clients' shares of the data.

    Results, comparisons, reports, the choice and the pruning of sweeps all take their numbers from here.
    """
    return summarize(values, weights=shares, higher_is_better=measure.higher_is_better)
