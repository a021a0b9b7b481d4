"""What a comparison shows, said in sentences. How we talk about fairness: docs/fairness-language.md."""

from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal

from propfair.fairness.statistics import MeanStd
from propfair.runs.grouping import Comparison
from propfair.runs.measures import Measure


def headline(comparison: Comparison, measure: Measure) -> list[str]:
    """Who serves the worst-off best, and what that costs the average client. Empty while there is nothing to say."""
    groups = {group.label: group.statistics(measure) for group in comparison.groups if group.has(measure)}
    if not groups:
        return []
    if len(groups) == 1:
        return [_one(*groups.popitem(), measure)]
    worst = {label: numbers["worst10"] for label, numbers in groups.items()}
    mean = {label: numbers["mean"] for label, numbers in groups.items()}
    fairest, strongest = _best(worst, measure), _best(mean, measure)
    both = fairest == strongest
    rival = _best({label: value for label, value in worst.items() if label != fairest}, measure) if both else strongest
    first = (
        f"{fairest} serves the worst 10 % of clients best: {_said(worst[fairest], measure)} {measure.metric}, against "
        f"{_said(worst[rival], measure)} under {rival}, {'the next best' if both else 'which has the best mean'}"
        f"{_doubt(worst[fairest], worst[rival])}."
    )
    if both:
        return [
            first,
            f"It costs the average client nothing: its mean, {_said(mean[fairest], measure)}, is the best too.",
        ]
    return [
        first,
        f"What it costs: {_gap(mean[strongest], mean[fairest], measure)} of the mean, {_said(mean[fairest], measure)} "
        f"instead of {_said(mean[strongest], measure)}{_doubt(mean[fairest], mean[strongest])}.",
    ]


def _best(values: Mapping[str, MeanStd], measure: Measure) -> str:
    sign = 1 if measure.higher_is_better else -1
    return max(values, key=lambda label: sign * values[label].mean)


def _one(label: str, numbers: Mapping[str, MeanStd], measure: Measure) -> str:
    return (
        f"{label} serves the average client with {_said(numbers['mean'], measure)} {measure.metric} and the worst 10 % "
        f"of clients with {_said(numbers['worst10'], measure)}. A second run on the same clients would show what is "
        "possible."
    )


def _said(value: MeanStd, measure: Measure) -> str:
    return f"{fixed(100 * value.mean, 1)} %" if measure.higher_is_better else fixed(value.mean, 3)


def _gap(a: MeanStd, b: MeanStd, measure: Measure) -> str:
    gap = abs(a.mean - b.mean)
    return f"{fixed(100 * gap, 1)} points" if measure.higher_is_better else fixed(gap, 3)


def fixed(value: float, digits: int) -> str:
    """As the tables of the page, drawn by JavaScript, round: ties away from zero, where Python takes the even digit.

    >>> fixed(59.25, 1), f"{59.25:.1f}"
    ('59.3', '59.2')
    """
    if not abs(value) < 1e21:  # there JavaScript changes to powers of ten, too
        return f"{value:g}"
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def _doubt(a: MeanStd, b: MeanStd) -> str:
    """A difference below the spread over seeds is no finding."""
    if a.num_seeds < 2 or b.num_seeds < 2:
        return " (one seed: no spread is known)"
    return " (less than the spread over seeds)" if abs(a.mean - b.mean) < max(a.std, b.std) else ""
