"""Runs a sweep: tries every point, chooses on the validation split, runs the winners with every seed, tests once.

All that matters is in the storage and in the run folders, so a sweep can be stopped, killed, called again, and called
several times at once, here and on other machines: finished trials are never run again.
"""

import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from propfair.engines.inprocess import torch_threads
from propfair.errors import ConfigError, PropFairError
from propfair.runs.building import Federations
from propfair.runs.config import RunConfig
from propfair.runs.folder import InUseError
from propfair.runs.interrupt import stop_on_signal
from propfair.runs.launch import ensure_run
from propfair.runs.measures import Measure
from propfair.runs.names import short_hash, slug
from propfair.runs.progress import AfterRound, Progress
from propfair.runs.run import Run
from propfair.tuning.claims import Claim
from propfair.tuning.search import Range, Sweep, Tunable
from propfair.tuning.studies import Home, Studies, Tally, Winner, stored

if TYPE_CHECKING:
    import optuna

_POLL_SECONDS = 0.5


class TrialRunner:
    """Takes points and runs them until none is left.

    Args:
        sweep: what to run.
        home: where.
        number: of this worker, so that workers look for work in different places.
        deadline: no trial is started after this moment of `time.monotonic`.
        after_round: told after each round.
    """

    def __init__(
        self,
        sweep: Sweep,
        home: Home,
        *,
        number: int = 0,
        deadline: float = math.inf,
        after_round: AfterRound = lambda _: None,
    ) -> None:
        self.sweep, self.home, self.number, self.deadline = sweep, home, number, deadline
        self._after_round = after_round
        self._studies = Studies(sweep, home)
        self._federations = Federations()

    def work(self) -> None:
        """Tune, then run the winners; waits for what others are still at."""
        while not self._studies.tuned:
            if self._late():
                return
            if not any(self._tune(contestant) for contestant in self._in_turn()):
                time.sleep(_POLL_SECONDS)
        winners = self._studies.winners()
        if not winners:
            return
        board = self._studies.final(winners)
        while not all(standing.ended for standing in board.standings()):
            if self._late():
                return
            claim = board.claim([({}, {})] * board.num_points, self.number)
            if claim is None:
                time.sleep(_POLL_SECONDS)
            else:
                self._run_final(claim, winners)

    def _late(self) -> bool:
        return time.monotonic() > self.deadline

    def _in_turn(self) -> list[Tunable]:
        shift = self.number % len(self.sweep.contestants)
        return [*self.sweep.contestants[shift:], *self.sweep.contestants[:shift]]

    def _tune(self, contestant: Tunable) -> bool:
        """Run one point of this algorithm; False if none is free."""
        board = self._studies.boards[contestant.label]
        grid = _with_distributions(contestant) if self.sweep.search.sampler == "grid" else None
        claim = board.claim(grid, self.number)
        if claim is None:
            return False
        point = {key: _suggest(claim.trial, key, value) for key, value in contestant.choices.items()}
        config = self.sweep.trial_config(contestant, point)
        folder = self.home.out / "trials" / slug(f"{contestant.label}-{_said(point)}-{short_hash(config.to_toml())}")
        after_round = self._pruning(claim) if self.sweep.search.pruning else self._after_round
        run = self._run(claim, config, folder, f"{contestant.label} {_said(point)}".strip(), after_round)
        if run is not None:
            value = self.sweep.criterion.of(run.summary(Measure(self.sweep.split)))
            if math.isnan(value):
                claim.failed(f"the criterion {self.sweep.criterion} has no value: no client has examples to choose on")
            else:
                claim.done(value, {"seconds": run.status.seconds, "folder": str(folder)})
        return True

    def _run_final(self, claim: Claim, winners: Sequence[Winner]) -> None:
        winner = winners[claim.point // len(self.sweep.seeds)]
        seed = self.sweep.seeds[claim.point % len(self.sweep.seeds)]
        config = self.sweep.final_config(winner.contestant, winner.point, seed)
        claim.trial.set_user_attr("label", winner.contestant.label)
        claim.trial.set_user_attr("seed", seed)
        name = f"{winner.contestant.label}, seed {seed}"
        folder = self._studies.final_folder(winner, seed)
        run = self._run(claim, config, folder, name, self._after_round)
        if run is not None:
            claim.done(run.summary().mean, {"seconds": run.status.seconds, "folder": str(folder)})

    def _run(self, claim: Claim, config: RunConfig, folder: Path, name: str, after_round: AfterRound) -> Run | None:
        """The finished run; None if it failed or was pruned, which is then noted."""
        import optuna

        try:
            with claim.alive():
                run = self._ensure(config, folder, name, after_round)
        except optuna.TrialPruned:
            claim.pruned()
            return None
        except KeyboardInterrupt:
            claim.release()
            raise
        except Exception as error:  # one trial that breaks must not end the others
            claim.failed(f"{type(error).__name__}: {error}")
            return None
        if run.status.state == "failed":
            claim.failed(run.status.reason, diverged=True)
            return None
        return run

    def _ensure(self, config: RunConfig, folder: Path, name: str, after_round: AfterRound) -> Run:
        """The run of this config, also if a process that was taken for dead is still at it."""
        while True:
            try:
                return ensure_run(
                    config, folder, name=name, federation=partial(self._federations.of, config),
                    after_round=after_round,
                )  # fmt: skip
            except InUseError:
                time.sleep(_POLL_SECONDS)

    def _pruning(self, claim: Claim) -> AfterRound:
        """Stops a trial whose criterion, the same that chooses the winner, is below the median of the others."""
        import optuna

        def after_round(now: Progress) -> None:
            self._after_round(now)
            if self.sweep.split in now.evaluations and now.round < now.rounds:
                value = self.sweep.criterion.of(now.summary(self.sweep.split))
                if math.isfinite(value):
                    claim.trial.report(value, now.round)
                    if claim.trial.should_prune():
                        raise optuna.TrialPruned

        return after_round


def run_sweep(
    sweep: Sweep,
    home: Home,
    *,
    workers: int = 1,
    threads: int = 1,
    minutes: float = math.inf,
    show: Callable[[list[Tally]], None] = lambda _: None,
) -> Studies:
    """Run a sweep on `workers` processes with `threads` torch threads each; `show` gets the table about twice a second.

    No workers: everything runs in this process. Raises KeyboardInterrupt when it was stopped; the same call goes on.
    """
    if workers < 0 or threads < 1:
        raise ConfigError(f"workers must be at least 0 and threads 1; got workers={workers}, threads={threads}")
    studies = Studies(sweep, home)
    if workers == 0:
        with torch_threads(threads):
            TrialRunner(sweep, home, deadline=time.monotonic() + 60 * minutes).work()
        show(studies.tallies())
        return studies
    context = multiprocessing.get_context("spawn")
    arguments = [(sweep, home, number, threads, minutes, os.getpid()) for number in range(workers)]
    processes: list[BaseProcess] = [context.Process(target=_work, args=one, daemon=True) for one in arguments]
    with stop_on_signal() as stop:
        for process in processes:
            process.start()
        try:
            while any(process.is_alive() for process in processes):
                show(studies.tallies())
                if stop:
                    _stop(processes)
                    break
                processes[0].join(_POLL_SECONDS)
        except BaseException:
            _stop(processes)
            raise
    for process in processes:
        process.join()
    show(studies.tallies())
    if stop:
        raise KeyboardInterrupt
    broken = [process.exitcode for process in processes if process.exitcode not in (0, 130)]
    if broken and not studies.tuned:
        raise ConfigError(f"{len(broken)} of {workers} workers broke down (exit codes {broken}); see what they said")
    return studies


def _work(sweep: Sweep, home: Home, number: int, threads: int, minutes: float, parent: int) -> None:
    """The main function of a worker process."""

    def after_round(_: Progress) -> None:
        if os.getppid() != parent:  # nobody is left to work for
            raise KeyboardInterrupt

    if hasattr(os, "setsid"):
        os.setsid()  # a Ctrl-C in the terminal reaches the parent alone, which asks once
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_num_threads(threads)
    try:
        deadline = time.monotonic() + 60 * minutes
        TrialRunner(sweep, home, number=number, deadline=deadline, after_round=after_round).work()
    except KeyboardInterrupt:
        os._exit(130)
    except PropFairError as error:  # one line, as the parent would say it
        print(f"error: {error}", file=sys.stderr, flush=True)
        os._exit(2)


def _stop(processes: Sequence[BaseProcess]) -> None:
    """Ask workers to finish their round."""
    for process in processes:
        if process.is_alive():
            process.terminate()


def _with_distributions(contestant: Tunable) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    import optuna

    choices = {
        key: optuna.distributions.CategoricalDistribution([stored(value) for value in values])
        for key, values in contestant.choices.items()
        if not isinstance(values, Range)
    }
    return [({key: stored(value) for key, value in point.items()}, choices) for point in contestant.grid()]


def _suggest(trial: "optuna.trial.Trial", key: str, values: tuple[Any, ...] | Range) -> Any:
    """The value of a claimed point: the one it came with, or one that the sampler chooses."""
    if isinstance(values, Range):
        return trial.suggest_float(key, values.low, values.high, log=values.log)
    chosen = trial.suggest_categorical(key, [stored(value) for value in values])
    return next(value for value in values if stored(value) == chosen)


def _said(point: Mapping[str, Any]) -> str:
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in point.items())
