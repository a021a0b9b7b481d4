r"""Who gains by joining: each client's gap to the model it would have trained alone.

Bargaining has two halves. Proportional fairness says how to share what is gained together; *individual rationality*
says that nobody agrees to less than it has alone, $u_i \ge d_i$ with the disagreement point d (paper, section 3.1). The
local-only models give d.

The gaps of all clients hold at once (Bonferroni), so a client called worse off is worse off beyond chance. The number
of clients worse off is counted under each seed; its interval is Student's over seeds. With one seed gaps are held
against the noise of the test examples, where the answers are known; else nothing is known of chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from propfair.errors import DataError
from propfair.fairness.arrays import FloatArray, matrix, vector
from propfair.fairness.evidence import difference_evidence, statistic_evidence
from propfair.fairness.intervals import Evidence, Interval, Over
from propfair.fairness.noise import Answers

_NAMED = 5  # clients in a sentence


@dataclass(frozen=True, eq=False)
class Joining:
    """What clients have together, less what each has alone.

    Attributes:
        gaps: [n], means over seeds; positive if the client gains.
        low, high: [n], limits that hold for all clients at once; NaN if nothing is known about chance.
        mean: of the gaps, one client, one vote; None if nothing is known about chance.
        num_worse: clients worse off than alone; None likewise.
        level: of the intervals.
        names: of the clients; empty if they were not given.
    """

    gaps: FloatArray
    low: FloatArray
    high: FloatArray
    mean: Interval | None
    num_worse: Interval | None
    level: float
    names: tuple[str, ...] = ()

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
        size, count = self.gaps.size, len(self.worse)
        known = bool(np.isfinite(self.low).any())
        if not count:
            sure = (
                f", {len(self.surely_better)} are better off beyond chance{self._left_out}"
                if self.surely_better
                else ""
            )
            return f"no client of {size} is worse off than alone{sure}"
        who = self.surely_worse if known else ()
        called = [self.names[k] for k in who[:_NAMED]] if self.names else []
        named = f" ({', '.join(called)}{', ...' if len(who) > _NAMED else ''})" if called else ""
        beyond = (
            f"{len(who) or 'none'} of them beyond chance{self._left_out}" if known else "nothing is known about chance"
        )
        seen, interval = "", self.num_worse
        if interval is not None and interval.over == "seeds":
            seen = (
                f"; under a seed {interval.value:.1f} on average, [{interval.low:.1f}, {interval.high:.1f}] "
                f"({100 * self.level:g} % {interval.source})"
            )
        said = f"{count} of {size} clients {'is' if count == 1 else 'are'} worse off than alone, {beyond}"
        return f"{said}{named}{seen}"

    @property
    def _left_out(self) -> str:
        """What limits over test examples alone know nothing of."""
        return f" ({self.mean.leaves_out} left out)" if self.mean is not None and self.mean.over == "examples" else ""

    def as_dict(self) -> dict[str, object]:
        """All of it as plain lists and numbers, for JSON."""
        return {
            "words": self.words,
            "clients": list(self.names),
            "gaps": self.gaps.tolist(),
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "worse": list(self.worse),
            "surely_worse": list(self.surely_worse),
            "surely_better": list(self.surely_better),
            "mean": None if self.mean is None else [self.mean.value, self.mean.low, self.mean.high],
            "num_worse": None
            if self.num_worse is None
            else [self.num_worse.value, self.num_worse.low, self.num_worse.high],
            "level": self.level,
        }


def joining(
    together: npt.ArrayLike,
    alone: npt.ArrayLike,
    *,
    sizes: npt.ArrayLike | None = None,
    answers: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    higher_is_better: bool = True,
    level: float = 0.95,
    over: Over | None = None,
    names: Sequence[str] = (),
) -> Joining:
    """Compare what clients have together with what each has alone.

    Args:
        together: [S, n] or [n], what clients get from the model trained together, one row per seed.
        alone: [S, n] or [n], what each gets from its local-only model, under the same seeds.
        sizes: [n], test examples of each client, if the values are accuracies.
        answers: together and alone, [S, N] each: which examples are answered right, those of the first client first.
        higher_is_better: False for losses.
        level: of the intervals.
        over: what intervals are drawn over; by default seeds if there are several, else examples.
        names: of the clients, [n], for the words.

    >>> joining([0.9, 0.8, 0.6], [0.6, 0.5, 0.9]).words
    '1 of 3 clients is worse off than alone, nothing is known about chance'
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

    counts = None if sizes is None else vector("sizes", sizes, count)
    known: list[Answers | None] = [None, None]
    if answers is not None and counts is not None:
        known = [Answers.of(one, counts) for one in answers]

    def evidence(name: str | int, clients: slice) -> Evidence:
        size = None if counts is None else counts[clients]
        a, b = (
            statistic_evidence(
                values[:, clients], name, sizes=size, answers=None if one is None else one.of_clients(clients)
            )
            for values, one in zip((shared, own), known, strict=True)
        )
        return difference_evidence(*((a, b) if higher_is_better else (b, a)))

    low, high = np.full(count, np.nan), np.full(count, np.nan)
    for client in range(count):
        found = evidence(0, slice(client, client + 1))  # its own column alone: there may be thousands
        drawn = found.nearest(over)
        if drawn is not None:
            interval = found.interval(drawn, level, count)
            low[client], high[client] = interval.low, interval.high
    mean = evidence("mean", slice(None))
    drawn = mean.nearest(over)
    return Joining(
        gaps=gaps.mean(axis=0),
        low=low,
        high=high,
        mean=None if drawn is None else mean.interval(drawn, level),
        num_worse=_count(gaps, level),
        level=level,
        names=tuple(names),
    )


def _count(gaps: FloatArray, level: float) -> Interval | None:
    """The number of clients worse off, with its interval over seeds."""
    if len(gaps) < 2:
        return None
    by_seed = (gaps < 0).sum(axis=1).astype(np.float64)
    return Evidence(by_seed, step=1.0, bounds=(0.0, float(gaps.shape[1]))).interval("seeds", level)
