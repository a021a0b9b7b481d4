r"""Which algorithm is ahead of which, by how much and how surely.

For a statistic over clients (mean, worst 10 %, one client, ...) every two algorithms are compared on the seeds that
both have: the difference under each seed, so that what the seed does to both drops out (the paired t-test, Student
1908). With one seed each the difference is held against the noise of the test examples.

With m pairs, intervals hold all at once at `level` (Bonferroni), and p-values are Holm's (1979): the k-th smallest of
them is multiplied by m - k + 1 and never below the one before. Both are sure of the family, however the pairs depend
on each other; Holm's finds no less than the intervals do. Algorithms with the same numbers are one.

An algorithm is *ahead* of another if Holm's p-value is below 1 - `level`. Everything that the leader is not ahead of is
marked as best.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from propfair.errors import ConfigError, DataError
from propfair.fairness.arrays import FloatArray
from propfair.fairness.evidence import Statistic, difference_evidence, statistic_evidence
from propfair.fairness.intervals import Evidence, Over
from propfair.fairness.noise import Noise
from propfair.fairness.statistics import more_is_better

Tables = Mapping[str, Mapping[int, npt.ArrayLike]]  # algorithm -> seed -> one value per client


@dataclass(frozen=True, eq=False)
class Differences:
    """All pairs of algorithms, by one statistic. Row minus column throughout.

    Attributes:
        names: of the algorithms, [G].
        statistic: what is compared: a name of `summarize`, or the position of a client.
        more_is_better: which way of the statistic is.
        values: [G], mean over the seeds of each.
        differences: [G, G], mean over the seeds that both have; NaN if there are none.
        low, high: [G, G], limits that hold all at once; NaN if nothing is known about chance.
        p_values: [G, G], Holm's; NaN likewise, 1 for an algorithm and itself.
        num_seeds: [G, G], that both have.
        over: [G][G], what each interval was drawn over, "" if there is none.
        level: of all intervals together.
    """

    names: tuple[str, ...]
    statistic: Statistic
    more_is_better: bool
    values: FloatArray
    differences: FloatArray
    low: FloatArray
    high: FloatArray
    p_values: FloatArray
    num_seeds: npt.NDArray[np.int64]
    over: tuple[tuple[str, ...], ...]
    level: float

    @property
    def ahead(self) -> npt.NDArray[np.bool_]:
        """[G, G], the row is surely better than the column."""
        better = self.differences > 0 if self.more_is_better else self.differences < 0
        surely: npt.NDArray[np.bool_] = (self.p_values < 1 - self.level) & better
        return surely

    @property
    def by_test_alone(self) -> npt.NDArray[np.bool_]:
        """[G, G], one is surely better by Holm's test, which is sharper, although the limits have 0 between them."""
        alone: npt.NDArray[np.bool_] = (self.ahead | self.ahead.T) & (self.low <= 0) & (self.high >= 0)
        return alone

    @property
    def known(self) -> bool:
        """Something is known of chance, for some pair."""
        return any(over not in ("", "nothing") for row in self.over for over in row)

    @property
    def leader(self) -> str:
        """The algorithm with the best value."""
        return self.names[int((self.values if self.more_is_better else -self.values).argmax())]

    @property
    def best(self) -> tuple[str, ...]:
        """The leader and all that are not to be told from it: everybody, if nothing is known of chance.

        Where chance is known of other pairs, and not of a pair with the leader, that one is not marked: to be behind
        by an unknown margin of error is not to be equal.
        """
        lead = self.names.index(self.leader)
        apart = self.ahead[lead] | (self.known & np.isnan(self.p_values[lead]) & (self.differences[lead] != 0))
        return tuple(name for name, is_apart in zip(self.names, apart, strict=True) if not is_apart)

    def as_dict(self) -> dict[str, object]:
        """All of it as plain lists and numbers, for JSON."""
        return {
            "statistic": self.statistic,
            "more_is_better": self.more_is_better,
            "level": self.level,
            "values": dict(zip(self.names, self.values.tolist(), strict=True)),
            "best": list(self.best),
            "pairs": [
                {
                    "first": self.names[a],
                    "second": self.names[b],
                    "difference": float(self.differences[a, b]),
                    "interval": [float(self.low[a, b]), float(self.high[a, b])],
                    "over": self.over[a][b],
                    "p_value": float(self.p_values[a, b]),
                    "num_seeds": int(self.num_seeds[a, b]),
                }
                for a, b in combinations(range(len(self.names)), 2)
            ],
        }


