"""A sweep whose workers run on a Ray cluster. They share the work through the storage, as workers anywhere do."""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from propfair.engines.ray.cluster import connected
from propfair.errors import ConfigError
from propfair.runs.interrupt import stop_on_signal
from propfair.tuning.search import Sweep
from propfair.tuning.studies import Home, Studies
from propfair.tuning.sweep import TrialRunner, load_shared

POLL_SECONDS = 0.5
STOP_SECONDS = 60.0  # for the rounds under way


def run_sweep_on_ray(
    sweep: Sweep,
    home: Home,
    *,
    address: str = "",
    workers: int = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
    threads: int = 1,
    minutes: float = math.inf,
    show: Callable[[Studies], None] = lambda _: None,
) -> Studies:
    """`run_sweep` with its workers on the Ray cluster at `address`; "" starts a Ray here for the time of the sweep.

    The folder and the storage of the sweep must be the same on all machines: a shared disk and, for more than one
    machine, a database server, since SQLite does not survive network disks. Workers on a machine that dies are started
    on another; what they were at is taken up again by whoever is free.

    Raises KeyboardInterrupt when it was stopped; the same call goes on.
    """
    if workers < 1 or threads < 1:
        raise ConfigError(f"workers and threads must be at least 1; got workers={workers}, threads={threads}")
    shared = replace(home, out=home.out.resolve())
    load_shared(sweep)  # for its check alone: workers elsewhere load their own
    studies = Studies(sweep, shared)
    with connected(address, math.ceil(workers * cpus) or None) as ray, stop_on_signal() as stop:
        remote = ray.remote(_work).options(num_cpus=cpus, num_gpus=gpus, max_retries=-1, scheduling_strategy="SPREAD")
        waiting = [remote.remote(sweep, shared, number, workers, threads, minutes) for number in range(workers)]
        while waiting and not stop:
            done, waiting = ray.wait(waiting, timeout=POLL_SECONDS)
            ray.get(done)
            show(studies)
        if waiting:
            for reference in waiting:
                ray.cancel(reference)
            ray.wait(waiting, num_returns=len(waiting), timeout=STOP_SECONDS)
    show(studies)
    if stop:
        raise KeyboardInterrupt
    return studies


def _work(sweep: Sweep, home: Home, number: int, workers: int, threads: int, minutes: float) -> None:
    torch.set_num_threads(threads)
    deadline = time.monotonic() + 60 * minutes
    TrialRunner(sweep, home, number=number, workers=workers, deadline=deadline).work()
