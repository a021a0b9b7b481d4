"""How long a sweep will take, from one measured round."""

from dataclasses import dataclass

from propfair.algorithms.base import Needs
from propfair.engines.inprocess import torch_threads
from propfair.federation.federation import Federation
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
        round_seconds: the longest measured round; 0 if nothing is left.
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
    trial_rounds = sweep.trial_config(example, sweep.example(example)).schedule.rounds
    final_rounds = sweep.final_config(example, sweep.example(example), 0).schedule.rounds
    federations = Federations()
    measured: dict[bool, float] = {}
    work = 0.0
    for contestant in sweep.contestants:
        rounds = left[contestant.label] * trial_rounds + finals[contestant.label] * final_rounds
        if rounds:
            asks = _asks_for_losses(sweep, contestant)
            if asks not in measured:
                config = sweep.trial_config(contestant, sweep.example(contestant))
                measured[asks] = measure_round(config, federations.of(config), threads)
            work += rounds * measured[asks]
    return Estimate(
        num_trials=sum(left.values()),
        trial_rounds=trial_rounds,
        num_finals=sum(finals.values()),
        final_rounds=final_rounds,
        round_seconds=max(measured.values(), default=0.0),
        seconds=work / max(1, workers),
        workers=max(1, workers),
    )


def measure_round(config: RunConfig, federation: Federation, threads: int) -> float:
    """Seconds of one round, evaluation and start-up left out."""
    short = config.changed(schedule=Schedule(rounds=1, eval_splits=()))
    seen: list[Progress] = []
    with torch_threads(threads):
        run(short, federation=federation, after_round=seen.append)
    return seen[-1].seconds if seen else 0.0


def _asks_for_losses(sweep: Sweep, contestant: Tunable) -> bool:
    return bool(sweep.trial_config(contestant, sweep.example(contestant)).parts.algorithm.needs & Needs.ANY_LOSS)
