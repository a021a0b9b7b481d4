"""The share of a training run that is neither forward pass, nor backward pass, nor SGD.

`python -m benchmarks.overhead W1`. One process, one thread, so that nothing overlaps.
"""

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.contestants import propfair as contestant
from benchmarks.workloads import find


class Stopwatch:
    """Adds up the time inside wrapped functions; calls inside such calls are not counted twice."""

    def __init__(self) -> None:
        self.total = 0.0
        self._inside = False

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.total += time.perf_counter() - began
                self._inside = False

        return timed


class _EnoughError(Exception):
    pass


def share_outside(workload: str, rounds: int) -> float:
    """Of the time of whole rounds, after a first one."""
    torch.set_num_threads(1)
    watch = Stopwatch()
    nn.Module.__call__ = watch.wrap(nn.Module.__call__)  # type: ignore[method-assign]
    for home, name in ((torch.autograd, "grad"), (torch, "_foreach_add_"), (nn.functional, "cross_entropy")):
        setattr(home, name, watch.wrap(getattr(home, name)))
    marks: list[tuple[float, float]] = []

    def after_round(_: int) -> None:
        marks.append((time.perf_counter(), watch.total))
        if len(marks) > rounds:
            raise _EnoughError

    with contextlib.suppress(_EnoughError):
        contestant.compete(find(workload), after_round, "inprocess")
    (began, before), (ended, after) = marks[0], marks[-1]
    return 1 - (after - before) / (ended - began)


if __name__ == "__main__":
    print(share_outside(sys.argv[1] if sys.argv[1:] else "W1", 2))
