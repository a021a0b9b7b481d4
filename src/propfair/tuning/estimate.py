"""How long a sweep will take, from a measured round and a measured evaluation."""

from collections.abc import Collection
from dataclasses import dataclass

from propfair.algorithms.base import Needs
from propfair.engines.inprocess import torch_threads
from propfair.federation.federation import Federation, Split
from propfair.runs.building import Federations
from propfair.runs.config import RunConfig
from propfair.runs.launch import run
from propfair.runs.progress import Progress
from propfair.runs.schedule import Schedule
from propfair.tuning.search import Sweep, Tunable
from propfair.tuning.studies import Studies


@dataclass(frozen=True)
class Estimate:
    """What is left of a sweep.

    Attributes:
        num_trials, trial_rounds: runs to choose by, and rounds of each.
        num_finals, final_rounds: runs of the winners.
        round_seconds: the longest measured round, evaluation left out; 0 if nothing is left.
        seconds: of everything.
        workers: the processes that share the work.
    """

    num_trials: int
    trial_rounds: int
    num_finals: int
    final_rounds: int
    round_seconds: float
    seconds: float
    workers: int

    @property
    def nothing(self) -> bool:
        """There is nothing left to run."""
        return self.num_trials + self.num_finals == 0


@dataclass(frozen=True)
class Pace:
    """How fast runs of a kind go.

    Attributes:
        round: seconds of a round, evaluation left out.
        example: seconds in which one example is evaluated.
    """

    round: float
    example: float

    def of_run(self, schedule: Schedule, federation: Federation) -> float:
        """Seconds of a whole run: its rounds, what is evaluated on the way, and what after the last round."""
        times = -(-schedule.rounds // schedule.eval_every)
        last = set(schedule.final_splits) - set(schedule.eval_splits)
        evaluated = times * _num_examples(federation, schedule.eval_splits) + _num_examples(federation, last)
        return schedule.rounds * self.round + evaluated * self.example


NOTHING_LEFT = Estimate(0, 0, 0, 0, round_seconds=0.0, seconds=0.0, workers=1)


def estimate(studies: Studies, *, workers: int, threads: int) -> Estimate:
    """Measure a round of an algorithm that needs the clients' losses and of one that does not; count what is left."""
    sweep = studies.sweep
    left = {
        contestant.label: sum(not standing.ended for standing in studies.standings(contestant))
        for contestant in sweep.contestants
    }
    finals = {contestant.label: len(sweep.seeds) for contestant in sweep.contestants}
    if studies.tuned:
        winners = studies.winners()
        standings = studies.final(winners).standings() if winners else []
        for position, winner in enumerate(winners):
            own = standings[position * len(sweep.seeds) : (position + 1) * len(sweep.seeds)]
            finals[winner.contestant.label] = sum(not standing.ended for standing in own)
    example = sweep.contestants[0]
    trial = sweep.trial_config(example, sweep.example(example))
    final = sweep.final_config(example, sweep.example(example), 0)
    federations = Federations()
    paces: dict[bool, Pace] = {}
    work = 0.0
    for contestant in sweep.contestants:
        if left[contestant.label] + finals[contestant.label]:
            asks = _asks_for_losses(sweep, contestant)
            if asks not in paces:
                config = sweep.trial_config(contestant, sweep.example(contestant))
                paces[asks] = measure_pace(config, federations.of(config), threads)
            work += left[contestant.label] * paces[asks].of_run(trial.schedule, federations.of(trial))
            work += finals[contestant.label] * paces[asks].of_run(final.schedule, federations.of(final))
    return Estimate(
        num_trials=sum(left.values()),
        trial_rounds=trial.schedule.rounds,
        num_finals=sum(finals.values()),
        final_rounds=final.schedule.rounds,
        round_seconds=max((pace.round for pace in paces.values()), default=0.0),
        seconds=work / max(1, workers),
        workers=max(1, workers),
    )


def measure_pace(config: RunConfig, federation: Federation, threads: int) -> Pace:
    """Run two rounds, the second with the evaluation that the config asks for; start-up is left out."""
    schedule = config.schedule
    splits = schedule.eval_splits or schedule.final_splits
    short = config.changed(schedule=Schedule(rounds=2, eval_every=2, eval_splits=splits))
    seen: list[Progress] = []
    with torch_threads(threads):
        run(short, federation=federation, after_round=seen.append)
    if len(seen) < 2:
        return Pace(0.0, 0.0)  # all clients diverged: nothing is known
    first, both = (progress.seconds for progress in seen)
    return Pace(first, max(0.0, both - 2 * first) / max(1, _num_examples(federation, splits)))


def _num_examples(federation: Federation, splits: Collection[Split]) -> int:
    return sum(len(federation.split(split).values) for split in splits)


def _asks_for_losses(sweep: Sweep, contestant: Tunable) -> bool:
    return bool(sweep.trial_config(contestant, sweep.example(contestant)).parts.algorithm.needs & Needs.ANY_LOSS)
