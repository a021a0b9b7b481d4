"""Runs a sweep: tries every point, chooses on the validation split, runs the winners with every seed, tests once.

All that matters is in the storage and in the run folders, so a sweep can be stopped, killed, called again, and called
several times at once, here and on other machines: finished trials are never run again.
"""

import contextlib
import functools
import gc
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch

from propfair.engines.inprocess import torch_threads
from propfair.engines.session import Engine
from propfair.errors import ConfigError, PropFairError
from propfair.runs.building import Federations, build_workload
from propfair.runs.config import RunConfig
from propfair.runs.environment import directions
from propfair.runs.folder import InUseError
from propfair.runs.interrupt import stop_on_signal
from propfair.runs.launch import ensure_run
from propfair.runs.measures import Measure, ordered
from propfair.runs.names import short_hash, slug
from propfair.runs.progress import AfterRound, Progress
from propfair.runs.run import Run
from propfair.runs.together import MOST_TOGETHER, can_run_together, run_together
from propfair.tuning.claims import Board, Claim, alive
from propfair.tuning.extension import all_points
from propfair.tuning.points import suggested, with_distributions
from propfair.tuning.search import Sweep, Tunable
from propfair.tuning.studies import Home, Studies, Winner

_POLL_SECONDS, _SHORTEST_POLL_SECONDS = 0.5, 0.02


class Task(NamedTuple):
    """A point that is claimed, and the run that it stands for."""

    claim: Claim
    config: RunConfig
    folder: Path
    name: str
    is_trial: bool  # or a final run


class Image(NamedTuple):
    """What whoever runs trials finds ready."""

    studies: Studies
    federations: Federations


class Pauses:
    """Between two looks at what others are at: short at first, when they are about to end as well."""

    def __init__(self) -> None:
        self._next = _SHORTEST_POLL_SECONDS

    def after(self, worked: bool) -> None:
        """Go on at once after work, else wait."""
        if worked:
            self._next = _SHORTEST_POLL_SECONDS
        else:
            time.sleep(self._next)
            self._next = min(2 * self._next, _POLL_SECONDS)


