"""What a trial shows, said in sentences. How we talk about fairness: docs/fairness-language.md."""

from propfair.fairness.statistics import MeanStd
from propfair.report.groups import Group, Measure, Trial


def headline(trial: Trial, measure: Measure) -> list[str]:
    """Who serves the worst-off best, and what that costs the average client. Empty while there is nothing to say."""
    groups = [group for group in trial.groups if group.has(measure)]
    if not groups:
        return []
    numbers = {group.label: group.statistics(measure) for group in groups}
    if len(groups) == 1:
        return [_one(groups[0], measure, numbers[groups[0].label])]
    sign = 1 if measure.higher_is_better else -1
    fairest = max(groups, key=lambda group: sign * numbers[group.label]["worst10"].mean).label
    strongest = max(groups, key=lambda group: sign * numbers[group.label]["mean"].mean).label
    worst, mean = (lambda label: numbers[label]["worst10"]), (lambda label: numbers[label]["mean"])
    if fairest == strongest:
        others = [group.label for group in groups if group.label != fairest]
        second = max(others, key=lambda label: sign * worst(label).mean)
        return [
            f"{fairest} serves the worst 10 % of clients best: {_said(worst(fairest), measure)} {measure.metric}, against "
            f"{_said(worst(second), measure)} under {second}, the next best{_doubt(worst(fairest), worst(second))}.",
            f"It costs the average client nothing here: its mean, {_said(mean(fairest), measure)}, is the best as well.",
        ]
    return [
        f"{fairest} serves the worst 10 % of clients best: {_said(worst(fairest), measure)} {measure.metric}, against "
        f"{_said(worst(strongest), measure)} under {strongest}, which has the best mean"
        f"{_doubt(worst(fairest), worst(strongest))}.",
        f"What it costs: {_gap(mean(strongest), mean(fairest), measure)} of the mean, {_said(mean(fairest), measure)} "
        f"instead of {_said(mean(strongest), measure)}{_doubt(mean(fairest), mean(strongest))}.",
    ]


def _one(group: Group, measure: Measure, numbers: dict[str, MeanStd]) -> str:
    return (
        f"{group.label} serves the average client with {_said(numbers['mean'], measure)} {measure.metric} and the worst "
        f"10 % of clients with {_said(numbers['worst10'], measure)}. A second run on the same clients would show what "
        "is possible."
    )


def _said(value: MeanStd, measure: Measure) -> str:
    return f"{100 * value.mean:.1f} %" if measure.higher_is_better else f"{value.mean:.3f}"


def _gap(a: MeanStd, b: MeanStd, measure: Measure) -> str:
    gap = abs(a.mean - b.mean)
    return f"{100 * gap:.1f} points" if measure.higher_is_better else f"{gap:.3f}"


def _doubt(a: MeanStd, b: MeanStd) -> str:
    """A difference below the spread over seeds is no finding."""
    if a.num_seeds < 2 or b.num_seeds < 2:
        return " (one seed: no spread is known)"
    return " (less than the spread over seeds)" if abs(a.mean - b.mean) < max(a.std, b.std) else ""