def compare_statistic(
    tables: Tables,
    statistic: Statistic,
    *,
    weights: npt.ArrayLike | None = None,
    sizes: npt.ArrayLike | None = None,
    answers: Tables | None = None,
    higher_is_better: bool = True,
    level: float = 0.95,
    over: Over | None = None,
) -> Differences:
    """Compare all pairs of algorithms by a statistic over clients.

    Args:
        tables: algorithm to seed to values, [n] each, of the same clients.
        statistic: a name of `summarize`, or the position of a client.
        weights: [n], for weighted statistics.
        sizes: [n], test examples of each client, if the values are accuracies.
        answers: algorithm to seed to [N], which examples are answered right, those of the first client first.
        higher_is_better: False for losses.
        level: of all intervals together.
        over: what intervals are drawn over; by default seeds where a pair has several, else examples.

    >>> first, second = {0: [0.9, 0.5], 1: [0.9, 0.6], 2: [0.8, 0.6]}, {0: [0.7, 0.4], 1: [0.7, 0.5], 2: [0.6, 0.5]}
    >>> found = compare_statistic({"A": first, "B": second}, "mean")
    >>> found.differences[0, 1].round(4), found.best
    (np.float64(0.15), ('A',))
    """
    if len(tables) < 2:
        raise ConfigError(f"a comparison needs two algorithms or more; got {len(tables)}.")
    names = tuple(tables)
    rows = [{seed: np.asarray(row, dtype=np.float64) for seed, row in table.items()} for table in tables.values()]
    if not all(rows):
        raise DataError(
            f"every algorithm needs one seed or more; {names[[bool(row) for row in rows].index(False)]} has none."
        )

    whole = [
        statistic_evidence(
            np.stack(list(row.values())), statistic, weights=weights, sizes=sizes,
            answers=None if answers is None else np.stack([np.asarray(answers[name][seed]) for seed in row]),
            higher_is_better=higher_is_better,
        )
        for name, row in zip(names, rows, strict=True)
    ]  # fmt: skip
    pairs = {}
    for a, b in combinations(range(len(names)), 2):
        first, second = _paired_seeds(rows[a], rows[b])
        if first:
            matched = zip(first, second, strict=True)
            same = all(np.array_equal(rows[a][s], rows[b][t], equal_nan=True) for s, t in matched)
            ends = _chosen(whole[a], list(rows[a]), first), _chosen(whole[b], list(rows[b]), second)
            pairs[a, b] = difference_evidence(*ends, same=same)
    return _matrix(
        names, statistic, more_is_better(str(statistic), higher_is_better=higher_is_better), whole, pairs, level, over
    )


def holm(p_values: npt.ArrayLike) -> FloatArray:
    """Holm's adjustment of p-values (1979).

    >>> holm([0.01, 0.04, 0.03]).round(2).tolist()
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    raised = np.maximum.accumulate(p[order] * (p.size - np.arange(p.size)))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(raised, 1.0)
    return adjusted


def _chosen(evidence: Evidence, seeds: list[int], chosen: list[int]) -> Evidence:
    """The evidence of some of the seeds; the variance over test examples is that of all."""
    rows = [seeds.index(seed) for seed in chosen]
    answers = None if evidence.answers is None else evidence.answers.chosen(rows)
    noise = None if evidence.find_noise is None else (lambda: evidence.noise.chosen(rows))
    return dataclasses.replace(evidence, by_seed=evidence.by_seed[rows], find_noise=noise, answers=answers)


def _paired_seeds(a: Mapping[int, FloatArray], b: Mapping[int, FloatArray]) -> tuple[list[int], list[int]]:
    """The seeds that both have; one and one if each has but one."""
    common = [seed for seed in a if seed in b]
    return (list(a), list(b)) if not common and len(a) == len(b) == 1 else (common, common)


def _matrix(
    names: tuple[str, ...], statistic: Statistic, more: bool, whole: list[Evidence],
    pairs: dict[tuple[int, int], Evidence], level: float, over: Over | None,
) -> Differences:  # fmt: skip
    size = len(names)
    differences, low, high, p_values = (np.full((size, size), np.nan) for _ in range(4))
    num_seeds = np.zeros((size, size), dtype=np.int64)
    overs = [[""] * size for _ in names]
    keys = {pair: _key(found) for pair, found in pairs.items() if found.same or found.nearest(over) is not None}
    first = {key: pair for pair, key in reversed(keys.items()) if not pairs[pair].same}
    raised = dict(
        zip(
            first,
            holm([pairs[pair].p_value(pairs[pair].nearest(over)) for pair in first.values()]).tolist(),
            strict=True,
        )
    )
    for (a, b), found in pairs.items():
        differences[a, b], differences[b, a] = found.value, -found.value
        num_seeds[a, b] = num_seeds[b, a] = found.num_seeds
        if (a, b) in keys:
            interval = found.interval("nothing" if found.same else found.nearest(over), level, max(1, len(first)))
            low[a, b], high[a, b], low[b, a], high[b, a] = interval.low, interval.high, -interval.high, -interval.low
            p_values[a, b] = p_values[b, a] = 1.0 if found.same else raised[keys[a, b]]
            overs[a][b] = overs[b][a] = interval.over
    for a in range(size):
        differences[a, a] = low[a, a] = high[a, a] = 0.0
        p_values[a, a], num_seeds[a, a] = 1.0, whole[a].num_seeds
    values = np.array([found.value for found in whole])
    return Differences(
        names, statistic, more, values, differences, low, high, p_values, num_seeds,
        tuple(tuple(row) for row in overs), level,
    )  # fmt: skip


def _key(found: Evidence) -> tuple[bytes, Noise | None]:
    """The same for pairs with the same numbers, in whichever order."""
    noise = None if found.find_noise is None else (lambda: found.noise.mirrored)
    mirrored = Evidence(0.0 - found.by_seed, find_noise=noise)
    there = Evidence(found.by_seed + 0.0, find_noise=found.find_noise)  # + 0.0: no -0.0
    return max(there.key, mirrored.key, key=lambda key: key[0])