class TrialRunner:
    """Takes points and runs them until none is left.

    Args:
        sweep: what to run.
        home: where.
        number: of this worker, so that workers look for work in different places.
        workers: how many there are, so that each takes its share where several points are run at once.
        deadline: no trial is started after this moment of `time.monotonic`.
        after_round: told after each round.
        image: what is open and loaded already; None: nothing is.
    """

    def __init__(
        self,
        sweep: Sweep,
        home: Home,
        *,
        number: int = 0,
        workers: int = 1,
        deadline: float = math.inf,
        after_round: AfterRound = lambda _: None,
        image: "Image | None" = None,
    ) -> None:
        self.sweep, self.home, self.number, self.workers, self.deadline = sweep, home, number, workers, deadline
        self._after_round = after_round
        self._studies, self._federations = image or Image(Studies(sweep, home), Federations())

    def work(self) -> None:
        """Tune, then run the winners; waits for what others are still at."""
        pauses = Pauses()
        while not self._studies.tuned:
            if self._late():
                return
            pauses.after(self._work_on(self._claim_trials()))
        winners = self._studies.winners()
        if not winners:
            return
        board = self._studies.final(winners)
        while not all(standing.ended for standing in board.standings()):
            if self._late():
                return
            pauses.after(self._work_on(self._claim_finals(board, winners)))

    def _late(self) -> bool:
        return time.monotonic() > self.deadline

    def _claim_trials(self) -> list[Task]:
        """Points to be run at once: one, or as many as can be trained together."""
        sweep, tasks = self.sweep, list[Task]()
        wanted = self._share(sum(map(sweep.num_trials, sweep.contestants)))
        for contestant in self._in_turn():
            board = self._studies.boards[contestant.label]
            is_grid, further = sweep.search.sampler == "grid", sweep.search.extend
            first = self.number if wanted == 1 else 0
            claims = board.claim(
                with_distributions(contestant, further) if is_grid else None, first, self._studies.wanted(contestant),
                wanted - len(tasks),
            )  # fmt: skip
            points = all_points(contestant, further) if is_grid else []
            for claim in claims:
                point = points[claim.point] if is_grid else suggested(claim, contestant)
                config = sweep.trial_config(contestant, point)
                said = _said(point)
                folder = self.home.out / "trials" / slug(f"{contestant.label}-{said}-{short_hash(config.to_toml())}")
                tasks.append(Task(claim, config, folder, f"{contestant.label} {said}".strip(), is_trial=True))
            if len(tasks) == wanted:
                break
        return tasks

    def _claim_finals(self, board: Board, winners: Sequence[Winner]) -> list[Task]:
        sweep, seeds = self.sweep, self.sweep.seeds

        def who(point: int) -> tuple[Winner, int]:
            return winners[point // len(seeds)], seeds[point % len(seeds)]

        def about(point: int) -> dict[str, Any]:
            winner, seed = who(point)
            return {"label": winner.contestant.label, "seed": seed}

        wanted = self._share(board.num_points)
        first = self.number if wanted == 1 else self.number * board.num_points // self.workers
        tasks = []
        for claim in board.claim([({}, {})] * board.num_points, first, most=wanted, about=about):
            winner, seed = who(claim.point)
            config = sweep.final_config(winner.contestant, winner.point, seed)
            folder = self._studies.final_folder(winner, seed)
            name = f"{winner.contestant.label}, seed {seed}"
            tasks.append(Task(claim, config, folder, name, is_trial=False))
        return tasks

    def _share(self, num_points: int) -> int:
        """How many points this worker takes at a time."""
        return max(1, min(MOST_TOGETHER, -(-num_points // self.workers))) if self._together else 1

    @functools.cached_property
    def _together(self) -> bool:
        """Whether points can be run at once. Not where what comes of one decides about the next."""
        search, contestant = self.sweep.search, self.sweep.contestants[0]
        if search.sampler != "grid" or search.pruning:
            return False
        config = self.sweep.trial_config(contestant, self.sweep.example(contestant))
        try:
            return can_run_together(config, self._federations.of(config))
        except Exception:  # a defect that every trial will tell of
            return False

    def _in_turn(self) -> list[Tunable]:
        contestants = self.sweep.contestants
        shift = self.number * max(1, len(contestants) // self.workers) % len(contestants)
        return [*contestants[shift:], *contestants[:shift]]

    def _value(self, run: Run, is_trial: bool) -> tuple[float, Measure]:
        """What a trial is judged by, or a final run known by, and what that is a number of."""
        measure = self.sweep.criterion.measure(run.measures, self.sweep.split if is_trial else "test")
        summary = run.summary(measure)
        return (self.sweep.criterion.of(summary, measure) if is_trial else summary.mean), measure

    def _work_on(self, tasks: Sequence[Task]) -> bool:
        """Run what was claimed, together where there are several; False if there is nothing."""
        if not tasks:
            return False
        with alive([task.claim for task in tasks]):
            if not self._together:
                self._run(tasks[0])
            else:
                try:
                    run_together(tasks[0].config, [partial(self._run, task) for task in tasks])
                finally:
                    for task in tasks:
                        if not task.claim.ended:
                            task.claim.release()
        return True

    def _run(self, task: Task, engine: Engine | None = None) -> None:
        """Run one point, and note what came of it."""
        import optuna

        claim = task.claim
        try:
            run = self._ensure(task, engine)
            if run.status.state == "failed":
                claim.failed(run.status.reason, diverged=True)
                return
            value, measure = self._value(run, task.is_trial)
        except optuna.TrialPruned:
            claim.pruned()
            return
        except KeyboardInterrupt:
            claim.release()
            raise
        except Exception as error:  # one trial that breaks must not end the others
            claim.failed(f"{type(error).__name__}: {error}")
            return
        if math.isnan(value):
            what = f"the criterion {self.sweep.criterion}" if task.is_trial else "the mean on the test split"
            claim.failed(f"{what} has no value: no client has examples to choose on")
        else:
            told = {"metric": measure.metric, "higher_is_better": measure.higher_is_better}
            claim.done(value, {"seconds": run.status.seconds, "folder": str(task.folder), **told})

    def _ensure(self, task: Task, engine: Engine | None) -> Run:
        """The run of a task, also if a process that was taken for dead is still at it."""
        after_round = self._pruning(task.claim) if task.is_trial and self.sweep.search.pruning else self._after_round
        while True:
            try:
                return ensure_run(
                    task.config, task.folder, name=task.name, federation=partial(self._federations.of, task.config),
                    engine=engine, after_round=after_round,
                )  # fmt: skip
            except InUseError:
                time.sleep(_POLL_SECONDS)

    def _pruning(self, claim: Claim) -> AfterRound:
        """Stops a trial whose criterion, the same that chooses the winner, is below the median of the others."""
        import optuna

        def after_round(now: Progress) -> None:
            self._after_round(now)
            if self.sweep.split in now.evaluations and now.round < now.rounds:
                measure = self.sweep.criterion.measure(now.measures(self.sweep.split), self.sweep.split)
                value = self.sweep.criterion.of(now.summary(self.sweep.split, measure), measure)
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
    show: Callable[[Studies], None] = lambda _: None,
) -> Studies:
    """Run a sweep on `workers` processes with `threads` torch threads each; `show` is called about twice a second.

    No workers: everything runs in this process. Raises KeyboardInterrupt when it was stopped; the same call goes on.
    """
    if workers < 0 or threads < 1:
        raise ConfigError(f"workers must be at least 0 and threads 1; got workers={workers}, threads={threads}")
    shared = load_shared(sweep, threads)  # before the folder is bound to a sweep that would be refused
    studies = Studies(sweep, home)
    image: Image | None = Image(studies, shared)
    studies.disconnect()  # before this process forks
    if workers == 0:
        with torch_threads(threads):
            TrialRunner(sweep, home, deadline=time.monotonic() + 60 * minutes, image=image).work()
        show(studies)
        return studies
    forks = _can_fork(threads)
    start_process = (multiprocessing.get_context("fork") if forks else multiprocessing.get_context("spawn")).Process
    if not forks:
        image = None  # workers load everything themselves
    arguments = [(sweep, home, number, workers, threads, minutes, os.getpid(), image) for number in range(workers)]
    processes: list[BaseProcess] = [start_process(target=_work, args=one, daemon=True) for one in arguments]
    with stop_on_signal() as stop:
        gc.freeze()  # else the first collection in each worker would copy every page
        try:
            for process in processes:
                process.start()
        finally:
            gc.unfreeze()
        try:
            while any(process.is_alive() for process in processes):
                show(studies)
                if stop:
                    _stop(processes)
                    break
                wait([process.sentinel for process in processes if process.is_alive()], _POLL_SECONDS)
        except BaseException:
            _stop(processes)
            raise
    for process in processes:
        process.join()
    show(studies)
    if stop:
        raise KeyboardInterrupt
    broken = [process.exitcode for process in processes if process.exitcode not in (0, 130)]
    if broken and not studies.tuned:
        raise ConfigError(f"{len(broken)} of {workers} workers broke down (exit codes {broken}); see what they said")
    return studies


def _can_fork(threads: int) -> bool:
    """Whether workers can be forked, which takes no time, or must be started from nothing, which takes seconds.

    Forked, they must not use threads of libraries that this process may have used, and nobody may hold a lock.
    """
    alone = threading.active_count() == 1 and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return sys.platform == "linux" and threads == 1 and alone


def load_shared(sweep: Sweep, threads: int = 1) -> Federations:
    """The clients that most trials share. Refuses a criterion that no trial would have a value of."""
    federations, contestant = Federations(), sweep.contestants[0]
    measured: dict[str, bool] | None = None
    with torch_threads(threads), contextlib.suppress(PropFairError):  # every trial will tell of it
        config = sweep.trial_config(contestant, sweep.example(contestant))
        measured = directions(build_workload(config, federations.of(config)))
    if measured is not None:
        names = ordered([*measured, "loss"])
        sweep.criterion.measure([Measure(sweep.split, name, measured.get(name)) for name in names], sweep.split)
    return federations


def _work(
    sweep: Sweep, home: Home, number: int, workers: int, threads: int, minutes: float, parent: int, image: Image | None
) -> None:
    """The main function of a worker process."""

    def after_round(_: Progress) -> None:
        if os.getppid() != parent:  # nobody is left to work for
            raise KeyboardInterrupt

    if hasattr(os, "setsid"):
        os.setsid()  # a Ctrl-C in the terminal reaches the parent alone, which asks once
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, signal.default_int_handler)
    torch.set_num_threads(threads)
    try:
        deadline = time.monotonic() + 60 * minutes
        TrialRunner(
            sweep, home, number=number, workers=workers, deadline=deadline, after_round=after_round, image=image
        ).work()
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


def _said(point: Mapping[str, Any]) -> str:
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in point.items())
