"""The one grouping of runs: by the clients they trained on, then by what they did, whatever the seed."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from propfair.core.client import LocalTraining
from propfair.core.rounds import Rounds
from propfair.errors import ConfigError, DataError, printable, shown, unknown
from propfair.fairness.arrays import FloatArray
from propfair.fairness.statistics import MeanStd, summarize_seeds
from propfair.registry import fields_of
from propfair.runs.measures import ACCURACY, Measure, ordered
from propfair.runs.names import algorithm_label, present_name
from propfair.runs.run import Clients, Run
from propfair.runs.schedule import Schedule
from propfair.runs.toml import flat

# No part of what was done. A start counts by what it is, not by its path.
_IGNORED = ("seed", "device", "engine", "lean", "log", "start", "data.folder", "schedule.checkpoint_every")
_TOLD = ("test", "validation", "train")  # which split says most
_MARKS = {"server.optimizer": "{}", "local.lr": "lr {}"}  # said in every label where groups differ in them
_SECTIONS = {"local": LocalTraining(), "server": Rounds(), "schedule": Schedule()}


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of the same setting: they differ in nothing but the seed, and in what decides no result.

    Attributes:
        label: what they are called in tables.
        runs: one for each seed.
        settings: dotted keys of the config and their values as text.
    """

    label: str
    runs: tuple[Run, ...]
    settings: Mapping[str, str]

    @property
    def by_seed(self) -> dict[int, Run]:
        return {run.seed: run for run in self.runs}

    @property
    def finished(self) -> bool:
        """All runs reached their end."""
        return all(run.status.state == "finished" for run in self.runs)

    def has(self, measure: Measure) -> bool:
        """Every run has this measure."""
        return all(run.served(measure) is not None for run in self.runs)

    def statistics(self, measure: Measure = ACCURACY, ddof: int = 0) -> dict[str, MeanStd]:
        """Mean and standard deviation over seeds of the statistics over clients."""
        key = (measure, measure.higher_is_better, ddof)
        if key not in self._statistics:
            self._statistics[key] = summarize_seeds([run.summary(measure) for run in self.runs], ddof)
        return dict(self._statistics[key])

    @cached_property
    def _statistics(self) -> dict[tuple[Measure, bool, int], dict[str, MeanStd]]:
        return {}

    def values(self, measure: Measure = ACCURACY) -> FloatArray:
        """The last value of each client in each seed, [S, n]."""
        return np.stack([run.values(measure) for run in self.runs])

    def mean_over_seeds(self, measure: Measure = ACCURACY) -> FloatArray:
        """The last value of each client, [n], averaged over seeds."""
        mean: FloatArray = self.values(measure).mean(axis=0)
        return mean


@dataclass(frozen=True, eq=False)
class Comparison:
    """Everything that was run on the same clients; groups can be compared client by client."""

    clients: Clients
    groups: tuple[Group, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(run for group in self.groups for run in group.runs)

    @property
    def data(self) -> str:
        """Name of the data set."""
        return self.runs[0].data_name

    @property
    def title(self) -> str:
        """For people: data set and number of clients."""
        return f"{printable(self.data)}, {len(self.clients.names)} clients"

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """What some run has, the most telling first."""
        found = list(dict.fromkeys(measure for run in self.runs for measure in run.measures))
        metrics = ordered(dict.fromkeys(measure.metric for measure in found))
        return tuple(sorted(found, key=lambda measure: (metrics.index(measure.metric), _TOLD.index(measure.split))))

    @cached_property
    def differing(self) -> list[str]:
        """Settings in which the groups differ, in the order of the config."""
        return _differing(self.groups)


def by_clients(runs: Iterable[Run]) -> list[Comparison]:
    """Comparisons of groups, in the order in which runs were started."""
    sharing: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.environment.started):
        sharing.setdefault(run.fingerprint, []).append(run)
    return [Comparison(own[0].clients, tuple(group_runs(own))) for own in sharing.values()]


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """One group for all runs of the same setting, in the order of first appearance; labels are all different.

    Where learning rates or the server's optimisers differ, every label says its own: such algorithms may differ for no
    other reason.
    """
    members: dict[tuple[str, int], dict[int, Run]] = {}
    for run in runs:
        key = setting_of(run)
        copy = 0  # the same run with the same seed twice is no second seed
        while run.seed in members.get((key, copy), {}):
            copy += 1
        members.setdefault((key, copy), {})[run.seed] = run
    groups = []
    for by_seed in members.values():
        own = tuple(by_seed[seed] for seed in sorted(by_seed))
        groups.append(Group(_label_of(own), own, _texts(_kept(own[0].settings))))
    marks = [key for key in _MARKS if len({group.settings.get(key) for group in groups}) > 1]
    groups = [dataclasses.replace(group, label=_marked(group, marks)) for group in groups]
    labels = _distinct_labels(groups)
    return [dataclasses.replace(group, label=label) for group, label in zip(groups, labels, strict=True)]


