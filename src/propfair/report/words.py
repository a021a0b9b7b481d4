"""What a comparison shows, said in sentences. How we talk about fairness: docs/fairness-language.md."""

import math
from decimal import ROUND_HALF_UP, Decimal

from propfair.fairness.differences import Differences
from propfair.runs.grouping import Comparison
from propfair.runs.measures import Measure
from propfair.runs.standing import differences

_NAMED = 3  # of groups that are alike; more are counted


def headline(comparison: Comparison, measure: Measure) -> list[str]:
    """Who serves the worst-off best, and what that costs the average client. Empty while there is nothing to say.

    What may be chance is called so: differences are those of `propfair.runs.standing.differences`.
    """
    groups = [group for group in comparison.groups if group.has(measure)]
    if not groups:
        return []
    if len(groups) == 1:
        numbers = groups[0].statistics(measure)
        return [
            f"{groups[0].label} serves the average client with {_shown(numbers['mean'].mean, measure)} {measure.metric}"
            f" and the worst 10 % of clients with {_shown(numbers['worst10'].mean, measure)}. A second run on the same "
            "clients would show what is possible."
        ]
    if not all(math.isfinite(group.statistics(measure)[name].mean) for group in groups for name in ("worst10", "mean")):
        return [f"Some runs have a {measure.label} beyond all numbers, and can't be compared."]
    worst, mean = (differences(groups, statistic, measure) for statistic in ("worst10", "mean"))
    alike, strongest = _leaders(worst), mean.leader
    if strongest in alike and len(alike) > 1:
        # None of them serves the worst-off best, and the first of them may be the worst on average.
        return [
            f"{_listed(alike)} serve the worst 10 % of clients alike, and none better: "
            f"{_value(worst, strongest, measure)} {measure.metric}.",
            f"{strongest} serves the average client best: {_value(mean, strongest, measure)}, against "
            f"{_value(mean, _next(mean), measure)} under {_next(mean)}, the next best"
            f"{_doubt(mean, strongest, _next(mean), measure)}.",
        ]
    fairest = max(alike, key=lambda label: _sign(mean) * mean.values[mean.names.index(label)])
    both = fairest == strongest
    rival = _next(worst) if both else strongest
    first = (
        f"{fairest} serves the worst 10 % of clients best: {_value(worst, fairest, measure)} {measure.metric}, against "
        f"{_value(worst, rival, measure)} under {rival}, {'the next best' if both else 'which has the best mean'}"
        f"{_doubt(worst, fairest, rival, measure)}."
    )
    if both:
        doubt = _doubt(mean, fairest, _next(mean), measure)
        best = f"its mean, {_value(mean, fairest, measure)}, is the best too{doubt}."
        return [first, f"It costs the average client nothing: {best}"]
    return [
        first,
        f"What it costs: {_gap(mean, strongest, fairest, measure)} of the mean, {_value(mean, fairest, measure)} "
        f"instead of {_value(mean, strongest, measure)}{_doubt(mean, strongest, fairest, measure)}.",
    ]


def _sign(found: Differences) -> int:
    return 1 if found.more_is_better else -1


def _leaders(found: Differences) -> list[str]:
    """The leader, and all that have the same number."""
    best = float(found.values[found.names.index(found.leader)])
    same = (math.isclose(value, best, rel_tol=1e-9, abs_tol=1e-12) for value in found.values.tolist())
    return [name for name, is_same in zip(found.names, same, strict=True) if is_same]


def _listed(labels: list[str]) -> str:
    """A, b and c; of many the first three."""
    if len(labels) > _NAMED:
        return f"{', '.join(labels[:_NAMED])} and {len(labels) - _NAMED} more"
    return f"{', '.join(labels[:-1])} and {labels[-1]}"


def _next(found: Differences) -> str:
    """The best but for the leader."""
    others = {
        name: _sign(found) * value
        for name, value in zip(found.names, found.values, strict=True)
        if name != found.leader
    }
    return max(others, key=lambda name: others[name])


def _value(found: Differences, label: str, measure: Measure) -> str:
    return _shown(float(found.values[found.names.index(label)]), measure)


def _gap(found: Differences, first: str, second: str, measure: Measure) -> str:
    a, b = (float(found.values[found.names.index(label)]) for label in (first, second))
    return f"{fixed(100 * abs(a - b), 1)} points" if measure.metric == "accuracy" else fixed(abs(a - b), 3)


def _shown(value: float, measure: Measure) -> str:
    return f"{fixed(100 * value, 1)} %" if measure.metric == "accuracy" else fixed(value, 3)


def _doubt(found: Differences, first: str, second: str, measure: Measure) -> str:
    """Whether a difference may be chance, with its interval."""
    a, b = found.names.index(first), found.names.index(second)
    if not found.over[a][b]:
        return " (which may be chance: nothing is known of that)"
    scale, digits = (100, 1) if measure.metric == "accuracy" else (1, 3)
    low, high = (fixed(scale * float(limit[a, b]), digits) for limit in (found.low, found.high))
    over = "test examples, other seeds left out" if found.over[a][b] == "examples" else f"{found.num_seeds[a, b]} seeds"
    beyond = "beyond chance" if found.ahead[a, b] else "which may be chance"
    if found.by_test_alone[a, b]:
        p = f"p = {found.p_values[a, b]:.2g}"
        return f" (beyond chance by Holm's test, {p}; limits for all pairs at once: {low} to {high}, 95 % over {over})"
    return f" ({beyond}: the difference is {low} to {high}, 95 % over {over})"


def fixed(value: float, digits: int) -> str:
    """As the tables of the page, drawn by JavaScript, round: ties away from zero, where Python takes the even digit.

    >>> fixed(59.25, 1), f"{59.25:.1f}"
    ('59.3', '59.2')
    """
    if not abs(value) < 1e21:  # there JavaScript changes to powers of ten, too
        return f"{value:g}"
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))
