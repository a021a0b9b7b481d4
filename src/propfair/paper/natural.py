"""Natural clients under several conditions: who is better off when rounds are partial, or local work is long."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from propfair.errors import ConfigError, DataError, unknown
from propfair.paper.catalogue import Natural, check_experiments
from propfair.paper.left import Left, said_estimate
from propfair.paper.onrecord import check_as_recorded, group_of, read_records
from propfair.paper.ranking import LEVEL, STATISTICS, difference_from
from propfair.paper.reproduced import Number, Reproduced
from propfair.paper.settings import NotCompleteError, Screen, Settings
from propfair.runs.building import build_federation
from propfair.runs.cautions import cautions
from propfair.runs.compare import Contest
from propfair.runs.config import RunConfig
from propfair.runs.contestant import Contestant
from propfair.runs.grouping import Group
from propfair.runs.run import Run
from propfair.runs.toml import flat
from propfair.tuning.estimate import NOTHING_LEFT, Estimate, Pace, measure_pace

_HOW = ("engine.name", "schedule.checkpoint_every")
Conditions = Mapping[str, Sequence[Group]]  # the groups under each


def natural(name: str, preset: Natural, settings: Settings, screen: Screen) -> list[Reproduced]:
    """A table for each data set: all contestants under all conditions, held against the reference in each.

    From the records that the settings name, if they name some; else what is missing is trained.
    """
    if settings.published:
        raise ConfigError(f"{name} has no published values to take: leave --published out")
    size = preset.at(settings.scale)
    chosen = check_experiments(settings.experiments, list(size.data))
    if settings.records:
        check_as_recorded(settings)
        runs = read_records(settings.records)
        labels = [one for one in preset.contestants if one in (preset.reference, *settings.only) or not settings.only]
        there = {data: _recorded(preset, labels, size.data[data].run, runs) for data in chosen}
    else:
        there = {data: _trained(name, preset, data, settings, screen) for data in chosen}
    found = [_told(name, preset, data, settings, groups) for data, groups in there.items() if groups]
    if not found:
        raise DataError(f"there are no runs of {preset.title} in {', '.join(map(str, settings.records))}")
    return found


def natural_left(name: str, preset: Natural, settings: Settings) -> Iterator[Left]:
    """What is left to run on each data set, estimated from a measured round."""
    size = preset.at(settings.scale)
    for data in check_experiments(settings.experiments, list(size.data)):
        described = size.data[data]
        contests = _contests(name, preset, data, settings)
        labels = tuple(one.label for one in next(iter(contests.values())).contestants)
        seeds = settings.seeds or described.seeds or size.seeds
        found = _estimate(list(contests.values()), seeds, settings.threads)
        yield Left(described.title, described.note, labels, found)


def _trained(name: str, preset: Natural, data: str, settings: Settings, screen: Screen) -> Conditions:
    size = preset.at(settings.scale)
    described = size.data[data]
    seeds = settings.seeds or described.seeds or size.seeds
    contests = _contests(name, preset, data, settings)
    screen.say(f"{described.title}, scale {settings.scale}: {described.note}")
    left = _estimate(list(contests.values()), seeds, settings.threads)
    if not left.nothing:
        screen.say(said_estimate(left))
    found = {}
    for condition, contest in contests.items():
        found[condition] = [one.group for one in contest.train(seeds, show_run=screen.run)]
        states = {run.status.state for group in found[condition] for run in group.runs}
        if not states <= {"finished", "failed"}:
            raise NotCompleteError(f"a run of {described.title} did not come to its end")
    return found


def _contests(name: str, preset: Natural, data: str, settings: Settings) -> dict[str, Contest]:
    """Under each condition, who is compared."""
    contestants = Contestant.parse_all(preset.contestants)
    for label in settings.only:
        if label not in (one.label for one in contestants):
            raise unknown("contestant", label, [one.label for one in contestants])
    if settings.only:
        contestants = [one for one in contestants if one.label in (preset.reference, *settings.only)]
    shared, out = preset.at(settings.scale).data[data].run, settings.out / name / data
    return {
        condition: Contest.of(shared, contestants, overrides={**flat(changes), **settings.overrides}, out=out)
        for condition, changes in preset.conditions.items()
    }


def _estimate(contests: Sequence[Contest], seeds: Sequence[int], threads: int) -> Estimate:
    """From the pace of the first run that is left; a round of another takes longer as it trains on more examples."""
    left = [config for contest in contests for config in contest.left(seeds)]
    if not left:
        return NOTHING_LEFT
    federation = build_federation(left[0])  # of all: conditions differ in what is trained in a round
    pace = measure_pace(left[0], federation, threads)
    rounds = [pace.round * _passes(config) / _passes(left[0]) for config in left]
    return Estimate(
        num_trials=0,
        trial_rounds=0,
        num_finals=len(left),
        final_rounds=left[0].schedule.rounds,
        round_seconds=pace.round,
        seconds=sum(
            Pace(one, pace.example).of_run(config.schedule, federation)
            for one, config in zip(rounds, left, strict=True)
        ),
        workers=1,
    )


def _passes(config: RunConfig) -> float:
    """Over the data of all clients, in one round."""
    return config.server.participation * config.local.epochs


def _recorded(
    preset: Natural, contestants: Sequence[str], shared: Mapping[str, Any], runs: Sequence[Run]
) -> Conditions:
    """The ended runs of each condition that there are some of; where and how they were run does not matter."""
    found = {}
    said = {key: value for key, value in flat(shared).items() if key not in _HOW}
    for condition, changes in preset.conditions.items():
        wanted = {**said, **flat(changes)}
        own = [run for run in runs if wanted == {key: flat(run.config).get(key) for key in wanted}]
        labels = [label for label in contestants if any(run.plain_name == label for run in own)]
        if preset.reference in labels:
            found[condition] = [
                group_of(label, [run for run in own if run.plain_name == label], condition) for label in labels
            ]
    return found


def _finished(groups: Sequence[Group]) -> tuple[list[Group], list[str]]:
    """The groups without the runs that failed, and whose these are, in a sentence."""
    whole = [replace(one, runs=tuple(run for run in one.runs if run.status.state == "finished")) for one in groups]
    told = [
        f"{one.label} ({len(one.runs) - len(left.runs)} of {len(one.runs)})"
        for one, left in zip(groups, whole, strict=True)
        if len(left.runs) < len(one.runs)
    ]
    said = [f"Runs that failed and have no part in the numbers: {', '.join(told)}."] if told else []
    return [group for group in whole if group.runs], said


def _told(name: str, preset: Natural, data: str, settings: Settings, conditions: Conditions) -> Reproduced:
    described = preset.at(settings.scale).data[data]
    numbers, runs, notes = [], [], []
    for condition, ended in conditions.items():
        groups, failed = _finished(ended)
        runs += [run.folder for group in groups for run in group.runs if run.folder is not None]
        notes += [f"{condition}: {said}" for said in (*failed, *cautions(groups))]
        reference = next((group for group in groups if group.label == preset.reference), None)
        if reference is None:
            raise DataError(f"{condition}: all runs of {preset.reference} failed, and the others are held against it")
        for group in groups:
            row = f"{condition}: {group.label}"
            for statistic in STATISTICS:
                found = group.statistics()[statistic]
                std = 100 * found.std if found.num_seeds > 1 else math.nan
                numbers.append(Number(row, statistic, 100 * found.mean, std))
                if group is not reference:
                    apart = difference_from(group, reference, statistic, len(groups) - 1)
                    numbers.append(Number(row, apart.column, apart.ours, low=apart.low, high=apart.high))
    seeds = sorted({run.seed for groups in conditions.values() for group in groups for run in group.runs})
    told = [
        f"scale {settings.scale}: {described.note}",
        f"accuracy in percent; seeds {', '.join(map(str, seeds))}; population std; nothing was tuned",
        f"differences are from {preset.reference} under the same condition, seed by seed, with intervals that hold for "
        f"all contestants of a condition at once at {100 * LEVEL:g} %, each column by itself",
    ]
    return Reproduced(f"{name}-{data}", preset, numbers, [*told, *notes], runs=runs, part=described.title)
