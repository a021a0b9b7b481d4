"""What a sweep has in its storage: who tries what, what won, and what came of it."""

import contextlib
import hashlib
import json
import math
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from propfair.errors import ConfigError
from propfair.files import check_replaceable
from propfair.runs.grouping import Group
from propfair.runs.measures import ACCURACY, Measure
from propfair.runs.names import short_hash, slug
from propfair.runs.reading import read_run
from propfair.tuning.claims import Board, Standing, open_storage, open_study, said_of, storage_errors
from propfair.tuning.extension import all_points, best_point, tried, wanted
from propfair.tuning.search import Range, Sweep, Tunable

if TYPE_CHECKING:
    import optuna

FINAL = "final"
_FILES = ("sweep.db", "sweep.db-wal", "sweep.db-shm", "sweep.db-journal")


@dataclass(frozen=True)
class Home:
    """Where a sweep lives.

    Attributes:
        out: the folder of its runs.
        storage: the URL of the Optuna storage.
    """

    out: Path
    storage: str

    @classmethod
    def at(cls, out: Path, storage: str | None = None) -> "Home":
        """With its own SQLite file, unless a storage is given."""
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"a sweep can't be kept in {out}: {error.strerror}. Choose another --out.") from None
        for name in _FILES:
            check_replaceable(out / name)  # a stranger's link could lead to any database
        for name in ("trials", FINAL):
            if (out / name).is_symlink():
                raise ConfigError(f"{out / name} is a link, and a sweep keeps its runs in folders of its own")
        return cls(out, storage or f"sqlite:///{(out / 'sweep.db').resolve()}")

    @classmethod
    @contextlib.contextmanager
    def looked_at(cls, out: Path) -> Iterator["Home"]:
        """The runs in a folder with a copy of their SQLite file: who only looks leaves neither study nor folder."""
        file = out / "sweep.db"
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, file.name)
            if file.exists():
                with (
                    storage_errors(str(file)),
                    contextlib.closing(sqlite3.connect(file, timeout=60)) as own,
                    contextlib.closing(sqlite3.connect(copy)) as other,
                ):
                    own.backup(other)
            yield cls(out, f"sqlite:///{copy}")


@dataclass(frozen=True)
class Winner:
    """The best trial of an algorithm.

    Attributes:
        contestant: the algorithm.
        point: its chosen values.
        value: of the criterion, larger for better; nan if there was nothing to choose.
        measure: what the criterion is a number of.
    """

    contestant: Tunable
    point: dict[str, Any]
    value: float
    measure: Measure = ACCURACY

    @property
    def found(self) -> float:
        """The value as it is read: an error is positive."""
        return self.value if self.measure.higher_is_better else -self.value

    @property
    def at_edge(self) -> list[str]:
        """The settings whose chosen value is the smallest or the largest of three or more numbers that were tried.

        A better value may lie beyond it.
        """
        numbers = {
            key: values
            for key, values in self.contestant.choices.items()
            if not isinstance(values, Range) and len(values) > 2 and all(type(one) in (int, float) for one in values)
        }
        return [key for key, values in numbers.items() if self.point[key] in (min(values), max(values))]


@dataclass(frozen=True)
class Tally:
    """The state of one algorithm, or of the final runs, for the live table."""

    label: str
    counts: dict[str, int]  # of the states of a `Standing`
    seconds: tuple[float, ...]  # of the trials that are done
    best: Winner | None

    @property
    def ended(self) -> bool:
        return not self.counts.get("free") and not self.counts.get("running")


@dataclass(frozen=True)
class Tested:
    """What came of an algorithm.

    Attributes:
        winner: the chosen values.
        group: the final runs, one for each seed that did not fail.
    """

    winner: Winner
    group: Group

    @property
    def seconds(self) -> float:
        """Of the final runs."""
        return sum(run.status.seconds for run in self.group.runs)