def model_among(runs: Iterable[Run], name: str) -> tuple[Group, list[Group]]:
    """The group of this name, and all others on the same clients.

    A name is the label in tables, else the label of the runs by themselves, else what the runs were called.
    """
    groups = [(group, others) for others in by_clients(runs) for group in others.groups]
    named: list[Callable[[Group], set[str]]] = [
        lambda group: {group.label},
        lambda group: {run.label for run in group.runs},
        lambda group: {run.plain_name for run in group.runs},
    ]
    for names in named:
        found = [(group, others) for group, others in groups if name in names(group)]
        if len(found) == 1:
            group, others = found[0]
            return group, [other for other in others.groups if other is not group]
        if found:
            told = "; ".join(f"{group.label} on {others.title}" for group, others in found)
            raise ConfigError(
                f"{shown(name)} is the name of {len(found)} models: {told}. Say all of a label, or give fewer runs."
            )
    raise unknown("model", name, {group.label for group, _ in groups})


def setting_of(run: Run) -> str:
    """The same text for runs of the same setting.

    A start counts by what it is: its label, which names the algorithm and its options, and its rounds. Runs of older
    versions, whose configs lack options that came later, count as having had the defaults. A run from Python counts by
    its settings and network, too; where the network is not known (older versions, deployments), label and algorithm do.
    """
    start = run.environment.start
    came_from = None if start is None else [start.label, start.rounds]
    if "model" not in run.settings:
        return json.dumps([run.label, run.environment.algorithm, came_from])
    kept = dict(_kept(run.settings))
    kept["algorithm"] = {**kept.get("algorithm", {}), "name": present_name(kept.get("algorithm", {}))}
    for section, usual in _SECTIONS.items():
        defaults = json.loads(json.dumps(fields_of(usual), default=str))
        kept[section] = _kept({section: {**defaults, **kept.get(section, {})}})[section]
    return json.dumps([_texts(kept), came_from], sort_keys=True)


def check_same_clients(runs: Sequence[Run]) -> None:
    """Runs can be compared client by client only if they share data, partition and split."""
    for run in runs[1:]:
        if run.fingerprint != runs[0].fingerprint:
            raise DataError(
                f"{runs[0].where} and {run.where} do not have the same clients: the fingerprints of their data and "
                f"partition are {runs[0].fingerprint} and {run.fingerprint}. Compare runs with the same [data] section."
            )


def matched_runs(reference: Group, other: Group) -> list[tuple[Run, Run]]:
    """The runs of both for each seed that both have; with one run each, these two; else none."""
    own, theirs = reference.by_seed, other.by_seed
    found = [(own[seed], theirs[seed]) for seed in own if seed in theirs]
    if not found and len(own) == len(theirs) == 1:
        found = [(reference.runs[0], other.runs[0])]
    return found


def _label_of(runs: Sequence[Run]) -> str:
    """The label of runs of one setting; of runs from Python that were called differently, the algorithm."""
    if len({run.label for run in runs}) == 1:
        return runs[0].label
    return printable(algorithm_label(runs[0].settings["algorithm"]))


def _kept(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The nested settings without what decides no result, and without what is not set."""
    return {
        key: _kept(value, f"{prefix}{key}.") if isinstance(value, Mapping) else value
        for key, value in config.items()
        if f"{prefix}{key}" not in _IGNORED and value is not None
    }


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings as dotted keys and texts."""
    said = flat(config).items()
    return {key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in said}


def _differing(groups: Sequence[Group]) -> list[str]:
    keys = dict.fromkeys(key for group in groups for key in group.settings)
    return [key for key in keys if len({group.settings.get(key) for group in groups}) > 1]


def _marked(group: Group, keys: Sequence[str]) -> str:
    usual = {None, Rounds().optimizer}
    said = [_MARKS[key].format(group.settings[key]) for key in keys if group.settings.get(key) not in usual]
    return f"{group.label} [{', '.join(said)}]" if said else group.label


def _distinct_labels(groups: Sequence[Group]) -> list[str]:
    """Labels that several groups share get what tells them apart: settings, else the folder, else a number."""
    labels = [group.label for group in groups]
    folders = [group.runs[0].folder for group in groups]
    for extras in (
        [_own_settings(group, [other for other in groups if other.label == group.label]) for group in groups],
        ["" if folder is None else folder.name for folder in folders],
        ["" if folder is None else folder.parent.name for folder in folders],
    ):
        labels = _told_apart(labels, extras)
    seen: dict[str, int] = {}
    for position, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:
            labels[position] = f"{label} #{seen[label]}"
    return labels


def _told_apart(labels: Sequence[str], extras: Sequence[str]) -> list[str]:
    """The labels, with the extra behind those that share one and have different extras."""
    said: dict[str, set[str]] = {}
    for label, extra in zip(labels, extras, strict=True):
        said.setdefault(label, set()).add(extra)
    return [
        f"{label} ({printable(extra)})" if extra and len(said[label]) > 1 else label
        for label, extra in zip(labels, extras, strict=True)
    ]


def _own_settings(group: Group, alike: Sequence[Group]) -> str:
    """Up to three settings that groups of the same label do not share."""
    keys = _differing(alike)[:3]
    return ", ".join(f"{key}={group.settings[key]}" for key in keys if key in group.settings)
