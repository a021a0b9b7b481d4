"""Which runs on record belong to which experiment of the paper, and to which scale of it."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from propfair.errors import ConfigError, DataError
from propfair.paper.catalogue import Experiment, Scale, load_experiment
from propfair.paper.settings import Settings
from propfair.runs.cautions import cautions
from propfair.runs.grouping import Group, setting_of
from propfair.runs.reading import find_runs, read_runs, trials_apart
from propfair.runs.run import Run

SCALES: tuple[Scale, ...] = ("paper", "small", "smoke")
_THEN = " then "  # in the name of a run that was trained on: "fedavg, seed 0 then propfair"


@dataclass(frozen=True)
class OnRecord:
    """The runs of one experiment at one scale.

    Attributes:
        experiment: of the paper.
        scale: of the runs.
        runs: by the algorithm's label in the experiment, its finished runs.
        tuned: by the labels of the first and the second algorithm, finished runs that were trained on.
        failed: by the algorithm's label, how many of its runs failed.
        others: runs on the same data at the same scale that failed, or of rules that the experiment does not have.
    """

    experiment: Experiment
    scale: Scale
    runs: dict[str, list[Run]] = field(default_factory=dict)
    tuned: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    others: list[Run] = field(default_factory=list)

    def group(self, label: str) -> Group:
        """The runs of an algorithm, one for each seed; refused if they are of several settings."""
        return self._group(label, self.runs[label])

    def tuned_group(self, first: str, then: str) -> Group:
        """The same of an algorithm's models that another one trained on."""
        return self._group(f"{first} then {then}", self.tuned[first, then])

    def _group(self, label: str, own: Sequence[Run]) -> Group:
        settings = {setting_of(run) for run in own}
        if len(settings) > 1:
            raise DataError(
                f"there are runs of {label} on {self.experiment.title} at scale {self.scale} with {len(settings)} "
                "different settings, and a claim is about one. Keep the records of one of them."
            )
        return group_of(label, own, f"{self.experiment.title} at scale {self.scale}")

    def failures(self, labels: Iterable[str]) -> list[str]:
        """Whose runs failed, in a sentence."""
        said = [
            f"{label} ({self.failed[label]} of {self.failed[label] + len(self.runs.get(label, []))})"
            for label in labels
            if label in self.failed
        ]
        return [f"Runs that failed and have no part in the numbers: {', '.join(said)}."] if said else []

    def unsettled(self, labels: Sequence[str]) -> list[str]:
        """What to know about the runs of some algorithms before believing them."""
        return [*self.failures(labels), *cautions([self.group(label) for label in labels if label in self.runs])]


def group_of(label: str, runs: Sequence[Run], where: str) -> Group:
    """The runs of one setting as seeds of it; two with the same seed are refused, since they are no two seeds."""
    group = Group(label, tuple(runs), {})
    if len(group.by_seed) < len(group.runs):
        seeds = [run.seed for run in runs]
        twice = next(seed for seed in seeds if seeds.count(seed) > 1)
        raise DataError(f"there are two runs of {label} on {where} with seed {twice}. Keep the records of one of them.")
    return group


def read_records(places: Iterable[Path]) -> list[Run]:
    """The runs in files that `propfair keep` wrote, in folders of such files, and in run folders; no trials.

    A run that is found in two places is one run.
    """
    found: list[Path] = []
    for place in places:
        is_run = (place / "status.json").exists()  # whose own tables are Parquet files, too
        kept = sorted(place.glob("*.parquet")) if place.is_dir() and not is_run else []
        found += [*kept, *find_runs([place])[0]] if kept else [place]  # there may be run folders beside the files
    runs, problems = read_runs(found)
    if problems:
        raise DataError(str(problems[0]))
    once = {
        (run.name, setting_of(run), run.seed, run.fingerprint, run.environment.started, run.status.seconds): run
        for run in trials_apart(runs)[0]
    }  # the folder of a run, say, and the file in which it was kept
    return list(once.values())


def on_record(runs: Iterable[Run], experiment: str) -> list[OnRecord]:
    """The runs that belong to an experiment, for each scale that there are some of."""
    runs = list(runs)
    return [found for scale in SCALES if (found := _at(experiment, scale, runs)).runs or found.others]


