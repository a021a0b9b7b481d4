r"""Who gains by joining: each client's gap to the model it would have trained alone.

Bargaining has two halves. Proportional fairness says how to share what is gained together; *individual rationality*
says that nobody agrees to less than it has alone, $u_i \ge d_i$ with the disagreement point d (paper, section 3.1). The
local-only models give d.

The gaps of all clients hold at once (Bonferroni), so a client called worse off is worse off beyond chance. The number
of clients worse off is counted under each seed; its interval is Student's over seeds. With one seed it goes from the
clients that are worse off for sure to all but those that are better off for sure.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from propfair.errors import DataError
from propfair.fairness.arrays import FloatArray, matrix
from propfair.fairness.evidence import difference_evidence, statistic_evidence
from propfair.fairness.intervals import Evidence, Interval, Over


@dataclass(frozen=True, eq=False)
class Joining:
    """What clients have together, less what each has alone.

    Attributes:
        gaps: [n], means over seeds; positive if the client gains.
        low, high: [n], limits that hold for all clients at once; NaN if nothing is known about chance.
        mean: of the gaps, one client, one vote; None if nothing is known about chance.
        num_worse: clients worse off than alone; None likewise.
        level: of the intervals.
    """

    gaps: FloatArray
    low: FloatArray
    high: FloatArray
    mean: Interval | None
    num_worse: Interval | None
    level: float

    @property
    def worse(self) -> tuple[int, ...]:
        """Positions of the clients that are worse off, on average over seeds."""
        return tuple(np.flatnonzero(self.gaps < 0).tolist())

    @property
    def surely_worse(self) -> tuple[int, ...]:
        """Positions of the clients that are worse off beyond chance."""
        return tuple(np.flatnonzero(self.high < 0).tolist())

    @property
    def surely_better(self) -> tuple[int, ...]:
        """Positions of the clients that are better off beyond chance."""
        return tuple(np.flatnonzero(self.low > 0).tolist())

    @property
    def words(self) -> str:
        """The result as a sentence."""
        size = self.gaps.size
        sure = f"{len(self.surely_worse)} of them" if self.surely_worse else "none of them"
        beyond = f"{sure} beyond chance" if self.num_worse is not None else "nothing is known about chance"
        if not self.worse:
            return f"no client of {size} is worse off than alone"
        count = len(self.worse)
        interval = self.num_worse
        seen = (
            ""
            if interval is None or interval.over != "seeds"
            else (
                f"; under a seed {interval.value:.1f} on average, [{interval.low:.1f}, {interval.high:.1f}] "
                f"({100 * self.level:g} % {interval.source})"
            )
        )
        return f"{count} of {size} clients {'is' if count == 1 else 'are'} worse off than alone, {beyond}{seen}"


def joining(
    together: npt.ArrayLike,
    alone: npt.ArrayLike,
    *,
    sizes: npt.ArrayLike | None = None,
    higher_is_better: bool = True,
    level: float = 0.95,
    over: Over | None = None,
) -> Joining:
    """Compare what clients have together with what each has alone.

    Args:
        together: [S, n] or [n], what clients get from the model trained together, one row per seed.
        alone: [S, n] or [n], what each gets from its local-only model, under the same seeds.
        sizes: [n], test examples of each client, if the values are accuracies.
        higher_is_better: False for losses.
        level: of the intervals.
        over: what intervals are drawn over; by default seeds if there are several, else examples.

    >>> joining([0.9, 0.8, 0.6], [0.6, 0.5, 0.9], sizes=[100, 100, 100]).words
    '1 of 3 clients is worse off than alone, 1 of them beyond chance'
    """
    own = matrix("alone", alone)
    shared = matrix("together", together, own.shape[1])
    if len(own) != len(shared):
        raise DataError(
            f"together and alone must have one row for each of the same seeds; got {len(shared)} and {len(own)} rows."
        )
    sign = 1.0 if higher_is_better else -1.0
    count = own.shape[1]
    gaps = sign * (shared - own)

    def evidence(name: str | int) -> Evidence:
        a, b = (statistic_evidence(values, name, sizes=sizes) for values in (shared, own))
        return difference_evidence(*((a, b) if higher_is_better else (b, a)))

    known = over or evidence("mean").over
    low, high = np.full(count, np.nan), np.full(count, np.nan)
    if known is not None:
        for client in range(count):
            interval = evidence(client).interval(known, level, count)
            low[client], high[client] = interval.low, interval.high
    mean = None if known is None else evidence("mean").interval(known, level)
    result = Joining(gaps.mean(axis=0), low, high, mean, None, level)
    return Joining(result.gaps, low, high, mean, _count(gaps, result, known, level), level)


def _count(gaps: FloatArray, found: Joining, over: Over | None, level: float) -> Interval | None:
    """The number of clients worse off, with its interval."""
    by_seed = (gaps < 0).sum(axis=1).astype(np.float64)
    if over is None:
        return None
    if len(gaps) > 1:
        return Evidence(by_seed, step=1.0, bounds=(0.0, float(gaps.shape[1]))).interval("seeds", level)
    least, most = len(found.surely_worse), gaps.shape[1] - len(found.surely_better)
    return Interval(float(by_seed[0]), float(least), float(most), level, over, 1, gaps.shape[1])
