"""What a sweep has in its storage: who tries what, what won, and what came of it."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from propfair.fairness.statistics import ClientStatistics, MeanStd, summarize, summarize_seeds
from propfair.runs.config import RunConfig
from propfair.runs.names import slug
from propfair.tuning.claims import Board, Standing, open_storage, open_study
from propfair.tuning.search import Entrant, Range, Sweep

if TYPE_CHECKING:
    import optuna

FINAL = "final"


@dataclass(frozen=True)
class Place:
    """Where a sweep lives.

    Attributes:
        out: the folder of its runs.
        storage: the URL of the Optuna storage.
    """

    out: Path
    storage: str

    @classmethod
    def at(cls, out: Path, storage: str | None = None) -> "Place":
        """With its own SQLite file, unless a storage is given."""
        out.mkdir(parents=True, exist_ok=True)
        return cls(out, storage or f"sqlite:///{(out / 'sweep.db').resolve()}")


@dataclass(frozen=True)
class Winner:
    """The best trial of an algorithm.

    Attributes:
        entrant: the algorithm.
        point: its chosen values.
        value: of the criterion; nan if there was nothing to choose.
    """

    entrant: Entrant
    point: dict[str, Any]
    value: float


@dataclass(frozen=True)
class Row:
    """The state of one algorithm, or of the final runs, for the live table."""

    label: str
    counts: dict[str, int]  # of the states of a `Standing`
    seconds: tuple[float, ...]  # of the trials that are done
    best: Winner | None

    @property
    def ended(self) -> bool:
        return not self.counts.get("free") and not self.counts.get("running")


@dataclass(frozen=True)
class Outcome:
    """What came of an algorithm.

    Attributes:
        winner: the chosen values.
        accuracies: test accuracy by seed, [n] each.
        shares: data shares of the clients, [n].
        seconds: of the final runs.
    """

    winner: Winner
    accuracies: dict[int, np.ndarray]
    shares: np.ndarray
    seconds: float

    def statistics(self, ddof: int = 0) -> dict[str, MeanStd]:
        """Over clients, then mean and standard deviation over seeds."""
        return summarize_seeds(self.by_seed(), ddof)

    def by_seed(self) -> list[ClientStatistics]:
        return [summarize(values, self.shares) for values in self.accuracies.values()]


class Studies:
    """The boards of a sweep in its storage."""

    def __init__(self, sweep: Sweep, place: Place) -> None:
        self.sweep, self.place = sweep, place
        self._storage = open_storage(place.storage)
        self._finals: dict[str, Board] = {}
        self.boards = {
            entrant.label: Board(
                open_study(
                    self._storage, f"{sweep.name}: {entrant.label}", sweep.fingerprint(entrant),
                    sampler=_sampler(sweep), pruner=_pruner(sweep),
                ),
                sweep.num_trials(entrant),
            )
            for entrant in sweep.entrants
        }  # fmt: skip

    def final(self, winners: Sequence[Winner]) -> Board:
        """The board of the final runs: every winner with every seed."""
        said = [[winner.entrant.label, winner.point] for winner in winners]
        known = hashlib.sha256(json.dumps([said, self.sweep.seeds], sort_keys=True).encode()).hexdigest()[:16]
        if known not in self._finals:
            study = open_study(
                self._storage, f"{self.sweep.name}: {FINAL} {known}", known, sampler=_sampler(self.sweep)
            )
            self._finals[known] = Board(study, len(winners) * len(self.sweep.seeds))
        return self._finals[known]

    def winner(self, entrant: Entrant) -> Winner | None:
        """The best trial so far; of equal ones the first point."""
        if not self.sweep.num_trials(entrant):
            return Winner(entrant, dict(self.sweep.example(entrant)), math.nan)
        done = [
            (standing.trial.value, -point, standing.trial.params)
            for point, standing in enumerate(self.boards[entrant.label].standings())
            if standing.state == "done" and standing.trial is not None and standing.trial.value is not None
        ]
        if not done:
            return None
        value, _, point = max(done, key=lambda one: one[:2])
        return Winner(entrant, {key: _plain(entrant, key, chosen) for key, chosen in point.items()}, value)

    def winners(self) -> list[Winner]:
        """One for each algorithm that has any trial that did not fail."""
        found = (self.winner(entrant) for entrant in self.sweep.entrants)
        return [winner for winner in found if winner is not None]

    @property
    def tuned(self) -> bool:
        """Every point of every algorithm has been tried."""
        return all(standing.ended for board in self.boards.values() for standing in board.standings())

    @property
    def complete(self) -> bool:
        """The final runs have ended as well."""
        winners = self.winners()
        return self.tuned and (not winners or all(standing.ended for standing in self.final(winners).standings()))

    def rows(self) -> list[Row]:
        """The live table."""
        rows = [
            _row(entrant.label, self.boards[entrant.label].standings(), self.winner(entrant))
            for entrant in self.sweep.entrants
        ]
        if all(row.ended for row in rows) and self.winners():
            rows.append(_row(FINAL, self.final(self.winners()).standings(), None))
        return rows

    def failures(self) -> list[str]:
        """Why trials failed, in sentences."""
        return [
            f"{'diverged' if trial.user_attrs['diverged'] else 'failed'}: "
            f"{label}{f', {trial.params}' if trial.params else ''}: {trial.user_attrs['reason']}"
            for label, trial in self._failed()
        ]

    @property
    def broken(self) -> bool:
        """Something failed that should not: a defect, a final run, or all trials of an algorithm."""
        defects = any(label == FINAL or not trial.user_attrs["diverged"] for label, trial in self._failed())
        return defects or len(self.winners()) < len(self.sweep.entrants)

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
        config = self.sweep.final_config(winner.entrant, winner.point, seed)
        return self.place.out / "final" / slug(f"{winner.entrant.label}-seed{seed}-{short_hash(config)}")

    def outcomes(self) -> list[Outcome]:
        """The results on the test split, once all final runs have ended."""
        winners, seeds = self.winners(), self.sweep.seeds
        standings = self.final(winners).standings() if winners else []
        outcomes = []
        for position, winner in enumerate(winners):
            own = standings[position * len(seeds) : (position + 1) * len(seeds)]
            done = {
                seed: standing.trial.user_attrs
                for seed, standing in zip(seeds, own, strict=True)
                if standing.state == "done" and standing.trial is not None
            }
            if done:
                any_one = next(iter(done.values()))
                accuracies = {seed: np.array(one["accuracy"], dtype=np.float64) for seed, one in done.items()}
                seconds = sum(one["seconds"] for one in done.values())
                outcomes.append(Outcome(winner, accuracies, np.array(any_one["shares"]), seconds))
        return outcomes


def _row(label: str, standings: Sequence[Standing], best: Winner | None) -> Row:
    counts: dict[str, int] = {}
    seconds = []
    for standing in standings:
        counts[standing.state] = counts.get(standing.state, 0) + 1
        if standing.state == "done" and standing.trial is not None:
            seconds.append(float(standing.trial.user_attrs["seconds"]))
    return Row(label, counts, tuple(seconds), best)


def _sampler(sweep: Sweep) -> "optuna.samplers.BaseSampler":
    import optuna

    if sweep.search.sampler == "tpe":
        return optuna.samplers.TPESampler(seed=sweep.search.seed)
    return optuna.samplers.RandomSampler(seed=0)  # never asked: the points of a grid are given


def _pruner(sweep: Sweep) -> "optuna.pruners.BasePruner":
    import optuna

    return optuna.pruners.MedianPruner(n_startup_trials=3) if sweep.search.pruning else optuna.pruners.NopPruner()


def _plain(entrant: Entrant, key: str, chosen: Any) -> Any:
    values = entrant.choices[key]
    return chosen if isinstance(values, Range) else next(value for value in values if stored(value) == chosen)


def stored(value: Any) -> Any:
    """Optuna stores scalars; a list (one M for each client, say) goes in as text."""
    return value if isinstance(value, (bool, int, float, str)) else json.dumps(value)


def short_hash(config: RunConfig) -> str:
    """For the name of a folder."""
    return hashlib.sha256(config.to_toml().encode()).hexdigest()[:8]
