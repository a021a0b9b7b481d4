"""Contestants in processes of their own take turns on the same work."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.memory import MARK, Peak, signal_family

ROOT = Path(__file__).parent.parent


class ContestantError(Exception):
    """A contestant ended on its own."""


class NotOfferedError(ContestantError):
    """A contestant has no algorithm for the workload."""


class Contestant:
    """A running contestant, after its first round.

    Args:
        name: a module of benchmarks.contestants, with an option after a colon.
        workload: a name of a workload.
        python: the interpreter, of an environment of its own for peers.
    """

    def __init__(self, name: str, workload: str, python: str = sys.executable) -> None:
        self.name = name
        self.mark = uuid.uuid4().hex
        read_commands, write_commands = os.pipe()
        read_answers, write_answers = os.pipe()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the contestant
        path = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]))
        began = time.monotonic()
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.serve", name, workload, str(read_commands), str(write_answers)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=[read_commands, write_answers],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": path, MARK: self.mark},
        )
        os.close(read_commands)
        os.close(write_answers)
        self._commands, self._answers = os.fdopen(write_commands, "w"), os.fdopen(read_answers)
        self._began = began
        self.startup = 0.0

    def wait(self) -> None:
        """Until the first round is done; sets `startup`."""
        self._answer()
        self.startup = time.monotonic() - self._began

    def run(self, rounds: int) -> tuple[int, float]:
        """Examples trained, and seconds."""
        began = time.monotonic()
        print(rounds, file=self._commands, flush=True)
        examples = self._answer()
        return examples, time.monotonic() - began

    def pause(self) -> None:
        """Stop all its processes: some go on with the next round by themselves, in the turn of another."""
        signal_family(self.mark, signal.SIGSTOP)

    def go_on(self) -> None:
        """After `pause`."""
        signal_family(self.mark, signal.SIGCONT)

    def _answer(self) -> int:
        line = self._answers.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            log = self._log.read().strip()
            print(log[-3000:], file=sys.stderr)
            last = log.splitlines()[-1] if log else "no word"  # the rest names places of this machine
            raise ContestantError(f"{self.name} ended with code {self._process.returncode}: {last}")
        answer = json.loads(line)
        if "not_offered" in answer:
            raise NotOfferedError(answer["not_offered"])
        return int(answer["examples"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.go_on()
        self._commands.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        signal_family(self.mark, signal.SIGKILL)
        self._answers.close()
        self._log.close()


@dataclass
class Measured:
    """What was measured of one contestant on one workload."""

    contestant: str
    workload: str
    speeds: list[float] = field(default_factory=list)  # examples per second, one for each turn
    startup: float = 0.0  # seconds from nothing to the end of the first round
    peak_bytes: int = 0
    round_seconds: float = 0.0  # when it ran alone
    error: str = ""
    offered: bool = True

    @property
    def speed(self) -> float:
        """The median."""
        return statistics.median(self.speeds) if self.speeds else 0.0


def compare(
    workload: str, contestants: Mapping[str, str], *, repeats: int, seconds: float, with_memory: bool = True
) -> list[Measured]:
    """Speed of all contestants in turns, then memory and start-up of each alone.

    Args:
        workload: its name.
        contestants: name -> interpreter.
        repeats: turns of each.
        seconds: of each turn, about.
        with_memory: False leaves the second part out.
    """
    results = {name: Measured(name, workload) for name in contestants}
    running: list[Contestant] = []
    rounds: dict[str, int] = {}
    try:
        for name, python in contestants.items():
            contestant = Contestant(name, workload, python)
            try:
                contestant.wait()
            except ContestantError as error:
                contestant.__exit__(None, None, None)
                results[name].error, results[name].offered = str(error), not isinstance(error, NotOfferedError)
                continue
            running.append(contestant)
            rounds[name] = _rounds_for(contestant, seconds)
            contestant.pause()
        for repeat in range(repeats):
            for contestant in _rotated(running, repeat):
                contestant.go_on()
                examples, spent = contestant.run(rounds[contestant.name])
                contestant.pause()
                results[contestant.name].speeds.append(examples / spent)
    finally:
        for contestant in running:
            contestant.__exit__(None, None, None)
    if with_memory:
        for name, python in contestants.items():
            if not results[name].error:
                alone = profile(name, workload, python, seconds=seconds)
                results[name].startup, results[name].peak_bytes = alone.startup, alone.peak_bytes
    return list(results.values())


def profile(name: str, workload: str, python: str = sys.executable, *, seconds: float) -> Measured:
    """Start-up, speed and peak memory of a contestant that has the machine to itself."""
    with Contestant(name, workload, python) as contestant:
        peak = Peak(contestant.mark)
        peak.start()
        contestant.wait()
        rounds = _rounds_for(contestant, seconds)
        examples, spent = contestant.run(rounds)
        return Measured(name, workload, [examples / spent], contestant.startup, peak.stop(), spent / rounds)


def _rounds_for(contestant: Contestant, seconds: float) -> int:
    """How many rounds take about that long, from the faster of two tries."""
    one = min(contestant.run(1)[1] for _ in range(2))
    return max(1, round(seconds / one))


def _rotated(running: Sequence[Contestant], by: int) -> list[Contestant]:
    shift = by % len(running) if running else 0
    return [*running[shift:], *running[:shift]]
