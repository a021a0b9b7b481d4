"""Numbers over rounds: statistics over clients, and what clients weighed."""

from collections.abc import Callable

import numpy as np

from propfair.fairness.arrays import FloatArray
from propfair.fairness.statistics import best_fraction, worst_fraction
from propfair.runs.measures import Measure, Series, Values
from propfair.runs.run import Run

MOST_COLUMNS = 150  # of a heat map: more than a screen can tell apart
_AT_A_TIME = 1 << 22  # values in memory


def statistics_over_rounds(values: Values, measure: Measure) -> dict[str, FloatArray]:
    """Mean, std, worst, worst10, best10 and best over clients, each [T]; NaN at a round without values."""
    better = measure.higher_is_better
    least, most = (np.min, np.max) if better else (np.max, np.min)
    functions: dict[str, Callable[[FloatArray], float]] = {
        "mean": np.mean,
        "std": np.std,
        "worst": least,
        "worst10": lambda row: worst_fraction(row, 0.1, higher_is_better=better),
        "best10": lambda row: best_fraction(row, 0.1, higher_is_better=better),
        "best": most,
    }
    found: dict[str, list[float]] = {name: [] for name in functions}
    for piece in values.pieces(_AT_A_TIME):
        for row in piece.values:
            known = row[~np.isnan(row)]
            for name, function in functions.items():
                found[name].append(function(known) if known.size else np.nan)
    return {name: np.array(line) for name, line in found.items()}


def relative_weights(run: Run, columns: int = MOST_COLUMNS) -> Series | None:
    """How much more than its share of the data each client weighed in each round; 1 is plain averaging.

    Where the loss is transformed on the client, the slope of the transform multiplies its gradient, so weight times
    slope is what the client's data weighed. Rounds are averaged in blocks, so that there are at most `columns`.
    None if nothing was recorded, or nobody ever weighed anything, as where every client trains alone.
    """
    weight, slope = (thinned(run, metric, columns) for metric in ("weight", "slope"))
    if weight is None:
        return None
    pull = weight.values
    if slope is not None and np.array_equal(weight.rounds, slope.rounds):
        pull = pull * slope.values
    data = np.where(np.isnan(pull), np.nan, run.shares)
    relative = _shares(pull) / _shares(data)
    return None if np.isnan(relative).all() else Series(weight.rounds, relative, weight.thinned)


def thinned(run: Run, metric: str, columns: int) -> Series | None:
    """What rounds did to clients, averaged in blocks of rounds; None if it was not recorded."""
    values = run.recorded("round", metric)
    return None if values is None else values.averaged(columns)


def _shares(values: FloatArray) -> FloatArray:
    """Rows that sum to 1; NaN where a row sums to nothing."""
    total = np.nansum(values, axis=1, keepdims=True)
    shares: FloatArray = np.divide(values, total, out=np.full_like(values, np.nan), where=total > 0)
    return shares
