"""Folder names for runs that were not given one."""

import re
from pathlib import Path

from propfair.experiment.config import RunConfig

RUNS = Path("runs")


def run_folder(config: RunConfig) -> Path:
    """runs/digits-propfair-seed0, or the next free number behind it."""
    return free_folder(f"{config.data.name}-{config.make_algorithm().name}-seed{config.seed}")


def free_folder(name: str) -> Path:
    """A folder below runs/ that does not exist yet."""
    wanted = RUNS / slug(name)
    number = 2
    path = wanted
    while path.exists():
        path, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
    return path


def slug(text: str) -> str:
    """A text as a file name."""
    return re.sub(r"[^\w.+=-]+", "-", text).strip("-.") or "run"
