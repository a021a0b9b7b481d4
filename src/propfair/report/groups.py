"""Runs sorted for comparison: by the clients they trained on, then by what they did, whatever the seed."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from propfair.fairness.arrays import FloatArray
from propfair.fairness.statistics import ClientStatistics, MeanStd, summarize, summarize_seeds
from propfair.report.runs import Clients, RunData, Series

_IGNORED = frozenset({"seed", "data.folder", "schedule.checkpoint_every"})  # no part of what was done


@dataclass(frozen=True)
class Measure:
    """A number that every client has: "test/accuracy", say."""

    key: str

    @property
    def split(self) -> str:
        return self.key.partition("/")[0]

    @property
    def metric(self) -> str:
        return self.key.partition("/")[2]

    @property
    def label(self) -> str:
        return f"{self.split} {self.metric}"

    @property
    def higher_is_better(self) -> bool:
        return self.metric != "loss"

    def summarize(self, series: Series, train_sizes: Sequence[int]) -> ClientStatistics:
        """Statistics over clients at the last round; weighted ones by data share."""
        return summarize(series.last, weights=train_sizes, higher_is_better=self.higher_is_better)


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed."""

    label: str
    runs: tuple[RunData, ...]
    settings: dict[str, str]  # dotted key to value, of the config

    @property
    def finished(self) -> bool:
        """All runs reached their end."""
        return all(run.status.state == "finished" for run in self.runs)

    def has(self, measure: Measure) -> bool:
        """Every run has this measure."""
        return all(measure.key in run.measured for run in self.runs)

    def statistics(self, measure: Measure) -> dict[str, MeanStd]:
        """Mean and population standard deviation over seeds of the statistics over clients."""
        return summarize_seeds(
            [measure.summarize(run.measured[measure.key], run.clients.sizes["train"]) for run in self.runs]
        )

    def by_seed(self, measure: Measure) -> dict[int, FloatArray]:
        """Seed to last values of the clients, [n]."""
        return {run.seed: run.measured[measure.key].last for run in self.runs}

    def mean_over_seeds(self, measure: Measure) -> FloatArray:
        """Last value of each client, [n], averaged over seeds."""
        mean: FloatArray = np.mean(list(self.by_seed(measure).values()), axis=0)
        return mean


@dataclass(frozen=True)
class Trial:
    """Everything that was run on the same clients; groups can be compared client by client."""

    clients: Clients
    groups: tuple[Group, ...]

    @property
    def runs(self) -> tuple[RunData, ...]:
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def data(self) -> str:
        """Name of the data set."""
        section = self.runs[0].config.get("data")
        name = section.get("name") if isinstance(section, dict) else None
        return str(name) if name else "own data"

    @property
    def title(self) -> str:
        """For people: data set and number of clients."""
        return f"{self.data}, {len(self.clients.names)} clients"

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """What some group has, the first of them the most telling: test before validation, accuracy before loss."""
        found = {key for group in self.groups for run in group.runs for key in run.measured}
        order = [f"{split}/{metric}" for metric in ("accuracy", "loss") for split in ("test", "validation", "train")]
        return tuple(Measure(key) for key in order if key in found)

    @cached_property
    def differing(self) -> list[str]:
        """Settings in which the groups differ, in the order of the config."""
        keys = dict.fromkeys(key for group in self.groups for key in group.settings)
        return [key for key in keys if len({group.settings.get(key) for group in self.groups}) > 1]


def sort_runs(runs: Iterable[RunData]) -> list[Trial]:
    """Groups within trials, in the order in which they were started."""
    trials: dict[str, dict[tuple[str, str, int], list[RunData]]] = {}
    for run in sorted(runs, key=lambda run: run.environment.started):
        groups = trials.setdefault(run.clients.fingerprint, {})
        what = json.dumps(_settings(run.config), sort_keys=True)
        copy = 0  # the same run with the same seed twice is no second seed
        while run.seed in {other.seed for other in groups.get((run.label, what, copy), [])}:
            copy += 1
        groups.setdefault((run.label, what, copy), []).append(run)
    sorted_trials = []
    for groups in trials.values():
        members = [tuple(sorted(group, key=lambda run: run.seed)) for group in groups.values()]
        trial = Trial(
            members[0][0].clients,
            tuple(Group(group[0].label, group, _settings(group[0].config)) for group in members),
        )
        labels = _distinct_labels(trial)
        renamed = (dataclasses.replace(g, label=label) for g, label in zip(trial.groups, labels, strict=True))
        sorted_trials.append(Trial(trial.clients, tuple(renamed)))
    return sorted_trials


def _distinct_labels(trial: Trial) -> list[str]:
    """Labels that several groups share get what tells them apart: settings, else the folder, else a number."""
    labels = [group.label for group in trial.groups]
    labels = _told_apart(labels, [_own_settings(trial, group) for group in trial.groups])
    labels = _told_apart(labels, [group.runs[0].path.parent.name for group in trial.groups])
    seen: dict[str, int] = {}
    for position, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:
            labels[position] = f"{label} #{seen[label]}"
    return labels


def _told_apart(labels: Sequence[str], extras: Sequence[str]) -> list[str]:
    """The labels, with the extra behind those that are not alone."""
    return [
        f"{label} ({extra})" if extra and labels.count(label) > 1 else label
        for label, extra in zip(labels, extras, strict=True)
    ]


def _own_settings(trial: Trial, group: Group) -> str:
    """Up to three settings that groups of the same label do not share."""
    alike = [other for other in trial.groups if other.label == group.label]
    keys = [key for key in trial.differing if len({other.settings.get(key) for other in alike}) > 1]
    return ", ".join(f"{key}={group.settings[key]}" for key in keys[:3] if key in group.settings)


def _settings(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The config as dotted keys and texts, without what does not decide a result."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        if dotted in _IGNORED:
            continue
        if isinstance(value, dict):
            flat |= _settings(value, f"{dotted}.")
        else:
            flat[dotted] = value if isinstance(value, str) else json.dumps(value, default=str)
    return flat
