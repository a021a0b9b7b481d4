"""Many short runs of a small model at once, in this process: each with its own folder, as if it ran alone."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from propfair.core.params import FlatModel
from propfair.engines.session import Engine
from propfair.engines.stacked.fold import is_simple
from propfair.engines.stacked.gradients import linear_layers
from propfair.engines.together import Runner
from propfair.engines.vectorized import Vectorized
from propfair.federation.federation import Federation
from propfair.runs.building import build_model, build_workload
from propfair.runs.config import RunConfig
from propfair.runs.interrupt import stop_on_signal

T = TypeVar("T")
MOST_TOGETHER = 64  # runs at once in a process: each has a thread, and holds its folder by an open file


def can_run_together(config: RunConfig, federation: Federation) -> bool:
    """Whether runs with these settings gain by being run at once: stacked clients, a chain of linear layers, plain SGD.

    Algorithms, learning rates and seeds may differ.
    """
    engine = config.parts.engine
    if type(engine) is not Vectorized or engine.workers != 1 or torch.device(config.device).type != "cpu":
        return False
    if not is_simple(build_workload(config, federation)):
        return False
    return linear_layers(FlatModel(build_model(config, federation))) is not None


def run_together(config: RunConfig, runs: Sequence[Callable[[Engine], T]]) -> list[T]:
    """The results of several runs, each of which trains with the engine that it is given.

    One that fails ends alone; what it raised is raised once all have ended. Ctrl-C or SIGTERM lets all finish the round
    under way. Raises KeyboardInterrupt where a run does.

    Args:
        config: of any of them.
        runs: each trains one model; see `ensure_run`.
    """
    engine = config.parts.engine
    assert isinstance(engine, Vectorized)
    with stop_on_signal():
        found = Runner[T](engine).run(runs)
    results = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        results.append(one)
    return results
