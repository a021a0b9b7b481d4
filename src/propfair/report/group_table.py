"""A table of algorithms by statistics: the numbers. How they are written: `propfair.report.table_files`.

Seeds are pooled: first a statistic over clients, then mean and spread over seeds. "Best" is everything that is not
distinguishable from the best (`propfair.runs.standing.differences`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from propfair.errors import ConfigError
from propfair.fairness.differences import Differences
from propfair.fairness.intervals import Over
from propfair.fairness.statistics import STATISTICS
from propfair.report.tables import finite
from propfair.runs.cautions import unsettled
from propfair.runs.grouping import Comparison, Group
from propfair.runs.measures import ACCURACY, Measure
from propfair.runs.standing import differences, group_evidence

DEFAULT = ("mean", "worst10", "nash_welfare", "std")
_PLAIN = frozenset({"jain", "gini", "entropy", "cosine", "variance_of_percent"})  # no percentages


@dataclass(frozen=True)
class Cell:
    """One number of the table, a fraction if it is an accuracy.

    Attributes:
        mean: over seeds; NaN if it is undefined.
        population_std, sample_std: over seeds; NaN for one seed.
        low, high: limits of the interval; NaN if nothing is known about chance.
        over: what the interval was drawn over; "" if there is none.
        num_seeds: how many.
        best: not distinguishable from the best of its column; nothing is where nothing is known of chance.
    """

    mean: float
    population_std: float
    sample_std: float
    low: float
    high: float
    over: str
    num_seeds: int
    best: bool


@dataclass(frozen=True)
class GroupTable:
    """Algorithms by statistics.

    Attributes:
        title: the data set and how many clients.
        measure: what every client has.
        statistics: the columns.
        labels: the rows.
        cells: [row][column].
        differences: all pairs of algorithms by each statistic; None where there are no two with a value.
        level: of the intervals, and of "best".
        cautions: what is not settled about the runs, beside few seeds, in sentences.
    """

    title: str
    measure: Measure
    statistics: tuple[str, ...]
    labels: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    differences: tuple[Differences | None, ...]
    level: float
    cautions: tuple[str, ...] = ()

    @property
    def is_percent(self) -> bool:
        """Numbers are shown in percent."""
        return self.measure.metric == "accuracy"

    def scale(self, statistic: str) -> float:
        """What a number is multiplied with to be shown."""
        return 100.0 if self.is_percent and statistic not in _PLAIN else 1.0

    def as_dict(self) -> dict[str, Any]:
        """All numbers, as they are: fractions for accuracies."""
        return {
            "title": self.title,
            "measure": self.measure.key,
            "higher_is_better": self.measure.higher_is_better,
            "level": self.level,
            "algorithms": [
                {
                    "algorithm": label,
                    "statistics": {
                        name: finite(dict(vars(cell))) for name, cell in zip(self.statistics, row, strict=True)
                    },
                }
                for label, row in zip(self.labels, self.cells, strict=True)
            ],
            "differences": [finite(found.as_dict()) for found in self.differences if found is not None],
            "cautions": list(self.cautions),
        }


def group_table(
    comparison: Comparison,
    statistics: Sequence[str] = DEFAULT,
    measure: Measure = ACCURACY,
    *,
    level: float = 0.95,
    over: Over | None = None,
) -> GroupTable:
    """The table of all groups of a comparison that have the measure.

    Args:
        comparison: groups of runs on the same clients.
        statistics: names of `summarize`; of losses and errors there is no Nash welfare, and it is left out.
        measure: what every client has.
        level: of the intervals.
        over: what intervals are drawn over; by default seeds where there are several, else test examples.
    """
    unknown = [name for name in statistics if name not in STATISTICS]
    if unknown or not statistics:
        raise ConfigError(
            f"there is no statistic {unknown[0] if unknown else ''!r}. There are: {', '.join(STATISTICS)}."
        )
    if measure.higher is None:  # a metric of one's own: the runs know which way is up, its name does not
        measure = next((one for one in comparison.measures if one == measure), measure)
    groups = [group for group in comparison.groups if group.has(measure)]
    if not groups:
        known = ", ".join(one.key for one in comparison.measures) or "nothing"
        raise ConfigError(
            f"no run on {comparison.title} has a {measure.label.strip()}; there is: {known}. "
            "Choose one with --measure, or give runs on other clients apart."
        )
    if not measure.higher_is_better:
        statistics = [name for name in statistics if "nash" not in name] or statistics
    columns, compared = [], []
    for name in statistics:
        defined = [group for group in groups if math.isfinite(group.statistics(measure)[name].mean)]
        found = differences(defined, name, measure, level=level, over=over) if len(defined) > 1 else None
        best = found.best if found is not None and found.known else ()
        columns.append([_cell(group, name, measure, level, over, group.label in best) for group in groups])
        compared.append(found)
    return GroupTable(
        title=comparison.title,
        measure=measure,
        statistics=tuple(statistics),
        labels=tuple(group.label for group in groups),
        cells=tuple(zip(*columns, strict=True)),
        differences=tuple(compared),
        level=level,
        cautions=tuple(unsettled(groups)),
    )


def _cell(group: Group, name: str, measure: Measure, level: float, over: Over | None, best: bool) -> Cell:
    number, sample = (group.statistics(measure, ddof)[name] for ddof in (0, 1))
    interval = None
    if math.isfinite(number.mean):
        evidence = group_evidence(group, name, measure)
        known = evidence.nearest(over)
        interval = None if known is None else evidence.interval(known, level)
    return Cell(
        mean=number.mean,
        population_std=number.std if number.num_seeds > 1 else math.nan,
        sample_std=sample.std,
        low=math.nan if interval is None else interval.low,
        high=math.nan if interval is None else interval.high,
        over="" if interval is None else interval.over,
        num_seeds=number.num_seeds,
        best=best,
    )
