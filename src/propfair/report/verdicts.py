"""Is a group of runs proportionally fair against the others? The certificate, pair by pair, and in words."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from propfair.fairness.arrays import FloatArray
from propfair.fairness.certificate import (
    Certificate,
    Interval,
    certificate,
    interval_over_examples,
    interval_over_seeds,
)
from propfair.report.groups import Group, Measure, Trial

_RESAMPLES = 2000
_MAX_DRAWS = 30_000_000  # of all intervals of a report together: a few seconds


@dataclass(frozen=True)
class Verdicts:
    """The certificate of every group (rows: the reference u*) against every other (columns).

    Attributes:
        values: [G, G], average relative change of the clients when they move from the row's model to the column's;
            NaN on the diagonal and where it is undefined. Over several seeds, the mean over the seeds both have.
        low, high: [G, G], ends of 95 % intervals; NaN where none was computed.
        over: for each row and column, what the interval was drawn over: "seeds", "examples" or "".
        words: [G], the verdict on each group as a sentence.
        best: the group that withstands the others best.
        left_out: clients without a value under some group.
    """

    values: FloatArray
    low: FloatArray
    high: FloatArray
    over: list[list[str]]
    words: list[str]
    best: int
    left_out: int


def judge(trial: Trial, measure: Measure) -> Verdicts | str:
    """All pairs of a trial; or a sentence that says why there are none."""
    if len(trial.groups) < 2:
        return "The certificate compares models: it needs a second run on the same clients."
    if not measure.higher_is_better:
        return "The certificate needs utilities, such as accuracies; losses have no relative gain."
    if not all(group.has(measure) for group in trial.groups):
        return f"Some runs have no {measure.label} yet; the certificate comes when all have."
    tables = [group.by_seed(measure) for group in trial.groups]
    everything = np.stack([row for table in tables for row in table.values()])  # [runs, n]
    present = np.isfinite(everything.sum(axis=0))
    if not present.any():
        return f"No client has a {measure.label} under every run."
    pairs = _Pairs(trial, measure, present)
    size = len(trial.groups)
    values = np.stack([pairs.values(reference) for reference in range(size)])
    comparable = np.where(np.isnan(values), -np.inf, values)
    challengers = comparable.argmax(axis=1)
    strongest = comparable.max(axis=1)
    best = int(np.where(np.isfinite(strongest), strongest, np.inf).argmin())
    intervals = pairs.intervals(_by_importance(values, best, challengers))
    low, high, over = np.full_like(values, np.nan), np.full_like(values, np.nan), [[""] * size for _ in range(size)]
    for (a, b), interval in intervals.items():
        low[a, b], high[a, b], over[a][b] = interval.low, interval.high, interval.over
    words = [_words(trial, values, pairs, a, intervals.get((a, int(challengers[a])))) for a in range(size)]
    return Verdicts(values, low, high, over, words, best, int((~present).sum()))


def relative_changes(reference: Group, other: Group, measure: Measure) -> FloatArray:
    """(u - u*) / u* of each client, [n], from means over seeds; NaN where u* is 0 or missing."""
    star, u = reference.mean_over_seeds(measure), other.mean_over_seeds(measure)
    return np.divide(u - star, star, out=np.full_like(star, np.nan), where=star > 0)


class _Pairs:
    """Certificate values and intervals of pairs of groups, over the clients that all of them measured."""

    def __init__(self, trial: Trial, measure: Measure, present: npt.NDArray[np.bool_]) -> None:
        self._tables = [{seed: row[present] for seed, row in group.by_seed(measure).items()} for group in trial.groups]
        self.present = present
        self.shares = np.array(trial.clients.sizes["train"], dtype=np.float64)[present]
        self._tested = np.array(trial.clients.sizes.get(measure.split, []), dtype=np.float64)

    def values(self, reference: int) -> FloatArray:
        """[G], against every group; NaN for itself, and for all if the reference leaves a client at 0."""
        row = np.full(len(self._tables), np.nan)
        if self.zero_client(reference) is not None:
            return row
        others = [other for other in range(len(row)) if other != reference]
        by_seed: dict[int, list[float]] = {other: [] for other in others}
        for seed, u_star in self._tables[reference].items():
            met = [other for other in others if seed in self._tables[other]]
            if met:
                found = certificate(np.stack([self._tables[other][seed] for other in met]), u_star, self.shares).values
                for other, value in zip(met, found.tolist(), strict=True):
                    by_seed[other].append(value)
        for other in others:
            if not by_seed[other]:
                u_star, u = self._rows(reference, other)
                by_seed[other] = certificate(u, u_star[0], self.shares).values.tolist()
            row[other] = np.mean(by_seed[other])
        return row

    def zero_client(self, reference: int) -> int | None:
        """A client that gets nothing from the reference under some seed."""
        zero = (np.stack(list(self._tables[reference].values())) <= 0).any(axis=0)
        return int(np.flatnonzero(self.present)[zero.argmax()]) if zero.any() else None

    def intervals(self, pairs: list[tuple[int, int]]) -> dict[tuple[int, int], Interval]:
        """In the order given, until the draws are used up."""
        found = {}
        left = _MAX_DRAWS
        for reference, other in pairs:
            u_star, u = self._rows(reference, other)
            left -= _RESAMPLES * (1 if len(u) > 1 else 2 * u.shape[1])
            if left < 0:
                break
            if len(u) > 1:
                found[reference, other] = interval_over_seeds(u, u_star, self.shares, num_resamples=_RESAMPLES)
            elif len(self._tested) and self._tested[self.present].all():
                total = self._tested[self.present]
                found[reference, other] = interval_over_examples(
                    np.round(u[0] * total), np.round(u_star[0] * total), total, self.shares, num_resamples=_RESAMPLES
                )
        return found

    def _rows(self, reference: int, other: int) -> tuple[FloatArray, FloatArray]:
        """[S, n] of both over the seeds they share; one row of means if they share none."""
        star, u = self._tables[reference], self._tables[other]
        seeds = [seed for seed in star if seed in u]
        if seeds:
            return np.stack([star[seed] for seed in seeds]), np.stack([u[seed] for seed in seeds])
        return np.mean(list(star.values()), axis=0)[None], np.mean(list(u.values()), axis=0)[None]


def _by_importance(values: FloatArray, best: int, challengers: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """The pair behind the verdict on the best group, those behind the other verdicts, the rest of the best group's."""
    size = len(values)
    first = [(best, int(challengers[best]))]
    verdicts = [(a, int(challengers[a])) for a in range(size)]
    every = [(a, b) for a in (best, *range(size)) for b in range(size)]
    return [(a, b) for a, b in dict.fromkeys([*first, *verdicts, *every]) if np.isfinite(values[a, b])]


def _words(trial: Trial, values: FloatArray, pairs: _Pairs, reference: int, interval: Interval | None) -> str:
    client = pairs.zero_client(reference)
    if client is not None:
        return (
            f"undefined: {trial.groups[reference].label} leaves client {trial.clients.names[client]} at 0, "
            "and a relative change from 0 has no value"
        )
    others = [b for b in range(len(values)) if b != reference]
    against = Certificate(
        names=tuple(trial.groups[b].label for b in others),
        values=values[reference, others],
        relative=np.empty((len(others), 0)),
        shares=pairs.shares,
        alpha=1.0,
    )
    return against.verdict(interval=interval)
