"""All randomness is a pure function of (seed, what for, round, client). The global generators are never used up."""

import contextlib
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch

Purpose = Literal["init", "cohort", "batches", "model", "partition", "split", "bootstrap"]
_PURPOSES: dict[Purpose, int] = {
    "init": 0, "cohort": 1, "batches": 2, "model": 3, "partition": 4, "split": 5, "bootstrap": 6,
}  # fmt: skip


def derive(seed: int, purpose: Purpose, *key: int) -> int:
    """An independent 63-bit seed for one purpose and place, such as (round, client)."""
    sequence = np.random.SeedSequence(seed, spawn_key=(_PURPOSES[purpose], *key))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(seed: int, purpose: Purpose, *key: int) -> torch.Generator:
    """A CPU generator seeded by `derive`."""
    return torch.Generator().manual_seed(derive(seed, purpose, *key))


@contextlib.contextmanager
def untouched_global_rng() -> Iterator[None]:
    """Lets code that draws from torch's global generators (dropout, initialisers) run without leaving a trace."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
