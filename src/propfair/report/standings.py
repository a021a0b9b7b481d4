"""Who is ahead of whom, and who gains by joining, as JSON values for the page."""

import math
from collections.abc import Sequence
from typing import Any

from propfair.fairness.arrays import FloatArray
from propfair.runs.grouping import Comparison, Group
from propfair.runs.measures import Measure
from propfair.runs.standing import alone_among, differences, joined

# What the page compares all pairs by.
COMPARED = ("mean", "worst10", "worst", "nash_welfare", "std", "best10", "jain", "gini")
MOST_GROUPS = 24  # of more there are too many pairs to be read


def standing_document(comparison: Comparison, measure: Measure) -> dict[str, Any] | str:
    """All pairs of groups, by each statistic: positions are those of the comparison. Or why there are none."""
    groups = [group for group in comparison.groups if group.has(measure)]
    if len(groups) < 2:
        return "There is one run, and nothing to compare it with."
    if len(groups) > MOST_GROUPS:
        return f"{len(groups)} settings have too many pairs to be compared at once; make a report of fewer."
    means = [{name: over.mean for name, over in group.statistics(measure).items()} for group in groups]
    found = {
        name: _pairs(
            comparison, [g for g, own in zip(groups, means, strict=True) if math.isfinite(own[name])], name, measure
        )
        for name in COMPARED
    }
    known = {name: pairs for name, pairs in found.items() if pairs is not None}
    return known or f"The runs have no {measure.label} that could be compared."


def joining_document(comparison: Comparison, measure: Measure) -> dict[str, Any] | None:
    """The gap of every client to its local-only model, under each group; None without local-only models."""
    alone = alone_among(comparison.groups)
    if alone is None:
        return None
    found = joined(comparison.groups, alone, measure)
    places = {name: position for position, name in enumerate(comparison.clients.names)}
    return {
        "alone": comparison.groups.index(alone),
        "groups": [
            {
                "group": comparison.groups.index(group),
                "words": gain.words,
                "clients": [places[name] for name in gain.names],
                "gaps": numbers(gain.gaps),
                "low": numbers(gain.low),
                "high": numbers(gain.high),
            }
            for group, gain in found
        ],
    }


def numbers(values: FloatArray) -> list[float | None]:
    """Six digits are more than a screen shows; null is not known, or infinite."""
    return [number(value) for value in values.tolist()]


def number(value: float) -> float | None:
    """As `numbers`, for one."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _pairs(comparison: Comparison, defined: Sequence[Group], name: str, measure: Measure) -> dict[str, Any] | None:
    if len(defined) < 2:
        return None
    found = differences(defined, name, measure)
    places = {group.label: position for position, group in enumerate(comparison.groups)}
    return {
        "groups": [places[label] for label in found.names],
        "better": found.more_is_better,
        "best": [places[label] for label in found.best],
        "known": found.known,
        "differences": [numbers(row) for row in found.differences],
        "low": [numbers(row) for row in found.low],
        "high": [numbers(row) for row in found.high],
        "p": [numbers(row) for row in found.p_values],
        "ahead": found.ahead.tolist(),
        "over": [list(row) for row in found.over],
        "seeds": found.num_seeds.tolist(),
    }
