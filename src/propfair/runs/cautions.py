"""What a reader of a comparison should know before believing it: moving runs, idle rules, and too few seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from propfair.runs.grouping import Group
from propfair.runs.run import Run

ENOUGH_SEEDS = 3
_AT_REST = 0.01  # of accuracy: a point; of other metrics: of the value reached
_TOO_MUCH = 0.05  # of the same: what is uncertain by more tells nothing
_LEAST_EVALUATIONS = 3  # in the second half of a run, to see a trend


@dataclass(frozen=True)
class Trend:
    """Where the mean over clients is going at the end of a run, by the line through its second half.

    Attributes:
        change: in the last quarter of the rounds; of accuracy as a fraction, of others relative to the last value.
        error: standard error of that.
        metric: which.
    """

    change: float
    error: float
    metric: str

    @property
    def at_rest(self) -> bool:
        """It moves by no more than a hundredth, or no more than twice its error."""
        return abs(self.change) <= max(_AT_REST, 2 * self.error)

    @property
    def swings(self) -> bool:
        """Its error is so large that a slow movement could not be seen."""
        return 2 * self.error > _TOO_MUCH

    @property
    def unit(self) -> str:
        return "points" if self.metric == "accuracy" else f"% of its {self.metric}"


def trend(run: Run) -> Trend | None:
    """The trend of the most telling measure that was evaluated on the way; None if it was evaluated too seldom."""
    for measure in run.measures:
        series = run.measured(measure)
        if series is None:
            continue
        late = series.rounds > run.status.rounds / 2
        if late.sum() < _LEAST_EVALUATIONS:
            continue
        rounds = series.rounds[late] / run.status.rounds
        means = np.nanmean(series.values[late], axis=1)
        centred = rounds - rounds.mean()
        slope = float(centred @ means / (centred @ centred))
        rest = means - means.mean() - slope * centred
        error = float(np.sqrt(rest @ rest / max(1, len(rounds) - 2) / (centred @ centred)))
        scale = 1.0 if measure.metric == "accuracy" else max(abs(float(means[-1])), np.finfo(float).tiny)
        return Trend(slope / 4 / scale, error / 4 / scale, measure.metric)
    return None


def cautions(groups: Sequence[Group]) -> list[str]:
    """Sentences on what is not settled about these runs; none if nothing is."""
    return [*few_seeds(groups), *unsettled(groups)]


def unsettled(groups: Sequence[Group]) -> list[str]:
    """What is not settled, beside how many seeds there are."""
    return [*not_finished(groups), *diverging(groups), *not_at_rest(groups), *past_the_threshold(groups)]


def few_seeds(groups: Sequence[Group]) -> list[str]:
    """Whose differences may be chance, in a sentence."""
    few = {group.label: len(group.by_seed) for group in groups if len(group.by_seed) < ENOUGH_SEEDS}
    said = _listed([f"{label} ({count})" for label, count in few.items()])
    return [f"Fewer than {ENOUGH_SEEDS} seeds: {said}; differences may be chance."] if few else []


def not_finished(groups: Sequence[Group]) -> list[str]:
    """Whose numbers are of an earlier round than was asked for, in a sentence."""
    broken = []
    for group in groups:
        states = [run.status.state for run in group.runs if run.status.state != "finished"]
        if states:
            broken.append(
                f"{group.label} ({len(states)} of {len(group.runs)} runs: {', '.join(dict.fromkeys(states))})"
            )
    return [f"Not at their ends: {_listed(broken)}; their numbers are those of the last evaluation."] if broken else []


def diverging(groups: Sequence[Group]) -> list[str]:
    """In whose runs clients diverged and were left out of rounds, in a sentence."""
    left_out = {group.label: sum(run.num_dropped for run in group.runs) for group in groups}
    said = _listed([f"{label} ({count} in all)" for label, count in left_out.items() if count])
    return [f"Clients diverged and were left out of rounds: {said}."] if said else []


def not_at_rest(groups: Sequence[Group]) -> list[str]:
    """Whose means still move at the end of training, or go up and down too much to tell, in sentences."""
    moving, swinging = [], []
    for group in groups:
        trends = [one for one in map(trend, group.runs) if one is not None]
        rising = [one for one in trends if not one.at_rest]
        restless = [one for one in trends if one.swings]
        if 2 * len(rising) > len(group.runs):
            change = 100 * float(np.median([one.change for one in rising]))
            moving.append(f"{group.label} ({change:+.1f} {rising[0].unit} in the last quarter)")
        elif 2 * len(restless) > len(group.runs):
            error = 100 * float(np.median([2 * one.error for one in restless]))
            swinging.append(f"{group.label} (± {error:.1f} {restless[0].unit})")
    return [
        *([f"Not at rest at the end: {_listed(moving)}; more rounds may change the order."] if moving else []),
        *([f"Up and down too much to tell if at rest: {_listed(swinging)}."] if swinging else []),
    ]


def past_the_threshold(groups: Sequence[Group]) -> list[str]:
    """Whose losses stay where PropFair with a fixed M weighs all batches alike (eq. 3.8), in a sentence."""
    idle = []
    for group in groups:
        shares = [share for share in map(_past_threshold, group.runs) if share is not None]
        if shares and np.median(shares) > 1 / 2:
            idle.append(f"{group.label} ({100 * np.median(shares):.0f} %)")
    if not idle:
        return []
    return [
        "Most batches of the last quarter have a loss past M - epsilon, where all weigh alike, as under averaging: "
        f"{_listed(idle)}; more rounds, or a larger M, would let the rule act."
    ]


def _past_threshold(run: Run) -> float | None:
    """The share of batches past the threshold in the last quarter of the rounds; None if the rule has none."""
    rounds, shares = run.diagnostic("past_threshold")
    late = shares[rounds > run.status.rounds * 3 / 4]
    return float(late.mean()) if late.size else None


def _listed(names: Sequence[str], most: int = 6) -> str:
    rest = len(names) - most
    return ", ".join([*names[:most], *([f"{rest} more"] if rest > 0 else [])])
