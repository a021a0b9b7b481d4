"""Where a run took place: versions, machine, code."""

import functools
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import propfair
from propfair.core.client import Workload

_PACKAGES = ("torch", "numpy", "pyarrow", "pydantic", "safetensors", "scikit-learn", "faker", "ray", "flwr")

_GIT_SECONDS = 30  # of many short runs the next ones have the commit of the first


def describe_environment(work: Workload, engine: str) -> dict[str, Any]:
    """All that may explain a difference between two runs of one config."""
    return describe_place(
        seed=work.seed, engine=engine, algorithm=str(work.algorithm), task=work.task.name, metrics=directions(work)
    )


def describe_place(*, seed: int, engine: str, algorithm: str, task: str, metrics: dict[str, bool]) -> dict[str, Any]:
    """The same for a run whose clients are elsewhere, and known by what they report."""
    return {
        "propfair": propfair.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "git_commit": _git_commit(Path.cwd(), int(time.monotonic() / _GIT_SECONDS)),
        "seed": seed,
        "engine": engine,
        "algorithm": algorithm,
        "task": task,
        "metrics": metrics,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def directions(work: Workload) -> dict[str, bool]:
    """Of everything that is measured beside the loss, by name: whether more is better."""
    own = {work.task.score: work.task.higher_is_better} if work.task.score else {}
    return own | {metric.name: metric.higher_is_better for metric in work.metrics}


def with_resume(environment: dict[str, Any]) -> dict[str, Any]:
    """The same, with a line about the session that goes on with the run."""
    now = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "propfair": propfair.__version__,
        "torch": _version("torch"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }
    return {**environment, "resumed": [*environment.get("resumed", []), now]}


@functools.cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.lru_cache(maxsize=1)
def _git_commit(folder: Path, _: int) -> str | None:
    """Of the folder the command runs in: the user's experiment, not an installed package. Asked now and then."""
    try:
        said = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False, cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.strip() or None
