"""What whole commands take, from nothing: processor time of all their processes, and seconds."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT

BASE = "import torch"
PROPFAIR = ("-m", "propfair")
COMMANDS: dict[str, Sequence[str]] = {
    BASE: ("-c", "import torch"),
    "run on digits, one round": (*PROPFAIR, "run", "data=digits", "schedule.rounds=1", "-q", "--out", "{out}"),
    "compare on digits, three algorithms": (*PROPFAIR, "compare", "-q", "--out", "{out}"),
    "sweep of 100 logistic regressions": (
        *PROPFAIR, "sweep", str(ROOT / "benchmarks" / "sweep.toml"), "-q", "--workers", "2", "--out", "{out}",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Timed:
    """One command: medians."""

    name: str
    processor: float  # seconds of all processes
    seconds: float


def measure(repeats: int, commands: Mapping[str, Sequence[str]] = COMMANDS) -> list[Timed]:
    """All commands in turns, so that a busy machine slows all of them; a first turn that warms up is not counted."""
    return [found for (found,) in measure_checkouts(repeats, [ROOT], commands)]


def measure_checkouts(
    repeats: int, checkouts: Sequence[Path], commands: Mapping[str, Sequence[str]]
) -> list[list[Timed]]:
    """For each command what it takes in each checkout of the repository, all in turns."""
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for turn in range(repeats + 1):
        for name, command in commands.items():
            for place, checkout in enumerate(checkouts):
                taken = _run(command, checkout)
                if turn:
                    found.setdefault((name, place), []).append(taken)
    return [
        [Timed(name, *map(statistics.median, zip(*found[name, place], strict=True))) for place in range(len(checkouts))]
        for name in commands
    ]


def _run(command: Sequence[str], checkout: Path) -> tuple[float, float]:
    """Processor time and seconds."""
    path = os.pathsep.join(filter(None, [str(checkout / "src"), os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir(), "pyc"))}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # modules are compiled once, as where they are installed
        asked = [sys.executable, *(word.format(out=Path(folder, "out")) for word in command)]
        began = time.monotonic()
        process = subprocess.Popen(asked, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
        assert process.stderr is not None
        with process.stderr as stream:
            said = stream.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{' '.join(asked)} ended with code {process.returncode}: {said[-500:]}")
        return used.ru_utime + used.ru_stime, time.monotonic() - began
