"""Redoes the tables and figures of the paper: runs what is missing, and puts our numbers beside the paper's."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from propfair.errors import ConfigError, unknown
from propfair.federation.federation import Federation
from propfair.paper import catalogue
from propfair.paper.catalogue import check_experiments, load_experiment, load_preset
from propfair.paper.changes import changes_by_training_on, changes_from, recorded_changes
from propfair.paper.left import Left, said_estimate
from propfair.paper.natural import natural, natural_left
from propfair.paper.onrecord import experiments_there
from propfair.paper.ranking import overall, ranked, ranked_data, ranking_sweep
from propfair.paper.reproduced import Number, Reproduced
from propfair.paper.settings import NotCompleteError, Screen, Settings
from propfair.paper.statistics_tables import recorded_statistics, statistics_numbers
from propfair.report.sweep import edge_notes
from propfair.runs.building import build_federation
from propfair.runs.cautions import cautions
from propfair.runs.contestant import Contestant
from propfair.runs.finetune import finetune
from propfair.runs.grouping import Group
from propfair.runs.launch import has_ended
from propfair.runs.names import slug
from propfair.runs.progress import AfterRound
from propfair.runs.reading import read_run
from propfair.runs.run import Run
from propfair.tuning.estimate import NOTHING_LEFT, Estimate, estimate, measure_pace
from propfair.tuning.search import Sweep
from propfair.tuning.studies import Home, Studies, Tested, Winner
from propfair.tuning.sweep import run_sweep

_FINETUNED = "finetuned"  # the folder of second trainings
_NOT_FROM_RECORDS = (catalogue.Sizes, catalogue.Chosen, catalogue.Ranking, catalogue.Example)
_FIRST_MODELS = {
    "common": "common initialisation",
    "independent": "each client initialised by itself, as in the authors' code",
}


def reproduce(name: str, settings: Settings, screen: Screen) -> list[Reproduced]:
    """Run what a table or figure needs and is not there yet; several for a preset with parts."""
    preset = load_preset(name)
    if settings.records and isinstance(preset, _NOT_FROM_RECORDS):
        raise ConfigError(
            f"--records is for what follows from finished runs alone, such as table6-cifar10, figure2, natural and "
            f"claims; {name} does not. Leave it out."
        )
    if isinstance(preset, catalogue.Together):
        named = {part: _experiments(load_preset(part)) for part in preset.parts}
        wanted = check_experiments(settings.experiments, [one for part in named.values() for one in part])
        parts = [part for part, own in named.items() if set(own) & set(wanted)]
        if settings.records:
            there = experiments_there(wanted, settings) or wanted  # where there is nothing at all, parts say so
            parts = [part for part in parts if set(named[part]) & set(there)]
            for said in _not_there(wanted, there):
                screen.say(said)
        return [one for part in parts for one in reproduce(part, settings, screen)]
    if isinstance(preset, catalogue.Ranking):
        return _Reproduction(settings, screen).ranking(name, preset)
    if isinstance(preset, catalogue.Natural):
        return natural(name, preset, settings, screen)
    if isinstance(preset, catalogue.Claims):
        raise ConfigError(f"{name} trains nothing: it judges records of runs, see propfair.paper.claims")
    _check_only(name, preset, settings.only)
    return [_Reproduction(settings, screen).of(name, preset)]


def _check_only(name: str, preset: catalogue.Preset, only: Sequence[str]) -> None:
    """Refuse algorithms that a table or figure does not have, rather than leave them out without a word."""
    known = {label for _, labels in _needs(preset) for label in labels}
    for label in only:
        if known and label not in known:
            raise unknown(f"algorithm of {name}", label, known)


def left_to_run(name: str, settings: Settings) -> Iterator[Left]:
    """What is left to run for a table or figure, with an estimate from a measured round."""
    work, preset = _Reproduction(settings, Silent()), load_preset(name)
    if not isinstance(preset, (catalogue.Ranking, catalogue.Natural)):
        check_experiments(settings.experiments, [part for part, _ in _needs(preset)] or settings.experiments)
    if isinstance(preset, catalogue.Ranking):
        for data in ranked_data(preset, settings):
            described = preset.at(settings.scale).data[data]
            yield work.left(*ranking_sweep(preset, data, settings), described.title, described.note)
    if isinstance(preset, catalogue.Natural):
        yield from natural_left(name, preset, settings)
    for part, only in _needs(preset):
        if not settings.experiments or part in settings.experiments:
            experiment = load_experiment(part)
            sweep, folder = work.sweep(part, only, _held_against(preset))
            yield work.left(sweep, folder, experiment.title, experiment.note(settings.scale))
            if isinstance(preset, catalogue.Finetune):
                yield work.left_to_train_on(preset, sweep, folder / _FINETUNED)


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

    def sweep(self, experiment: str, only: Sequence[str] = (), always: Sequence[str] = ()) -> tuple[Sweep, Path]:
        """The sweep behind an experiment, and its folder; `only` what the preset needs, or fewer of these.

        What others are held against is there `always`.
        """
        own = (*always, *self.settings.only) if self.settings.only else ()
        sweep = load_experiment(experiment).sweep(
            f"{experiment} {self.settings.scale}", self.settings.scale, published=self.settings.published,
            only=[label for label in only if not own or label in own] or own,
            seeds=self.settings.seeds, overrides=self.settings.overrides,
        )  # fmt: skip
        return sweep, self.settings.out / experiment

    def estimate(self, studies: Studies) -> Estimate:
        return estimate(studies, workers=self.settings.workers, threads=self.settings.threads)

    def left(self, sweep: Sweep, folder: Path, title: str, note: str) -> Left:
        """For who asks before anything is run: other settings may be chosen after that."""
        with Home.looked_at(folder) as seen:
            studies = Studies(sweep, seen)
            try:
                return Left(title, note, tuple(one.label for one in sweep.contestants), self.estimate(studies))
            finally:
                studies.disconnect()

    def left_to_train_on(self, preset: catalogue.Finetune, sweep: Sweep, folder: Path) -> Left:
        """What is left of the second trainings, at the pace of the first algorithm."""
        experiment, pairs = load_experiment(preset.experiment), self.pairs(preset)
        runs = len(pairs) * len(sweep.seeds) - sum(
            has_ended(run)
            for first, then in pairs.values()
            for run in folder.glob(f"{slug(first)}-seed*-then-{slug(then)}")
        )
        rounds = experiment.rounds_to_finetune(self.settings.scale)
        said = f"{experiment.title}, trained on", f"from the models of the runs above, {rounds} rounds", tuple(pairs)
        if runs <= 0:
            return Left(*said, NOTHING_LEFT)
        contestant = sweep.contestants[0]
        config = sweep.final_config(contestant, sweep.example(contestant), 0)
        federation = build_federation(config)
        pace = measure_pace(config, federation, self.settings.threads)
        schedule = replace(config.schedule, rounds=rounds, eval_every=rounds)
        seconds = runs * pace.of_run(schedule, federation)
        return Left(*said, Estimate(0, 0, runs, rounds, pace.round, seconds, workers=1))

    def pairs(self, preset: catalogue.Finetune) -> dict[str, tuple[str, str]]:
        """By label of the figure, of those that were asked for: which algorithm trains first, and which trains on."""
        return {
            label: (preset.start or label, preset.end or label)
            for label in preset.paper
            if not self.settings.only or label in self.settings.only
        }

    def studies(self, experiment: str, only: Sequence[str] = (), always: Sequence[str] = ()) -> Studies:
        """The finished sweep behind an experiment."""
        described = load_experiment(experiment)
        return self._finished(
            *self.sweep(experiment, only, always), described.title, described.note(self.settings.scale)
        )

    def _finished(self, sweep: Sweep, folder: Path, title: str, note: str) -> Studies:
        """Run what is left of a sweep."""
        home = Home.at(folder)
        studies = Studies(sweep, home)
        self.screen.say("; ".join([f"{title}, scale {self.settings.scale}: {note}", *self._changed()]))
        if not studies.complete:
            self.screen.say(said_estimate(self.estimate(studies)))
            with self.screen.table(sweep) as show:
                studies = run_sweep(
                    sweep, home, workers=self.settings.workers, threads=self.settings.threads,
                    minutes=self.settings.minutes, show=show,
                )  # fmt: skip
        if not studies.complete:
            raise NotCompleteError(f"time is up before all runs of {title} are done; the same command goes on")
        return studies

    # The tables.

    def _statistics(self, name: str, preset: catalogue.Statistics) -> Reproduced:
        if self.settings.records:
            return recorded_statistics(name, preset, self.settings)
        studies = self.studies(preset.experiment, list(preset.paper))
        numbers = statistics_numbers(_groups(studies.tested()), preset)
        return Reproduced(
            name, preset, numbers, self._notes([preset.experiment], studies), runs=_final_folders(studies),
            at_paper_scale=self.settings.scale == "paper",
        )  # fmt: skip

    def _sizes(self, name: str, preset: catalogue.Sizes) -> Reproduced:
        chosen = check_experiments(self.settings.experiments, preset.experiments)
        numbers = []
        for experiment in chosen:
            sweep, _ = self.sweep(experiment, ["fedavg"])
            config = sweep.final_config(sweep.contestants[0], sweep.example(sweep.contestants[0]), 0)
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
        notes: list[str] = []
        for experiment in check_experiments(self.settings.experiments, preset.experiments):
            studies = self.studies(experiment, list(preset.parameters))
            folders += _final_folders(studies)
            notes += _about(experiment, self._notes([experiment], studies))
            winners = {winner.contestant.label: winner for winner in studies.winners()}
            for label, key in preset.parameters.items():
                if label in winners:
                    ours = _value(winners[label], key)
                    numbers.append(Number(label, experiment, ours, paper=preset.paper[experiment][label]))
        return Reproduced(name, preset, numbers, notes, runs=folders)

    def ranking(self, name: str, preset: catalogue.Ranking) -> list[Reproduced]:
        """A table for each data set, and one of the ranks on all of them."""
        tables, by_data = [], {}
        for data in ranked_data(preset, self.settings):
            described = preset.at(self.settings.scale).data[data]
            found = self._finished(*ranking_sweep(preset, data, self.settings), described.title, described.note)
            table, by_data[data] = ranked(name, preset, data, self.settings, found)
            tables.append(table)
        return tables if len(tables) == 1 else [*tables, overall(name, preset, by_data)]

    # The figures.

    def _relative(self, name: str, preset: catalogue.Relative) -> Reproduced:
        if self.settings.records:
            return recorded_changes(name, preset, self.settings)
        studies = self.studies(preset.experiment, [preset.reference, *preset.paper], _held_against(preset))
        runs = _final_runs(studies)
        if preset.reference not in runs:
            raise ConfigError(f"{name} compares with {preset.reference}, which has no finished run")
        others = {label: own for label, own in runs.items() if label in preset.paper}
        numbers, certified, verdicts = changes_from(runs[preset.reference], others, preset)
        notes = [*verdicts, *self._notes([preset.experiment], studies)]
        return Reproduced(name, preset, numbers, notes, certified, _final_folders(studies))

    def _finetune(self, name: str, preset: catalogue.Finetune) -> Reproduced:
        if self.settings.records:
            return recorded_changes(name, preset, self.settings)
        studies = self.studies(preset.experiment, preset.algorithms, _held_against(preset))
        rounds = load_experiment(preset.experiment).rounds_to_finetune(self.settings.scale)
        runs = _final_runs(studies)
        contestants = {winner.contestant.label: _contestant(winner) for winner in studies.winners()}
        pairs: dict[str, tuple[list[Run], list[Run]]] = {}
        for label, (first, then) in self.pairs(preset).items():
            if {first, then} <= runs.keys():
                tuned = finetune(
                    _folders(runs[first]), [contestants[then]], out=studies.home.out / _FINETUNED,
                    overrides={"schedule.rounds": rounds, "schedule.eval_every": rounds}, show_run=self.screen.run,
                )  # fmt: skip
                pairs[label] = runs[first], [one.end for one in tuned]
        numbers, certified, verdicts = changes_by_training_on(pairs, preset)
        notes = [
            f"fine-tuned for {rounds} rounds; the paper does not say how many",
            *verdicts,
            *self._notes([preset.experiment], studies),
        ]
        ends = _folders([run for _, then in pairs.values() for run in then])
        return Reproduced(name, preset, numbers, notes, certified, [*_final_folders(studies), *ends])

    def _scatter(self, name: str, preset: catalogue.Scatter) -> Reproduced:
        tables = [(part, load_preset(part)) for part in preset.parts]
        named = [table.experiment for _, table in tables if isinstance(table, catalogue.Statistics)]
        chosen = check_experiments(self.settings.experiments, named)
        numbers: list[Number] = []
        folders: list[Path] = []
        notes: list[str] = []
        if self.settings.records:
            there = experiments_there(chosen, self.settings) or chosen
            notes += _not_there(chosen, there)
            chosen = there
        for part, table in tables:
            if isinstance(table, catalogue.Statistics) and table.experiment in chosen:
                if self.settings.records:
                    found = recorded_statistics(part, table, self.settings)
                    own, told = found.numbers, found.notes
                else:
                    studies = self.studies(table.experiment, preset.algorithms)
                    folders += _final_folders(studies)
                    own = statistics_numbers(_groups(studies.tested()), table)
                    told = self._notes([table.experiment], studies)
                notes += _about(table.experiment, told)
                numbers += [
                    replace(one, row=f"{table.experiment}: {one.row}")
                    for one in own
                    if one.column in ("mean", "worst10") and one.row in preset.algorithms
                ]
        at_paper_scale = self.settings.scale == "paper"
        return Reproduced(name, preset, numbers, notes, runs=folders, at_paper_scale=at_paper_scale)

    def _notes(self, experiments: Sequence[str], studies: Studies | None = None) -> list[str]:
        scale = self.settings.scale
        said = {f"scale {scale}: {load_experiment(one).note(scale)}": None for one in experiments}
        values = "the paper's best values" if self.settings.published else "values chosen on a validation split"
        notes = [
            *said,
            f"{values}; {self._first_models(experiments)}; test split read once, after the last round",
            *self._changed(),
        ]
        if studies is not None:
            seeds = ", ".join(map(str, studies.sweep.seeds))
            tested = studies.tested()
            seconds = sum(one.seconds for one in tested)
            notes.append(f"seeds {seeds}; population std; final runs took {seconds:.0f} s in all")
            notes += [*studies.failures(), *edge_notes(tested), *cautions([one.group for one in tested])]
        return notes

    def _changed(self) -> list[str]:
        """What differs from the preset, in a sentence, if anything does."""
        given = self.settings.overrides
        changed = [f"{key}={value}" for key, value in given.items() if key != "data.folder"]  # where, not what
        return [f"changed settings: {', '.join(changed)}"] if changed else []

    def _first_models(self, experiments: Sequence[str]) -> str:
        sweeps = [self.sweep(experiment)[0] for experiment in experiments]
        configs = [sweep.final_config(one, sweep.example(one), 0) for sweep in sweeps for one in sweep.contestants]
        return " or ".join(_FIRST_MODELS[init] for init in sorted({config.init for config in configs}))


class Silent:
    """Nobody is told, and nothing may be trained."""

    def say(self, text: str) -> None: ...

    def table(self, sweep: Sweep) -> AbstractContextManager[Callable[[Studies], None]]:
        raise AssertionError

    def run(self, title: str, rounds: int) -> AbstractContextManager[AfterRound]:
        raise AssertionError


def _not_there(wanted: Sequence[str], there: Sequence[str]) -> list[str]:
    missing = [load_experiment(one).title for one in wanted if one not in there]
    return [f"no runs on record: {', '.join(missing)}"] if missing else []


def _about(experiment: str, notes: Sequence[str]) -> list[str]:
    """The notes with the data set that they are about, for a table of several."""
    return [f"{load_experiment(experiment).title}: {said}" for said in notes]


def _groups(tested: Sequence[Tested]) -> dict[str, Group]:
    return {one.winner.contestant.label: one.group for one in tested}


def _final_folders(studies: Studies) -> list[Path]:
    """The folders of the winners' runs."""
    return [studies.final_folder(winner, seed) for winner in studies.winners() for seed in studies.sweep.seeds]


