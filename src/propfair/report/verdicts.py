"""Is a group of runs proportionally fair against the others? All pairs of a comparison, as a table and in words."""

from dataclasses import dataclass

import numpy as np

from propfair.fairness.arrays import FloatArray
from propfair.fairness.verdict import Verdict
from propfair.federation.federation import SPLITS
from propfair.runs.certificate import Pairs, Utility
from propfair.runs.grouping import Comparison
from propfair.runs.measures import Measure


@dataclass(frozen=True, eq=False)
class Verdicts:
    """The certificate of every group (rows: the reference u*) against every other (columns).

    Attributes:
        values: [G, G], average relative change of the clients when they move from the row's model to the column's;
            NaN on the diagonal and where it is undefined. Over several seeds, the mean over the seeds both have.
        low, high: [G, G], ends of 95 % intervals that hold for a row at once; NaN where nothing is known about chance.
        over: for each row and column, what the interval was drawn over: "seeds", "examples" or "".
        verdicts: [G], on each group; where it is undefined, a sentence that says why.
        best: the group that withstands the others best.
        left_out: clients without a value under some group.
        pairs: where the numbers come from.
    """

    values: FloatArray
    low: FloatArray
    high: FloatArray
    over: list[list[str]]
    verdicts: list[Verdict | str]
    best: int
    left_out: int
    pairs: Pairs

    @property
    def words(self) -> list[str]:
        """[G], the verdict on each group as a sentence."""
        return [str(verdict) for verdict in self.verdicts]


def judge(comparison: Comparison, measure: Measure) -> Verdicts | str:
    """All pairs of a comparison; or a sentence that says why there are none."""
    groups = comparison.groups
    if len(groups) < 2:
        return "The certificate compares models: it needs a second run on the same clients."
    if measure.metric != "accuracy":
        return "The certificate needs utilities, such as accuracies; losses have no relative gain."
    if not all(group.has(measure) for group in groups):
        return f"Some runs have no {measure.label} yet; the certificate comes when all have."
    if not np.isfinite(np.concatenate([group.values(measure) for group in groups])).all(axis=0).any():
        return f"No client has a {measure.label} under every run."
    pairs = Pairs.of(groups, utility=Utility(next(split for split in SPLITS if split == measure.split)))
    size = len(groups)
    values = np.full((size, size), np.nan)
    for a in range(size):
        if pairs.nothing_for(a) is None:
            for b in range(size):
                if a != b and pairs.share_seeds(a, b):
                    values[a, b] = pairs.pair(a, b).value
    comparable = np.where(np.isnan(values), -np.inf, values)
    strongest = comparable.max(axis=1)
    best = int(np.where(np.isfinite(strongest), strongest, np.inf).argmin())
    low, high, over = np.full_like(values, np.nan), np.full_like(values, np.nan), [[""] * size for _ in range(size)]
    verdicts = [_verdict(pairs, a, np.flatnonzero(np.isfinite(values[a])).tolist()) for a in range(size)]
    for a, verdict in enumerate(verdicts):
        for b, group in enumerate(groups):
            interval = None if isinstance(verdict, str) else verdict.intervals.get(group.label)
            if interval is not None and a != b:
                low[a, b], high[a, b], over[a][b] = interval.low, interval.high, interval.over
    return Verdicts(values, low, high, over, verdicts, best, pairs.num_excluded, pairs)


def _verdict(pairs: Pairs, reference: int, others: list[int]) -> Verdict | str:
    label, nobody = pairs.groups[reference].label, pairs.nothing_for(reference)
    if nobody is not None:
        return f"undefined: {label} leaves client {nobody} at 0, and a relative change from 0 has no value"
    return pairs.verdict(reference, others) if others else f"undefined: no other run shares a seed with {label}"
