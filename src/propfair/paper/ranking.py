"""All rules on several data sets, each with as many trials as the others: their ranks, and what sets them apart."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from propfair.errors import ConfigError, unknown
from propfair.fairness.arrays import FloatArray
from propfair.fairness.intervals import Evidence
from propfair.paper.catalogue import Ranking, check_experiments
from propfair.paper.reproduced import Number, Reproduced
from propfair.paper.settings import Settings
from propfair.report.sweep import settings_text
from propfair.runs.contestant import Contestant
from propfair.runs.grouping import Group
from propfair.runs.standing import differences
from propfair.tuning.budget import budget_sweep
from propfair.tuning.criteria import Criterion
from propfair.tuning.search import Sweep
from propfair.tuning.studies import Studies

STATISTICS = ("mean", "worst10")
LEVEL = 0.95
Ranks = Mapping[str, FloatArray]  # contestant -> its rank under each seed, [S]


def ranked_data(preset: Ranking, settings: Settings) -> list[str]:
    """The data sets that were asked for."""
    if settings.published:
        raise ConfigError("the field has no published values to take: leave --published out")
    return check_experiments(settings.experiments, list(preset.at(settings.scale).data))


def ranking_sweep(preset: Ranking, data: str, settings: Settings) -> tuple[Sweep, Path]:
    """The trials and final runs on one data set, and their folder; the reference is always among the contestants."""
    size = preset.at(settings.scale)
    one_data = size.data[data]
    contestants = Contestant.parse_all(preset.contestants)
    for label in settings.only:
        if label not in (one.label for one in contestants):
            raise unknown("contestant", label, [one.label for one in contestants])
    wanted = {preset.reference, *settings.only} if settings.only else {one.label for one in contestants}
    sweep = budget_sweep(
        one_data.run, [one for one in contestants if one.label in wanted], overrides=settings.overrides,
        seeds=settings.seeds or one_data.seeds or size.seeds, trials=size.trials, criterion=preset.criterion,
        trial_rounds=one_data.trial_rounds,
    )  # fmt: skip
    return sweep, settings.out / "field" / data


def ranked(name: str, preset: Ranking, data: str, settings: Settings, studies: Studies) -> tuple[Reproduced, Ranks]:
    """The table of one data set, best rank first, and the ranks."""
    size, tested = preset.at(settings.scale), studies.tested()
    groups = {one.winner.contestant.label: one.group for one in tested}
    if preset.reference not in groups:
        raise ConfigError(f"{name} compares with {preset.reference}, which has no finished run on {data}")
    numbers, ranks = held_against(preset.reference, groups, studies.sweep.criterion)
    trials = {studies.sweep.num_trials(one) for one in studies.sweep.contestants}
    short = size.data[data].trial_rounds
    edges = [
        f"{one.winner.contestant.label} {settings_text({key: one.winner.point[key] for key in one.winner.at_edge})}"
        for one in tested
        if one.winner.at_edge
    ]
    notes = [
        f"scale {settings.scale}: {size.data[data].note}",
        f"{' or '.join(map(str, sorted(trials)))} trials of each contestant"
        f"{f', {short} rounds long,' if short else ''} on the validation split, chosen by "
        f"{studies.sweep.criterion}; test split read once, after the last round",
        f"accuracy in percent; seeds {', '.join(map(str, studies.sweep.seeds))}; population std",
        f"differences are from {preset.reference}, seed by seed, with intervals that hold for all contestants at once "
        f"at {100 * LEVEL:g} %, each column by itself; ranks by {studies.sweep.criterion} on the test split, each with "
        "an interval of its own; both over seeds: clients and chosen values stay the same",
        *studies.failures(),
    ]
    if edges:
        notes.append(f"at the edge of what was tried, so that better values may lie beyond: {'; '.join(edges)}")
    chosen = {one.winner.contestant.label: settings_text(one.winner.point) for one in tested}
    runs = [run.folder for one in tested for run in one.group.runs if run.folder is not None]
    part = size.data[data].title
    return Reproduced(f"{name}-{data}", preset, numbers, notes, runs=runs, part=part, chosen=chosen), ranks


def held_against(reference: str, groups: Mapping[str, Group], criterion: Criterion) -> tuple[list[Number], Ranks]:
    """Ranks and statistics of groups by their labels, best rank first, and their differences from one of them."""
    ranks = ranks_by_seed(list(groups.values()), criterion)
    numbers = []
    for label in sorted(groups, key=lambda one: ranks[one].mean() if one in ranks else np.inf):
        if label in ranks:
            numbers.append(_rank(label, "rank", ranks[label], len(ranks)))
        for statistic in STATISTICS:
            found = groups[label].statistics()[statistic]
            std = 100 * found.std if found.num_seeds > 1 else np.nan
            numbers.append(Number(label, statistic, 100 * found.mean, std))
            if label != reference:
                numbers.append(difference_from(groups[label], groups[reference], statistic, len(groups) - 1))
    return numbers, ranks


def overall(name: str, preset: Ranking, by_data: Mapping[str, Ranks]) -> Reproduced:
    """The ranks on all data sets, and their mean, of those contestants that have a rank everywhere.

    Where a data set has fewer seeds than the others, as many are looked at everywhere.
    """
    everywhere = [label for label in next(iter(by_data.values())) if all(label in ranks for ranks in by_data.values())]
    shared = min((len(by_seed) for ranks in by_data.values() for by_seed in ranks.values()), default=0)
    by_data = {data: {label: ranks[label][:shared] for label in everywhere} for data, ranks in by_data.items()}
    means = {label: np.mean([ranks[label] for ranks in by_data.values()], axis=0) for label in everywhere}
    numbers = []
    for label in sorted(everywhere, key=lambda one: float(means[one].mean())):
        numbers.append(_rank(label, "mean rank", means[label], len(everywhere)))
        numbers += [Number(label, data, float(ranks[label].mean())) for data, ranks in by_data.items()]
    notes = [
        f"{len(everywhere)} contestants; 1 is the best rank; mean ranks over data sets with {100 * LEVEL:g} % "
        f"intervals over {shared} seeds"
    ]
    return Reproduced(name, preset, numbers, notes, part="ranks")


def ranks_by_seed(groups: Sequence[Group], criterion: Criterion) -> dict[str, FloatArray]:
    """The rank of each group under each seed, 1 for the best; equal ones share the mean of their ranks.

    Groups that lack a seed which others have, since a run of theirs failed, have no rank.
    """
    seeds = sorted({seed for group in groups for seed in group.by_seed})
    whole = [group for group in groups if sorted(group.by_seed) == seeds]
    values = np.array([[criterion.of_run(group.by_seed[seed], "test") for seed in seeds] for group in whole])  # [G, S]
    mine, theirs = values[:, None], values[None, :]
    ranks = (theirs > mine).sum(axis=1) + ((theirs == mine).sum(axis=1) + 1) / 2
    return {group.label: row for group, row in zip(whole, ranks, strict=True)}


def _rank(row: str, column: str, by_seed: FloatArray, most: int) -> Number:
    """The mean rank over seeds, with its interval if there are several seeds."""
    evidence = Evidence(by_seed, step=1.0, bounds=(1.0, float(most)))
    if evidence.num_seeds < 2:
        return Number(row, column, evidence.value)
    interval = evidence.interval(level=LEVEL)
    return Number(row, column, evidence.value, low=interval.low, high=interval.high)


def difference_from(group: Group, reference: Group, statistic: str, family: int) -> Number:
    """The difference from the reference in percent, with one of `family` intervals that hold all at once."""
    found = differences([group, reference], statistic, level=1 - (1 - LEVEL) / family)
    value, low, high = (100 * float(matrix[0, 1]) for matrix in (found.differences, found.low, found.high))
    return Number(group.label, f"{statistic} - {reference.label}", value, low=low, high=high)
