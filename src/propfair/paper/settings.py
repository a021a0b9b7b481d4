"""How to redo the tables and figures of the paper, and who is told about it."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from propfair.errors import ConfigError
from propfair.paper.catalogue import Scale
from propfair.runs.progress import AfterRound
from propfair.tuning.search import Sweep
from propfair.tuning.studies import Studies


class Screen(Protocol):
    """What shows the progress of a reproduction."""

    def say(self, text: str) -> None:
        """A line for people."""

    def table(self, sweep: Sweep) -> AbstractContextManager[Callable[[Studies], None]]:
        """Shows the table of a sweep while it runs."""

    def run(self, title: str, rounds: int) -> AbstractContextManager[AfterRound]:
        """Shows one run."""


@dataclass(frozen=True)
class Settings:
    """How to reproduce.

    Attributes:
        scale: how large.
        out: the folder; presets share the runs in it.
        workers, threads: processes, and torch threads of each.
        published: take the paper's best values instead of searching.
        only: these algorithms; empty: all.
        experiments: these data sets of presets that have several; empty: all.
        seeds: instead of the usual ones.
        overrides: settings by dotted keys that win over all others.
        minutes: no run is started after so many.
        records: kept runs to make a table from, where a preset can; empty: the runs in `out`, trained if need be.
    """

    scale: Scale
    out: Path
    workers: int = 0
    threads: int = 1
    published: bool = False
    only: tuple[str, ...] = ()
    experiments: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    minutes: float = math.inf
    records: tuple[Path, ...] = ()


class NotCompleteError(ConfigError):
    """Time was up before everything was run."""
