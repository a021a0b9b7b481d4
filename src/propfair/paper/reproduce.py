"""Redoes the tables and figures of the paper: runs what is missing, and puts our numbers beside the paper's."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from propfair.errors import ConfigError
from propfair.fairness.statistics import MeanStd
from propfair.federation.federation import Federation
from propfair.paper import catalogue
from propfair.paper.catalogue import Experiment, Scale, check_experiments, load_experiment, load_preset
from propfair.runs.certify import Certified, certify
from propfair.runs.compare import Contestant
from propfair.runs.finetune import finetune
from propfair.runs.run import Watch, build_federation
from propfair.runs.saved import SavedRun
from propfair.tuning.estimate import Estimate, estimate
from propfair.tuning.search import Sweep
from propfair.tuning.studies import Outcome, Place, Row, Studies, Winner
from propfair.tuning.sweep import run_sweep

_FIRST_MODELS = {
    "common": "common initialisation",
    "independent": "each client initialised by itself, as in the authors' code",
}


class Screen(Protocol):
    """What shows the progress of a reproduction."""

    def say(self, text: str) -> None:
        """A line for people."""

    def table(self, sweep: Sweep) -> AbstractContextManager[Callable[[list[Row]], None]]:
        """Shows the table of a sweep while it runs."""

    def run(self, title: str, rounds: int) -> AbstractContextManager[Watch]:
        """Shows one run."""


@dataclass(frozen=True)
class Settings:
    """How to reproduce.

    Attributes:
        scale: how large.
        out: the folder; presets share the runs in it.
        workers, threads: processes, and torch threads of each.
        published: take the paper's best values instead of searching.
        only: these algorithms; empty: all.
        experiments: these data sets of presets that have several; empty: all.
        seeds: instead of the usual ones.
        overrides: settings that win over all others.
        minutes: no run is started after so many.
    """

    scale: Scale
    out: Path
    workers: int = 0
    threads: int = 1
    published: bool = False
    only: tuple[str, ...] = ()
    experiments: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    overrides: tuple[str, ...] = ()
    minutes: float = math.inf


class NotCompleteError(ConfigError):
    """Time was up before everything was run."""


@dataclass(frozen=True)
class Number:
    """One number of ours beside the paper's; nan where there is none."""

    row: str
    column: str
    ours: float
    ours_std: float = math.nan
    paper: float = math.nan
    paper_std: float = math.nan

    @property
    def difference(self) -> float:
        return self.ours - self.paper