def _final_runs(studies: Studies) -> dict[str, list[Run]]:
    """By algorithm, its final runs."""
    found = {}
    for winner in studies.winners():
        folders = [studies.final_folder(winner, seed) for seed in studies.sweep.seeds]
        runs = [read_run(folder) for folder in folders]
        finished = [run for run in runs if run.status.state == "finished"]
        if finished:
            found[winner.contestant.label] = finished
    return found


def _folders(runs: Sequence[Run]) -> list[Path]:
    return [run.folder for run in runs if run.folder is not None]


def _contestant(winner: Winner) -> Contestant:
    """The winner's algorithm and settings, to go on with from another model."""
    return Contestant(label=winner.contestant.label, settings={**winner.contestant.settings, **winner.point})


def _value(winner: Winner, key: str) -> float:
    return float({**winner.contestant.settings, **winner.point}[key])


def _sizes(federation: Federation) -> dict[str, int]:
    return {
        "train": int(federation.train.lengths.sum() + federation.validation.lengths.sum()),
        "test": int(federation.test.lengths.sum()),
        "clients": federation.num_clients,
    }


def _held_against(preset: catalogue.Preset) -> list[str]:
    """The algorithm that all others of a figure are compared with, which has to be there whatever was asked for."""
    if isinstance(preset, catalogue.Relative):
        return [preset.reference]
    return [preset.start or preset.end or ""] if isinstance(preset, catalogue.Finetune) else []


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
