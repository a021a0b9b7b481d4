"""A grid that grows: while the best learning rate is the smallest or the largest tried, the next one is tried too.

Which points are wanted follows from what is in the storage, so any number of processes, now or later, see the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from propfair.tuning.claims import Standing
from propfair.tuning.search import Range, Tunable, Value

RATE = "local.lr"

Point = dict[str, Value]


def further_rates(rates: Sequence[float], count: int) -> tuple[list[float], list[float]]:
    """`count` rates below the smallest and above the largest, the nearest first, in the steps of the grid's ends.

    >>> further_rates([0.05, 0.1, 0.2], 2)
    ([0.025, 0.0125], [0.4, 0.8])
    """
    ordered = sorted(rates)
    down, up = ordered[0] / ordered[1], ordered[-1] / ordered[-2]
    return (
        [float(f"{ordered[0] * down**step:.3g}") for step in range(1, count + 1)],
        [float(f"{ordered[-1] * up**step:.3g}") for step in range(1, count + 1)],
    )


def reachable(contestant: Tunable, count: int) -> Tunable:
    """The contestant with all learning rates that may come to be tried; itself if its grid can't grow."""
    rates = _rates(contestant)
    if not count or len(rates) < 2:
        return contestant
    below, above = further_rates(rates, count)
    return replace(contestant, choices={**contestant.choices, RATE: (*rates, *below, *above)})


def all_points(contestant: Tunable, count: int) -> list[Point]:
    """The grid, and behind it what lies beyond its ends: the number of a point never changes."""
    grid = contestant.grid()
    known = {tuple(point.items()) for point in grid}
    return grid + [point for point in reachable(contestant, count).grid() if tuple(point.items()) not in known]


def wanted(contestant: Tunable, count: int, standings: Sequence[Standing]) -> list[int]:
    """The numbers of the points to try, by what came of those that were tried: the grid, and as much beyond as needed.

    Once all that are wanted have ended, and the best has the smallest or the largest rate so far, the next rate is
    wanted too, with the best one's other values.
    """
    size, points = len(contestant.grid()), all_points(contestant, count)
    found = list(range(min(size, len(standings))))
    while len(points) > size and found and all(standings[number].ended for number in found):
        best = best_point(found, standings)
        if best is None:
            break
        rates = sorted({float(points[number][RATE]) for number in found})
        below, above = further_rates(_rates(contestant), count)
        mine = points[best][RATE]
        side = below if mine == rates[0] else above if mine == rates[-1] else []
        after = [rate for rate in side if rate not in rates]
        if not after:
            break
        found.append(points.index({**points[best], RATE: after[0]}))
    return found


def best_point(numbers: Sequence[int], standings: Sequence[Standing]) -> int | None:
    """Of the points that are done the one with the highest value, of equal ones the first."""
    values = {
        number: trial.value
        for number in numbers
        if standings[number].state == "done"
        and (trial := standings[number].trial) is not None
        and trial.value is not None
    }
    return max(values, key=lambda number: (values[number], -number)) if values else None


def tried(contestant: Tunable, points: Sequence[Mapping[str, Value]]) -> Tunable:
    """The contestant with the learning rates that were wanted of it."""
    rates = tuple(dict.fromkeys(point[RATE] for point in points)) if _rates(contestant) else ()
    return replace(contestant, choices={**contestant.choices, RATE: rates}) if rates else contestant


def _rates(contestant: Tunable) -> tuple[float, ...]:
    """The learning rates of a grid that can grow: by the ratios at its ends, which a rate of 0 has none of."""
    values = contestant.choices.get(RATE, ())
    if isinstance(values, Range) or any(float(value) <= 0 for value in values):
        return ()
    return tuple(float(value) for value in values)