class Studies:
    """The boards of a sweep in its storage."""

    def __init__(self, sweep: Sweep, home: Home) -> None:
        self.sweep, self.home = sweep, home
        self._storage = open_storage(home.storage)
        self._finals: dict[str, Board] = {}
        self.boards = {
            contestant.label: Board(
                open_study(
                    self._storage, f"{sweep.name}: {contestant.label}", sweep.fingerprint(contestant),
                    sampler=_sampler(sweep), pruner=_pruner(sweep),
                ),
                self._num_points(contestant),
                home.storage,
            )
            for contestant in sweep.contestants
        }  # fmt: skip

    def disconnect(self) -> None:
        """Close all connections, so that this process may fork; they are opened again when they are needed."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    def final(self, winners: Sequence[Winner]) -> Board:
        """The board of the final runs: every winner with every seed."""
        said = [[winner.contestant.label, winner.point] for winner in winners]
        known = hashlib.sha256(json.dumps([said, self.sweep.seeds], sort_keys=True).encode()).hexdigest()[:16]
        if known not in self._finals:
            study = open_study(
                self._storage, f"{self.sweep.name}: {FINAL} {known}", known, sampler=_sampler(self.sweep)
            )
            self._finals[known] = Board(study, len(winners) * len(self.sweep.seeds), self.home.storage)
        return self._finals[known]

    def _num_points(self, contestant: Tunable) -> int:
        """How many points there may come to be; those of a grid that grows are not all tried."""
        trials = self.sweep.num_trials(contestant)
        grows = trials and self.sweep.search.sampler == "grid"
        return len(all_points(contestant, self.sweep.search.extend)) if grows else trials

    def wanted(self, contestant: Tunable, standings: Sequence[Standing] | None = None) -> list[int]:
        """The numbers of the points to try, as far as is known now."""
        standings = self.boards[contestant.label].standings() if standings is None else standings
        if self.sweep.search.sampler != "grid":
            return list(range(len(standings)))
        return wanted(contestant, self.sweep.search.extend, standings)

    def standings(self, contestant: Tunable) -> list[Standing]:
        """The state of every point that is wanted."""
        all_of_them = self.boards[contestant.label].standings()
        return [all_of_them[number] for number in self.wanted(contestant, all_of_them)]

    def winner(self, contestant: Tunable, standings: Sequence[Standing] | None = None) -> Winner | None:
        """The best trial so far; of equal ones the first point."""
        if not self.sweep.num_trials(contestant):
            return Winner(contestant, dict(self.sweep.example(contestant)), math.nan)
        if standings is None:
            standings = self.boards[contestant.label].standings()
        numbers = self.wanted(contestant, standings)
        best = best_point(numbers, standings)
        if best is None:
            return None
        trial = standings[best].trial
        assert trial is not None
        assert trial.value is not None
        if self.sweep.search.sampler == "grid":
            points = all_points(contestant, self.sweep.search.extend)
            contestant = tried(contestant, [points[number] for number in numbers])
        point = {key: _plain(contestant, key, one) for key, one in trial.params.items()}
        said = said_of(trial)  # sweeps of version 0.1.0 say nothing of a metric
        measure = Measure(self.sweep.split, said.get("metric", "accuracy"), said.get("higher_is_better"))
        return Winner(contestant, point, trial.value, measure)

    def winners(self) -> list[Winner]:
        """One for each algorithm that has any trial that did not fail."""
        found = (self.winner(contestant) for contestant in self.sweep.contestants)
        return [winner for winner in found if winner is not None]

    @property
    def tuned(self) -> bool:
        """Every point of every algorithm has been tried."""
        return all(standing.ended for one in self.sweep.contestants for standing in self.standings(one))

    @property
    def complete(self) -> bool:
        """The final runs have ended as well."""
        winners = self.winners()
        return self.tuned and (not winners or all(standing.ended for standing in self.final(winners).standings()))

    def tallies(self) -> list[Tally]:
        """The live table."""
        tallies = []
        for contestant in self.sweep.contestants:
            standings = self.boards[contestant.label].standings()
            wanted = [standings[number] for number in self.wanted(contestant, standings)]
            tallies.append(_tally(contestant.label, wanted, self.winner(contestant, standings)))
        winners = [tally.best for tally in tallies if tally.best is not None]
        if winners and all(tally.ended for tally in tallies):
            tallies.append(_tally(FINAL, self.final(winners).standings(), None))
        return tallies

    def failures(self) -> list[str]:
        """Why trials failed, in sentences."""
        return [
            f"{'diverged' if said_of(trial)['diverged'] else 'failed'}: "
            f"{label}{f', {trial.params}' if trial.params else ''}: {said_of(trial)['reason']}"
            for label, trial in self._failed()
        ]

    @property
    def broken(self) -> bool:
        """Something failed that should not: a defect, a final run, or all trials of an algorithm."""
        defects = any(label == FINAL or not said_of(trial)["diverged"] for label, trial in self._failed())
        return defects or len(self.winners()) < len(self.sweep.contestants)

    def _failed(self) -> "list[tuple[str, optuna.trial.FrozenTrial]]":
        boards = dict(self.boards)
        if self.tuned and self.winners():
            boards[FINAL] = self.final(self.winners())
        return [
            (label, standing.trial)
            for label, board in boards.items()
            for standing in board.standings()
            if standing.state == "failed" and standing.trial is not None
        ]

    def final_folder(self, winner: Winner, seed: int) -> Path:
        """Where the run of a winner with this seed is, or will be."""
        config = self.sweep.final_config(winner.contestant, winner.point, seed)
        return self.home.out / "final" / slug(f"{winner.contestant.label}-seed{seed}-{short_hash(config.to_toml())}")

    def tested(self) -> list[Tested]:
        """The results on the test split, read from the final runs, once all have ended."""
        winners, seeds = self.winners(), self.sweep.seeds
        standings = self.final(winners).standings() if winners else []
        found = []
        for position, winner in enumerate(winners):
            own = standings[position * len(seeds) : (position + 1) * len(seeds)]
            done = [seed for seed, standing in zip(seeds, own, strict=True) if standing.state == "done"]
            runs = tuple(read_run(self.final_folder(winner, seed)) for seed in done)
            if runs:
                found.append(Tested(winner, Group(winner.contestant.label, runs, {})))
        return found


def _tally(label: str, standings: Sequence[Standing], best: Winner | None) -> Tally:
    counts: dict[str, int] = {}
    seconds = []
    for standing in standings:
        counts[standing.state] = counts.get(standing.state, 0) + 1
        if standing.state == "done":
            seconds.append(float(standing.said["seconds"]))
    return Tally(label, counts, tuple(seconds), best)


def _sampler(sweep: Sweep) -> "optuna.samplers.BaseSampler":
    import optuna

    if sweep.search.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=sweep.search.seed)
    return optuna.samplers.RandomSampler(seed=0)  # never asked: the points of a grid are given


def _pruner(sweep: Sweep) -> "optuna.pruners.BasePruner":
    import optuna

    return optuna.pruners.MedianPruner(n_startup_trials=3) if sweep.search.pruning else optuna.pruners.NopPruner()


def _plain(contestant: Tunable, key: str, chosen: Any) -> Any:
    values = contestant.choices[key]
    return chosen if isinstance(values, Range) else next(value for value in values if stored(value) == chosen)


def stored(value: Any) -> Any:
    """Optuna stores scalars; a list (one M for each client, say) goes in as text."""
    return value if isinstance(value, (bool, int, float, str)) else json.dumps(value)
