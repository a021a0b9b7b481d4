"""Names of runs and their folders."""

import re
from pathlib import Path

from propfair.algorithms.base import ALGORITHMS, Algorithm
from propfair.registry import fields_of
from propfair.runs.config import RunConfig

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


def short_name(algorithm: Algorithm) -> str:
    """The algorithm with those hyper-parameters that are not its defaults: propfair(M=2.0)."""
    usual = {option.name: option.default for option in ALGORITHMS.options(algorithm.name)}
    changed = [f"{key}={value}" for key, value in fields_of(algorithm).items() if value != usual[key]]
    return f"{algorithm.name}({', '.join(changed)})" if changed else algorithm.name


def slug(text: str) -> str:
    """A text as a file name."""
    return re.sub(r"[^\w.+=-]+", "-", text).strip("-.") or "run"