@dataclass(frozen=True)
class Reproduced:
    """A table or figure, redone.

    Attributes:
        name: of the preset.
        preset: with the paper's numbers.
        numbers: ours and the paper's; accuracies and relative changes in percent.
        notes: what differs from the paper, said in sentences.
        certified: for figures of relative changes.
        runs: the folders of the runs behind the numbers; none for what is computed.
    """

    name: str
    preset: catalogue.Preset
    numbers: list[Number] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    certified: list[Certified] = field(default_factory=list)
    runs: list[Path] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON values; None for nan."""
        return {
            "name": self.name,
            "title": self.preset.title,
            "notes": self.notes,
            "numbers": [
                {
                    key: None if isinstance(value, float) and math.isnan(value) else value
                    for key, value in {**vars(number), "difference": number.difference}.items()
                }
                for number in self.numbers
            ],
            "certificates": [one.as_dict() for one in self.certified],
            "runs": [str(path) for path in self.runs],
        }


def reproduce(name: str, settings: Settings, screen: Screen) -> list[Reproduced]:
    """Run what a table or figure needs and is not there yet; several for a preset with parts."""
    preset = load_preset(name)
    if isinstance(preset, catalogue.Together):
        named = {part: _experiments(load_preset(part)) for part in preset.parts}
        wanted = check_experiments(settings.experiments, [one for part in named.values() for one in part])
        parts = [part for part, own in named.items() if set(own) & set(wanted)]
        return [one for part in parts for one in reproduce(part, settings, screen)]
    return [_Reproduction(settings, screen).of(name, preset)]


def plan(name: str, settings: Settings) -> Iterator[tuple[Experiment, Sweep, Estimate]]:
    """What is left to run for a table or figure, with an estimate from a measured round."""
    work = _Reproduction(settings, _Silent())
    for part, only in _needs(load_preset(name)):
        if not settings.experiments or part in settings.experiments:
            sweep, place = work.sweep(part, only)
            yield load_experiment(part), sweep, work.estimate(Studies(sweep, place))


class _Reproduction:
    def __init__(self, settings: Settings, screen: Screen) -> None:
        self.settings, self.screen = settings, screen

    def of(self, name: str, preset: catalogue.Preset) -> Reproduced:
        if isinstance(preset, catalogue.Statistics):
            return self._statistics(name, preset)
        if isinstance(preset, catalogue.Sizes):
            return self._sizes(name, preset)
        if isinstance(preset, catalogue.Chosen):
            return self._chosen(name, preset)
        if isinstance(preset, catalogue.Relative):
            return self._relative(name, preset)
        if isinstance(preset, catalogue.Finetune):
            return self._finetune(name, preset)
        if isinstance(preset, catalogue.Scatter):
            return self._scatter(name, preset)
        assert isinstance(preset, catalogue.Example)
        return Reproduced(name, preset, notes=["computed, not trained"])

    # The runs.

    def sweep(self, experiment: str, only: Sequence[str] = ()) -> tuple[Sweep, Place]:
        """The sweep behind an experiment; `only` what the preset needs, fewer if fewer were asked for."""
        own = self.settings.only
        sweep = load_experiment(experiment).sweep(
            f"{experiment} {self.settings.scale}", self.settings.scale, published=self.settings.published,
            only=[label for label in only if not own or label in own] or own,
            seeds=self.settings.seeds, overrides=self.settings.overrides,
        )  # fmt: skip
        return sweep, Place.at(self.settings.out / experiment)

    def estimate(self, studies: Studies) -> Estimate:
        return estimate(studies, workers=self.settings.workers, threads=self.settings.threads)

    def studies(self, experiment: str, only: Sequence[str] = ()) -> Studies:
        """The finished sweep behind an experiment."""
        sweep, place = self.sweep(experiment, only)
        studies = Studies(sweep, place)
        described = load_experiment(experiment)
        self.screen.say(f"{described.title}, scale {self.settings.scale}: {described.note(self.settings.scale)}")
        if not studies.complete:
            self.screen.say(said_estimate(self.estimate(studies), self.settings))
            with self.screen.table(sweep) as show:
                studies = run_sweep(
                    sweep, place, workers=self.settings.workers, threads=self.settings.threads,
                    minutes=self.settings.minutes, show=show,
                )  # fmt: skip
        if not studies.complete:
            raise NotCompleteError(f"time is up before all runs of {experiment} are done; the same command goes on")
        return studies

    # The tables.

    def _statistics(self, name: str, preset: catalogue.Statistics) -> Reproduced:
        studies = self.studies(preset.experiment, list(preset.paper))
        numbers = _statistics(studies.outcomes(), preset)
        return Reproduced(
            name, preset, numbers, self._notes([preset.experiment], studies), runs=_final_folders(studies)
        )

    def _sizes(self, name: str, preset: catalogue.Sizes) -> Reproduced:
        chosen = check_experiments(self.settings.experiments, preset.experiments)
        numbers = []
        for experiment in chosen:
            sweep, _ = self.sweep(experiment, ["fedavg"])
            config = sweep.final_config(sweep.entrants[0], sweep.example(sweep.entrants[0]), 0)
            sizes = _sizes(build_federation(config))
            numbers += [
                Number(experiment, key, sizes[key], paper=value) for key, value in preset.paper[experiment].items()
            ]
        notes = ["train counts the validation part, which is carved out of it for tuning", *self._notes(chosen)]
        return Reproduced(name, preset, numbers, notes)

    def _chosen(self, name: str, preset: catalogue.Chosen) -> Reproduced:
        if self.settings.published:
            raise ConfigError(f"{name} is about the search itself: leave --published out")
        numbers: list[Number] = []
        folders: list[Path] = []
        chosen = check_experiments(self.settings.experiments, preset.experiments)
        for experiment in chosen:
            studies = self.studies(experiment, list(preset.parameters))
            folders += _final_folders(studies)
            winners = {winner.entrant.label: winner for winner in studies.winners()}
            for label, key in preset.parameters.items():
                if label in winners:
                    ours = _value(winners[label], key)
                    numbers.append(Number(label, experiment, ours, paper=preset.paper[experiment][label]))
        return Reproduced(name, preset, numbers, self._notes(chosen), runs=folders)

    # The figures.

    def _relative(self, name: str, preset: catalogue.Relative) -> Reproduced:
        studies = self.studies(preset.experiment, [preset.reference, *preset.paper])
        runs = _final_runs(studies)
        if preset.reference not in runs:
            raise ConfigError(f"{name} compares with {preset.reference}, which has no finished run")
        others = {label: own for label, own in runs.items() if label in preset.paper}
        found = certify(runs[preset.reference], [run for own in others.values() for run in own])
        numbers = [
            Number(label, "relative change", 100 * float(value), paper=preset.paper[label])
            for label, value in zip(others, found.certificate.values, strict=True)
        ]
        notes = [f"{preset.reference}: {found.verdict}", *self._notes([preset.experiment], studies)]
        return Reproduced(name, preset, numbers, notes, [found], _final_folders(studies))

    def _finetune(self, name: str, preset: catalogue.Finetune) -> Reproduced:
        studies = self.studies(preset.experiment, preset.algorithms)
        rounds = load_experiment(preset.experiment).rounds_to_finetune(self.settings.scale)
        runs = _final_runs(studies)
        contestants = {winner.entrant.label: _contestant(winner) for winner in studies.winners()}
        pairs = [
            (preset.start or label, preset.end or label)
            for label in preset.paper
            if {preset.start or label, preset.end or label} <= runs.keys()
        ]
        numbers, certified, ends = [], [], []
        for first, then in pairs:
            tuned = finetune(
                [run.path for run in runs[first]], [contestants[then]], out=studies.place.out / "finetuned",
                overrides=[f"schedule.rounds={rounds}", f"schedule.eval_every={rounds}"], watcher=self.screen.run,
            )  # fmt: skip
            found = certify(runs[first], [one.end for one in tuned])
            ends += [one.end.path for one in tuned]
            label = then if preset.start else first
            value = 100 * float(found.certificate.values[0])
            numbers.append(Number(label, "relative change", value, paper=preset.paper[label]))
            certified.append(found)
        notes = [
            f"fine-tuned for {rounds} rounds; the paper does not say how many",
            *self._notes([preset.experiment], studies),
        ]
        return Reproduced(name, preset, numbers, notes, certified, [*_final_folders(studies), *ends])

    def _scatter(self, name: str, preset: catalogue.Scatter) -> Reproduced:
        tables = [(part, load_preset(part)) for part in preset.parts]
        named = [table.experiment for _, table in tables if isinstance(table, catalogue.Statistics)]
        chosen = check_experiments(self.settings.experiments, named)
        numbers: list[Number] = []
        folders: list[Path] = []
        for _, table in tables:
            if isinstance(table, catalogue.Statistics) and table.experiment in chosen:
                studies = self.studies(table.experiment, preset.algorithms)
                folders += _final_folders(studies)
                numbers += [
                    Number(
                        f"{table.experiment}: {one.row}", one.column, one.ours, one.ours_std, one.paper, one.paper_std
                    )
                    for one in _statistics(studies.outcomes(), table)
                    if one.column in ("mean", "worst10") and one.row in preset.algorithms
                ]
        return Reproduced(name, preset, numbers, self._notes(chosen), runs=folders)

    def _notes(self, experiments: Sequence[str], studies: Studies | None = None) -> list[str]:
        scale = self.settings.scale
        said = {f"scale {scale}: {load_experiment(one).note(scale)}": None for one in experiments}
        values = "the paper's best values" if self.settings.published else "values chosen on a validation split"
        notes = [*said, f"{values}; {self._first_models(experiments)}; test split read once, after the last round"]
        changed = [one for one in self.settings.overrides if not one.startswith("data.folder=")]  # a place, no setting
        if changed:
            notes.append(f"changed settings: {', '.join(changed)}")
        if studies is not None:
            seeds = ", ".join(map(str, studies.sweep.seeds))
            seconds = sum(outcome.seconds for outcome in studies.outcomes())
            notes.append(f"seeds {seeds}; population std; final runs took {seconds:.0f} s in all")
            notes += studies.failures()
        return notes

    def _first_models(self, experiments: Sequence[str]) -> str:
        sweeps = [self.sweep(experiment)[0] for experiment in experiments]
        configs = [sweep.final_config(one, sweep.example(one), 0) for sweep in sweeps for one in sweep.entrants]
        return " or ".join(_FIRST_MODELS[init] for init in sorted({config.init for config in configs}))


class _Silent:
    def say(self, text: str) -> None: ...

    def table(self, sweep: Sweep) -> AbstractContextManager[Callable[[list[Row]], None]]:
        raise AssertionError

    def run(self, title: str, rounds: int) -> AbstractContextManager[Watch]:
        raise AssertionError


def said_estimate(found: Estimate, settings: Settings) -> str:
    """The estimate in a sentence."""
    minutes = found.seconds / 60
    choosing = f"{found.num_trials} runs of {found.trial_rounds} rounds to choose by, " if found.num_trials else ""
    return (
        f"left: {choosing}{found.num_finals} runs of {found.final_rounds} rounds for the results; "
        f"a round took {found.round_seconds:.2f} s; about "
        f"{f'{minutes:.0f} min' if minutes < 90 else f'{minutes / 60:.1f} h'} on {max(1, settings.workers)} "
        f"{'process' if settings.workers <= 1 else 'processes'}"
    )


def _statistics(outcomes: Sequence[Outcome], preset: catalogue.Statistics) -> list[Number]:
    numbers = []
    for outcome in outcomes:
        label, ours = outcome.winner.entrant.label, outcome.statistics()
        for column in preset.columns:
            one: MeanStd = ours[column]
            paper, paper_std = preset.paper[label].get(column, (math.nan, math.nan))
            std = 100 * one.std if one.num_seeds > 1 else math.nan
            numbers.append(Number(label, column, 100 * one.mean, std, paper, paper_std))
    return numbers


def _final_folders(studies: Studies) -> list[Path]:
    """The folders of the winners' runs."""
    return [studies.final_folder(winner, seed) for winner in studies.winners() for seed in studies.sweep.seeds]


