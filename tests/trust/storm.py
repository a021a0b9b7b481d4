"""What is killed in the storm, and how. Imported by the children too, so it stays small."""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from torch import Tensor, nn

import propfair
from tests.runs.killed import SETTINGS, start

SWEEP = """
name = "storm"
seeds = [0]
[run]
data = {name = "synthetic", num_clients = 4}
model = "logistic"
local = {batch_size = 32}
schedule = {rounds = 6, eval_every = 3, checkpoint_every = 1}
[algorithms.fedavg]
local.lr = [0.05, 0.2]
"""
Target = Callable[[Path], None]
WARM = (
    *(f"propfair.cli.commands.{name}" for name in ("run", "resume", "compare", "sweep")), "optuna.storages",
    "propfair.cli.report_text", "propfair.cli.sweep_text", "propfair.report.picture", "propfair.report.write",
    "propfair.tuning.sweep", "propfair.tuning.sweep_ray", "matplotlib.pyplot", "matplotlib.backends.backend_agg",
    "pyarrow.compute", "propfair.engines.inprocess", "tests.trust.storm", "tests.trust.flower_storm",
)  # fmt: skip
NAMES = ("records.parquet", "rounds.parquet", "model.safetensors", "metrics.csv")


def one_run(home: Path) -> None:
    """`propfair run` with early stopping, then `propfair resume`."""
    stopping = ("early_stopping.patience=9", "early_stopping.statistic=worst", "schedule.eval_every=2")
    _run_or_resume(home, "algorithm=propfair", "schedule.rounds=40", "schedule.checkpoint_every=1", *stopping)


def run_with_workers(home: Path) -> None:
    """The same with worker processes and shared memory."""
    _run_or_resume(home, "algorithm=ditto", "schedule.rounds=40", "engine=processes", "engine.workers=2")


def _run_or_resume(home: Path, *settings: str) -> None:
    begun = (home / "run" / "status.json").exists()
    _command(*(("resume", "run") if begun else ("run", *SETTINGS, *settings, "-o", "run")), "-q", home=home)


def compare(home: Path) -> None:
    """`propfair compare` of two algorithms."""
    settings = (*SETTINGS, "schedule.rounds=12", "schedule.checkpoint_every=1")
    _command("compare", "fedavg", "propfair", *settings, "-q", "-o", "compared", home=home)


def sweep(home: Path) -> None:
    """`propfair sweep` in this process."""
    _sweep(home, 0)


def sweep_with_workers(home: Path) -> None:
    """The same with two worker processes, which are forked."""
    _sweep(home, 2)


def _sweep(home: Path, workers: int) -> None:
    (home / "sweep.toml").write_text(SWEEP)
    _command("sweep", "sweep.toml", "-w", str(workers), "-q", "-o", "swept", home=home)


def bulk(home: Path) -> None:
    """`propfair compare` of runs that are trained together."""
    settings = (*SETTINGS, "schedule.rounds=12", "schedule.checkpoint_every=1", "engine=vectorized")
    _command("compare", "fedavg", "propfair", *settings, "-q", "-o", "compared", home=home)


def from_python(home: Path) -> None:
    """`propfair.train`, or `propfair.resume` if it was begun."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(1)
    clients: list[tuple[Tensor, Tensor]] = [(torch.randn(40, 3, generator=rng), torch.arange(40) % 2) for _ in range(4)]
    model, folder = nn.Linear(3, 2), home / "python"
    if folder.exists():
        propfair.resume(folder, model, clients)
    else:
        propfair.train(model, clients, algorithm="ditto", rounds=100, eval_every=20, out=folder)


def _command(*arguments: str, home: Path) -> None:
    from propfair.cli import main

    torch.set_num_threads(1)
    os.chdir(home)
    sys.argv = ["propfair", *arguments]
    main()


def have_same_bits(home: Path, other: Path) -> bool:
    """Whether all files with numbers in them are the same."""
    found, expected = (
        {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.name in NAMES}
        for place in (home, other)
    )
    return bool(expected) and found == expected


def whole(target: Target, home: Path) -> float:
    """Let it run undisturbed; how long it takes."""
    home.mkdir()
    began = time.monotonic()
    child = start(target, home, preloaded=WARM)
    child.join()
    assert child.exitcode == 0
    return time.monotonic() - began


def kill_until_done(target: Target, home: Path, duration: float, rng: random.Random) -> tuple[int, float]:
    """Kill it at random instants and start it again until it ends well; how often, and how long the last go took."""
    home.mkdir()
    kills = 0
    while True:
        began = time.monotonic()
        child = start(target, home, preloaded=WARM)
        child.join(rng.uniform(0, 1.3 * duration))
        if child.exitcode is not None:
            assert child.exitcode == 0, json.dumps(sorted(map(str, home.rglob("*"))))
            return kills, time.monotonic() - began
        _kill(child)
        kills += 1


def _kill(child: BaseProcess) -> None:
    """SIGKILL, after which none of its own children may be left."""
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)  # nobody is born meanwhile
    family = _descendants(child.pid)
    child.kill()
    child.join()
    deadline = time.monotonic() + 30
    while left := [pid for pid in family if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"orphans: {[Path(f'/proc/{pid}/cmdline').read_text() for pid in left]}"
        time.sleep(0.05)


def _descendants(pid: int) -> list[int]:
    """The children of a process and theirs, on Linux."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_descendants(child)]
    return found
