"""How surely groups of runs differ: who is ahead of whom by a statistic, and who gains by joining at all."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from propfair.errors import ConfigError, DataError
from propfair.fairness.arrays import FloatArray
from propfair.fairness.differences import Differences, compare_statistic
from propfair.fairness.evidence import Statistic, statistic_evidence
from propfair.fairness.intervals import Evidence, Over
from propfair.fairness.joining import Joining, joining
from propfair.runs.grouping import Group, check_same_clients, matched_runs
from propfair.runs.measures import ACCURACY, Measure
from propfair.runs.run import Run

ALONE = "local-only"  # the algorithm under which every client has a model of its own


def differences(
    groups: Sequence[Group],
    statistic: Statistic,
    measure: Measure = ACCURACY,
    *,
    level: float = 0.95,
    over: Over | None = None,
) -> Differences:
    """Compare all pairs of groups by a statistic over clients: seed by seed, all pairs at once.

    Args:
        groups: of runs on the same clients; two or more.
        statistic: a name of `summarize`, or the position of a client.
        measure: what every client has.
        level: of all intervals together.
        over: what intervals are drawn over; by default seeds where two groups share several, else test examples.
    """
    tables, sizes = _tables(groups, measure)
    return compare_statistic(
        tables, statistic, weights=groups[0].runs[0].shares, sizes=sizes, answers=_answers(groups, measure),
        higher_is_better=measure.higher_is_better, level=level, over=over,
    )  # fmt: skip


def group_evidence(group: Group, statistic: Statistic, measure: Measure = ACCURACY) -> Evidence:
    """All that is known of a statistic of one group."""
    tables, sizes = _tables([group], measure)
    rows = np.stack(list(tables[group.label].values()))
    kept = _answers([group], measure)
    return statistic_evidence(
        rows, statistic, weights=group.runs[0].shares, sizes=sizes,
        answers=None if kept is None else np.stack(list(kept[group.label].values())),
        higher_is_better=measure.higher_is_better,
    )  # fmt: skip


def alone_among(groups: Sequence[Group]) -> Group | None:
    """The first group of local-only models."""
    return next((group for group in groups if is_alone(group.runs[0])), None)


def is_alone(run: Run) -> bool:
    """Every client of the run trained for itself."""
    return run.algorithm.partition("(")[0] == ALONE


def gains(
    group: Group, alone: Group, measure: Measure = ACCURACY, *, level: float = 0.95, over: Over | None = None
) -> Joining:
    """What the clients of a group have over their local-only models, on the seeds that both have."""
    check_same_clients([*group.runs, *alone.runs])
    runs = matched_runs(group, alone)
    if not runs:
        raise ConfigError(
            f"{group.label} and {alone.label} have no seed in common: {sorted(group.by_seed)} and "
            f"{sorted(alone.by_seed)}. Train the local-only models with the same seeds."
        )
    together, own = (np.stack([pair[side].values(measure) for pair in runs]) for side in (0, 1))
    present = np.asarray(np.isfinite(together).all(axis=0) & np.isfinite(own).all(axis=0))
    if not present.any():
        raise DataError(f"no client has a {measure.label} under every run")
    sizes = _sizes(runs[0][0], measure)
    kept = [answers_to([pair[side] for pair in runs], measure, present) for side in (0, 1)]
    return joining(
        together[:, present], own[:, present], sizes=None if sizes is None else sizes[present],
        answers=None if kept[0] is None or kept[1] is None else (kept[0], kept[1]),
        higher_is_better=measure.higher_is_better, level=level, over=over,
        names=[name for name, here in zip(runs[0][0].clients.names, present, strict=True) if here],
    )  # fmt: skip


def joined(groups: Sequence[Group], alone: Group, measure: Measure = ACCURACY) -> list[tuple[Group, Joining]]:
    """The gains of every other group that has the measure and shares a seed with the local-only models."""
    if not alone.has(measure):
        return []
    return [
        (group, gains(group, alone, measure))
        for group in groups
        if group is not alone and group.has(measure) and matched_runs(group, alone)
    ]


def _tables(groups: Sequence[Group], measure: Measure) -> tuple[dict[str, dict[int, FloatArray]], FloatArray | None]:
    """Label to seed to values [n], NaN for clients that some run has no value of; and their numbers of examples."""
    runs = [run for group in groups for run in group.runs]
    check_same_clients(runs)
    present = np.isfinite([run.values(measure) for run in runs]).all(axis=0)
    if not present.any():
        raise DataError(f"no client has a {measure.label} under every run")
    tables = {
        group.label: {run.seed: np.where(present, run.values(measure), np.nan) for run in group.runs}
        for group in groups
    }
    return tables, _sizes(runs[0], measure)


def answers_to(runs: Sequence[Run], measure: Measure, present: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """[S, N], which examples of the clients that are present the runs get right; None unless all of them kept it."""
    kept = [run.answers("test") if measure == ACCURACY else None for run in runs]
    known = [one for one in kept if one is not None]
    if len(known) < len(kept):
        return None
    return np.stack(known)[:, np.repeat(present, runs[0].clients.sizes["test"])]


def _answers(groups: Sequence[Group], measure: Measure) -> dict[str, dict[int, NDArray[np.bool_]]] | None:
    """Label to seed to answers [N]; None unless all runs kept them, and every client that has examples has a value."""
    runs = [run for group in groups for run in group.runs]
    present = np.isfinite([run.values(measure) for run in runs]).all(axis=0)
    rows = answers_to(runs, measure, np.full(present.size, True))
    if rows is None or (np.asarray(runs[0].clients.sizes["test"])[~present] > 0).any():
        return None
    found = iter(rows)
    return {group.label: {run.seed: next(found) for run in group.runs} for group in groups}


def _sizes(run: Run, measure: Measure) -> FloatArray | None:
    """[n], how many examples an accuracy is a share of; None for other measures."""
    sizes = run.clients.sizes.get(measure.split) if measure.metric == "accuracy" else None
    return None if sizes is None else np.asarray(sizes, dtype=np.float64)
