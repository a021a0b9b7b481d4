"""Is a group of runs proportionally fair against the others? All pairs of a comparison, as a table and in words."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from propfair.fairness.arrays import FloatArray
from propfair.fairness.certificate import Interval
from propfair.federation.federation import SPLITS
from propfair.runs.certificate import Pairs, Utility, verdict
from propfair.runs.grouping import Comparison
from propfair.runs.measures import Measure

_RESAMPLES = 2000  # of an interval
_MAX_DRAWS = 30_000_000  # of all intervals of a report together: a few seconds


@dataclass(frozen=True, eq=False)
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
        pairs: where the numbers come from.
    """

    values: FloatArray
    low: FloatArray
    high: FloatArray
    over: list[list[str]]
    words: list[str]
    best: int
    left_out: int
    pairs: Pairs


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
    intervals = _intervals(pairs, _by_importance(values, best, comparable.argmax(axis=1)))
    low, high, over = np.full_like(values, np.nan), np.full_like(values, np.nan), [[""] * size for _ in range(size)]
    for (a, b), interval in intervals.items():
        low[a, b], high[a, b], over[a][b] = interval.low, interval.high, interval.over
    words = [_words(pairs, values, a, intervals) for a in range(size)]
    return Verdicts(values, low, high, over, words, best, pairs.num_excluded, pairs)


def _by_importance(values: FloatArray, best: int, challengers: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """The pair behind the verdict on the best group, those behind the other verdicts, the rest of the best group's."""
    size = len(values)
    first = [(best, int(challengers[best]))]
    verdicts = [(a, int(challengers[a])) for a in range(size)]
    every = [(a, b) for a in (best, *range(size)) for b in range(size)]
    return [(a, b) for a, b in dict.fromkeys([*first, *verdicts, *every]) if np.isfinite(values[a, b])]


def _intervals(pairs: Pairs, order: list[tuple[int, int]]) -> dict[tuple[int, int], Interval]:
    """In the order given, until the draws are used up."""
    found = {}
    left = _MAX_DRAWS
    for a, b in order:
        pair = pairs.pair(a, b)
        left -= _RESAMPLES * (1 if len(pair.u) > 1 else 2 * pair.u.shape[1])
        if left < 0:
            break
        if pair.interval is not None:
            found[a, b] = pair.interval
    return found


def _words(pairs: Pairs, values: FloatArray, reference: int, intervals: dict[tuple[int, int], Interval]) -> str:
    label, nobody = pairs.groups[reference].label, pairs.nothing_for(reference)
    if nobody is not None:
        return f"undefined: {label} leaves client {nobody} at 0, and a relative change from 0 has no value"
    others = np.flatnonzero(np.isfinite(values[reference])).tolist()
    if not others:
        return f"undefined: no other run shares a seed with {label}"
    return verdict(pairs.against(reference, others), [intervals.get((reference, other)) for other in others])