def _final_runs(studies: Studies) -> dict[str, list[SavedRun]]:
    """By algorithm, its final runs."""
    found = {}
    for winner in studies.winners():
        folders = [studies.final_folder(winner, seed) for seed in studies.sweep.seeds]
        runs = [SavedRun.read(folder) for folder in folders]
        finished = [run for run in runs if run.status["state"] == "finished"]
        if finished:
            found[winner.entrant.label] = finished
    return found


def _contestant(winner: Winner) -> Contestant:
    """The winner's algorithm and settings, to go on with from another model."""
    settings: Mapping[str, Any] = {**winner.entrant.fixed, **winner.point}
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())
    return Contestant(winner.entrant.label, "", overrides)


def _value(winner: Winner, key: str) -> float:
    return float({**winner.entrant.fixed, **winner.point}[key])


def _sizes(federation: Federation) -> dict[str, int]:
    return {
        "train": int(federation.train.lengths.sum() + federation.validation.lengths.sum()),
        "test": int(federation.test.lengths.sum()),
        "clients": federation.num_clients,
    }


def _experiments(preset: catalogue.Preset) -> list[str]:
    return [experiment for experiment, _ in _needs(preset)]


def _needs(preset: catalogue.Preset) -> list[tuple[str, Sequence[str]]]:
    """The experiments that a preset trains, with the algorithms; none of them means all."""
    if isinstance(preset, (catalogue.Together, catalogue.Scatter)):
        only = preset.algorithms if isinstance(preset, catalogue.Scatter) else ()
        return [(experiment, only) for part in preset.parts for experiment in _experiments(load_preset(part))]
    if isinstance(preset, catalogue.Statistics):
        return [(preset.experiment, list(preset.paper))]
    if isinstance(preset, catalogue.Chosen):
        return [(experiment, list(preset.parameters)) for experiment in preset.experiments]
    if isinstance(preset, catalogue.Relative):
        return [(preset.experiment, [preset.reference, *preset.paper])]
    if isinstance(preset, catalogue.Finetune):
        return [(preset.experiment, preset.algorithms)]
    return []