def check_as_recorded(settings: Settings) -> None:
    """Refuse settings of runs where these are there already, rather than leave them aside without a word."""
    asked = [key for key in settings.overrides if key not in ("data.folder", "device")]
    if asked or settings.seeds or settings.published:
        raise ConfigError(
            f"--records shows runs as they are on record, and {', '.join(asked) or '--seeds or --published'} would "
            "change them. Leave it out, or leave --records out to train."
        )


def experiments_there(experiments: Iterable[str], settings: Settings) -> list[str]:
    """Those of some experiments that there are runs of, at the scale and in the places that the settings name."""
    runs = read_records(settings.records)
    return [one for one in experiments if any(at.scale == settings.scale and at.runs for at in on_record(runs, one))]


def recorded(title: str, experiment: str, settings: Settings) -> OnRecord:
    """The runs of an experiment at the scale and in the places that the settings name; refused if there are none."""
    check_as_recorded(settings)
    found = [one for one in on_record(read_records(settings.records), experiment) if one.runs]
    for one in found:
        if one.scale == settings.scale:
            return one
    scales = ", ".join(one.scale for one in found) or "none"
    raise DataError(
        f"there are no runs of {title} at scale {settings.scale} in {', '.join(map(str, settings.records))}; scales "
        f"that there are runs of: {scales}. Choose one with --scale, other data with --data, or leave --records out to "
        "train."
    )


def _at(name: str, scale: Scale, runs: Iterable[Run]) -> OnRecord:
    experiment, whole = load_experiment(name), _experiment_shape(name, scale)
    short = {**whole, "rounds": experiment.rounds_to_finetune(scale)}
    found = OnRecord(experiment, scale)
    for run in runs:
        shape, start, finished = _shape(run.config), run.environment.start, run.status.state == "finished"
        if start is None and shape == whole:
            label = run.plain_name if _is_of(run, name, scale) else ""
            if label and run.status.state == "failed":
                found.failed[label] = found.failed.get(label, 0) + 1
            own = found.runs.setdefault(label, []) if label and finished else found.others
            own.append(run)
        elif start is not None and shape == short and finished:
            first, _, then = run.name.partition(f", seed {run.seed}{_THEN}")
            found.tuned.setdefault((first, then), []).append(run)
    return found


def _is_of(run: Run, experiment: str, scale: Scale) -> bool:
    """A run is called like an algorithm of the experiment, and has the values that the experiment does not choose."""
    if run.plain_name not in load_experiment(experiment).algorithms:
        return False
    fixed = _fixed(experiment, scale, run.plain_name)
    own = run.config.get("algorithm", {})
    return {key: own.get(key, value) for key, value in fixed.items()} == fixed  # older runs lack later options


@cache
def _fixed(experiment: str, scale: Scale, label: str) -> dict[str, Any]:
    """The settings of an algorithm but those that are chosen, or that the paper's best values replace."""
    described = load_experiment(experiment)
    sweep = described.sweep("", scale, only=[label])
    contestant = sweep.contestants[0]
    chosen = {key.removeprefix("algorithm.") for key in contestant.choices} | set(described.published[label])
    if scale != "paper":
        chosen -= set(described.scale[scale].algorithms.get(label, {}))
    algorithm = tomllib.loads(sweep.final_config(contestant, sweep.example(contestant), 0).to_toml())["algorithm"]
    return {key: value for key, value in algorithm.items() if key not in chosen}


@cache
def _experiment_shape(experiment: str, scale: Scale) -> dict[str, Any]:
    described = load_experiment(experiment)
    sweep = described.sweep("", scale, only=list(described.algorithms)[:1])  # they differ in algorithms alone
    contestant = sweep.contestants[0]
    return _shape(tomllib.loads(sweep.final_config(contestant, sweep.example(contestant), 0).to_toml()))


def _shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """What all runs of an experiment at a scale have in common: clients, network, first models, local work, rounds."""
    local = {key: value for key, value in config.get("local", {}).items() if key in ("batch_size", "epochs", "steps")}
    return {
        "data": {key: value for key, value in config.get("data", {}).items() if key != "folder"},
        "model": config.get("model"),
        "init": config.get("init", "common"),
        "local": local,
        "participation": config.get("server", {}).get("participation", 1.0),
        "rounds": config.get("schedule", {}).get("rounds"),
    }
