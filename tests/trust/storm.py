"""What is killed in the storm. Imported by the children too, so it stays small."""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import propfair
from tests.runs.killed import SETTINGS, start

SWEEP = """
name = "storm"
seeds = [0, 1]
[run]
data = {name = "synthetic", num_clients = 4}
model = "logistic"
local = {batch_size = 32}
schedule = {rounds = 6, eval_every = 3, checkpoint_every = 1}
[algorithms.fedavg]
local.lr = [0.05, 0.2]
"""
SETTINGS_6 = (*SETTINGS, "schedule.rounds=6", "schedule.checkpoint_every=1")


def compare(home: Path) -> None:
    """`propfair compare` of two algorithms."""
    _command("compare", "fedavg", "propfair", *SETTINGS_6, "-q", "-o", "compared", home=home)


def sweep(home: Path) -> None:
    """`propfair sweep` in this process."""
    (home / "sweep.toml").write_text(SWEEP)
    _command("sweep", "sweep.toml", "-w", "0", "-q", "-o", "swept", home=home)


def from_python(home: Path) -> None:
    """`propfair.train`, or `propfair.resume` if it was begun."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, clients = nn.Linear(3, 2), _clients()
    folder = home / "python"
    if folder.exists():
        propfair.resume(folder, model, clients)
    else:
        propfair.train(model, clients, algorithm="ditto", rounds=60, eval_every=20, out=folder)


def _clients() -> list[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(1)
    return [(torch.randn(40, 3, generator=rng), torch.arange(40) % 2) for _ in range(4)]


def _command(*arguments: str, home: Path) -> None:
    from propfair.cli import main

    torch.set_num_threads(1)
    os.chdir(home)
    sys.argv = ["propfair", *arguments]
    main()


def results(home: Path) -> dict[str, bytes]:
    """Every file with numbers in it, by its place."""
    names = ("records.parquet", "rounds.parquet", "model.safetensors", "metrics.csv")
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.name in names}


def whole(target: Callable[[Path], None], home: Path) -> tuple[dict[str, bytes], float]:
    """What comes of it undisturbed, and how long it takes."""
    home.mkdir()
    began = time.monotonic()
    child = start(target, home)
    child.join()
    assert child.exitcode == 0
    return results(home), time.monotonic() - began


def kill_until_done(target: Callable[[Path], None], home: Path, duration: float, rng: random.Random) -> int:
    """Kill it at random instants and start it again until it ends well; how often it was killed."""
    home.mkdir()
    kills = 0
    while True:
        child = start(target, home)
        child.join(rng.uniform(0, 1.3 * duration))
        if child.exitcode is not None:
            assert child.exitcode == 0, json.dumps(sorted(map(str, home.rglob("*"))))
            return kills
        child.kill()
        child.join()
        kills += 1
