"""Runs a sweep: tries every point, chooses on the validation split, runs the winners with every seed, tests once.

All that matters is in the storage and in the run folders, so a sweep can be stopped, killed, called again, and called
several times at once, here and on other machines: finished trials are never run again.
"""

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from propfair.engines.inprocess import torch_threads
from propfair.errors import ConfigError
from propfair.fairness.statistics import summarize
from propfair.runs.config import RunConfig
from propfair.runs.folder import InUseError
from propfair.runs.interrupt import stop_on_signal
from propfair.runs.names import slug
from propfair.runs.run import Watch
from propfair.runs.saved import Federations, SavedRun, ensure_run
from propfair.runs.training import Progress
from propfair.tuning.claims import Claim
from propfair.tuning.search import Entrant, Range, Sweep
from propfair.tuning.studies import Place, Row, Studies, Winner, short_hash, stored

if TYPE_CHECKING:
    import optuna

_POLL_SECONDS = 0.5


class Worker:
    """Takes points and runs them until none is left.

    Args:
        sweep: what to run.
        place: where.
        number: of this worker, so that workers look for work in different places.
        deadline: no trial is started after this moment of `time.monotonic`.
        watch: told after each round, with the title of the run.
    """

    def __init__(
        self,
        sweep: Sweep,
        place: Place,
        *,
        number: int = 0,
        deadline: float = math.inf,
        watch: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self.sweep, self.place, self.number, self.deadline = sweep, place, number, deadline
        self._watch = watch
        self._studies = Studies(sweep, place)
        self._federations = Federations()

    def work(self) -> None:
        """Tune, then run the winners; waits for what others are still at."""
        while not self._studies.tuned:
            if self._late():
                return
            if not any(self._tune(entrant) for entrant in self._in_turn()):
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

    def _in_turn(self) -> list[Entrant]:
        shift = self.number % len(self.sweep.entrants)
        return [*self.sweep.entrants[shift:], *self.sweep.entrants[:shift]]

    def _tune(self, entrant: Entrant) -> bool:
        """Run one point of this algorithm; False if none is free."""
        board = self._studies.boards[entrant.label]
        grid = _with_distributions(entrant) if self.sweep.search.sampler == "grid" else None
        claim = board.claim(grid, self.number)
        if claim is None:
            return False
        point = {key: _suggest(claim.trial, key, value) for key, value in entrant.choices.items()}
        config = self.sweep.trial_config(entrant, point)
        folder = self.place.out / "trials" / slug(f"{entrant.label}-{_said(point)}-{short_hash(config)}")
        watch = self._pruning(claim) if self.sweep.search.pruning else self._watch
        saved = self._run(claim, config, folder, f"{entrant.label} {_said(point)}".strip(), watch)
        if saved is not None:
            value = self.sweep.criterion.of(saved.summary(self.sweep.split))
            if math.isnan(value):
                claim.failed(f"the criterion {self.sweep.criterion} has no value: no client has examples to choose on")
            else:
                claim.done(value, {"seconds": saved.status["seconds"], "folder": str(folder)})
        return True

    def _run_final(self, claim: Claim, winners: Sequence[Winner]) -> None:
        winner = winners[claim.point // len(self.sweep.seeds)]
        seed = self.sweep.seeds[claim.point % len(self.sweep.seeds)]
        config = self.sweep.final_config(winner.entrant, winner.point, seed)
        claim.trial.set_user_attr("label", winner.entrant.label)
        claim.trial.set_user_attr("seed", seed)
        name = f"{winner.entrant.label}, seed {seed}"
        folder = self._studies.final_folder(winner, seed)
        saved = self._run(claim, config, folder, name, self._watch)
        if saved is not None:
            result = {
                "accuracy": saved.accuracy("test").tolist(),
                "shares": saved.shares.tolist(),
                "seconds": saved.status["seconds"],
                "folder": str(folder),
            }
            claim.done(saved.summary("test").mean, result)

    def _run(self, claim: Claim, config: RunConfig, folder: Path, name: str, watch: Watch) -> SavedRun | None:
        """The finished run; None if it failed or was pruned, which is then noted."""
        import optuna

        try:
            with claim.alive():
                saved = self._ensure(config, folder, name, watch)
        except optuna.TrialPruned:
            claim.pruned()
            return None
        except KeyboardInterrupt:
            claim.release()
            raise
        except Exception as error:  # one trial that breaks must not end the others
            claim.failed(f"{type(error).__name__}: {error}")
            return None
        if saved.status["state"] == "failed":
            claim.failed(saved.status["reason"], diverged=True)
            return None
        return saved

    def _ensure(self, config: RunConfig, folder: Path, name: str, watch: Watch) -> SavedRun:
        """The run of this config, also if a process that was taken for dead is still at it."""
        while True:
            try:
                return ensure_run(
                    config, folder, name=name, federation=partial(self._federations.of, config), watch=watch
                )
            except InUseError:
                time.sleep(_POLL_SECONDS)

    def _pruning(self, claim: Claim) -> Watch:
        import optuna

        def watch(now: Progress) -> None:
            self._watch(now)
            if now.evaluation is not None and now.round < now.rounds:
                value = self.sweep.criterion.of(summarize(now.evaluation.accuracy.numpy()))
                if math.isfinite(value):
                    claim.trial.report(value, now.round)
                    if claim.trial.should_prune():
                        raise optuna.TrialPruned

        return watch


def run_sweep(
    sweep: Sweep,
    place: Place,
    *,
    workers: int = 1,
    threads: int = 1,
    minutes: float = math.inf,
    show: Callable[[list[Row]], None] = lambda _: None,
) -> Studies:
    """Run a sweep on `workers` processes with `threads` torch threads each; `show` gets the table about twice a second.

    No workers: everything runs in this process. Raises KeyboardInterrupt when it was stopped; the same call goes on.
    """
    if workers < 0 or threads < 1:
        raise ConfigError(f"workers must be at least 0 and threads 1; got workers={workers}, threads={threads}")
    studies = Studies(sweep, place)
    if workers == 0:
        with torch_threads(threads):
            Worker(sweep, place, deadline=time.monotonic() + 60 * minutes).work()
        show(studies.rows())
        return studies
    context = multiprocessing.get_context("spawn")
    arguments = [(sweep, place, number, threads, minutes, os.getpid()) for number in range(workers)]
    processes: list[BaseProcess] = [context.Process(target=_work, args=one, daemon=True) for one in arguments]
    with stop_on_signal() as stop:
        for process in processes:
            process.start()
        try:
            while any(process.is_alive() for process in processes):
                show(studies.rows())
                if stop:
                    _stop(processes)
                    break
                processes[0].join(_POLL_SECONDS)
        except BaseException:
            _stop(processes)
            raise
    for process in processes:
        process.join()
    show(studies.rows())
    if stop:
        raise KeyboardInterrupt
    broken = [process.exitcode for process in processes if process.exitcode not in (0, 130)]
    if broken and not studies.tuned:
        raise ConfigError(f"{len(broken)} of {workers} workers broke down (exit codes {broken}); see what they said")
    return studies


def _work(sweep: Sweep, place: Place, number: int, threads: int, minutes: float, parent: int) -> None:
    """The main function of a worker process."""

    def watch(_: Progress) -> None:
        if os.getppid() != parent:  # nobody is left to work for
            raise KeyboardInterrupt

    if hasattr(os, "setsid"):
        os.setsid()  # a Ctrl-C in the terminal reaches the parent alone, which asks once
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_num_threads(threads)
    try:
        Worker(sweep, place, number=number, deadline=time.monotonic() + 60 * minutes, watch=watch).work()
    except KeyboardInterrupt:
        os._exit(130)


def _stop(processes: Sequence[BaseProcess]) -> None:
    """Ask workers to finish their round."""
    for process in processes:
        if process.is_alive():
            process.terminate()


def _with_distributions(entrant: Entrant) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    import optuna

    choices = {
        key: optuna.distributions.CategoricalDistribution([stored(value) for value in values])
        for key, values in entrant.choices.items()
        if not isinstance(values, Range)
    }
    return [({key: stored(value) for key, value in point.items()}, choices) for point in entrant.grid()]


def _suggest(trial: "optuna.trial.Trial", key: str, values: tuple[Any, ...] | Range) -> Any:
    """The value of a claimed point: the one it came with, or one that the sampler chooses."""
    if isinstance(values, Range):
        return trial.suggest_float(key, values.low, values.high, log=values.log)
    chosen = trial.suggest_categorical(key, [stored(value) for value in values])
    return next(value for value in values if stored(value) == chosen)


def _said(point: Mapping[str, Any]) -> str:
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in point.items())
