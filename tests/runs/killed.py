"""Runs in child processes that die. Imported by the children too, so it stays small."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from propfair.runs.config import RunConfig, make_config
from propfair.runs.launch import resume, run
from propfair.runs.result import Result

SETTINGS = (
    "data=synthetic",
    "data.num_clients=4",
    "model=logistic",
    "local.batch_size=32",
    "schedule.eval_every=3",
    "schedule.checkpoint_every=2",
)
PRELOADED = ("propfair.runs.launch", "propfair.algorithms")
FILES = ("records.parquet", "rounds.parquet", "model.safetensors", "metrics.csv")


def tiny(*overrides: str, rounds: int) -> RunConfig:
    return make_config({}, [*SETTINGS, f"schedule.rounds={rounds}", *overrides])


def start(target: Callable[..., None], *arguments: object, preloaded: Sequence[str] = PRELOADED) -> BaseProcess:
    """A child of a server that has imported torch already, so that it is at work at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preloaded))
    child = context.Process(target=target, args=arguments)
    child.start()
    return child


def run_or_resume(config: RunConfig, folder: Path) -> Result:
    return resume(folder) if folder.exists() else run(config, folder, name="tiny")


def train(config: RunConfig, folder: Path) -> None:
    torch.set_num_threads(1)
    run_or_resume(config, folder)


def train_and_die(config: RunConfig, folder: Path, operation: int) -> None:
    """Train, and die by SIGKILL before the n-th time that a file gets its name or is removed."""
    torch.set_num_threads(1)
    dying(operation)
    run_or_resume(config, folder)


def dying(operation: int) -> None:
    """Let this process die by SIGKILL before the n-th time that a file gets its name or is removed."""
    left = operation
    replace, unlink = Path.replace, os.unlink

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def dying_replace(path: Path, target: Path) -> Path:
        count()
        return replace(path, target)

    def dying_unlink(path: Path, *, dir_fd: int | None = None) -> None:
        os.lstat(path, dir_fd=dir_fd)  # the temporary file of a write that went well is gone: no change
        count()
        unlink(path, dir_fd=dir_fd)

    Path.replace = dying_replace  # type: ignore[method-assign,assignment]
    os.unlink = dying_unlink  # type: ignore[assignment]


def content(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}
