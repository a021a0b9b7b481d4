"""Disagreement points from a run: PropFair's M_i is what client i loses if nobody agrees (paper, section 3.1)."""

from pathlib import Path
from typing import Any

import numpy as np

from propfair.errors import ConfigError
from propfair.runs.measures import Measure
from propfair.runs.reading import read_run
from propfair.runs.run import Run

_WORDS = ("auto", "schedule")  # values of M that name no run
_LOSS = Measure("validation", "loss")


def disagreement_points(run: Run) -> tuple[float, ...]:
    """The loss of each client's model on its validation data, a disagreement point for each client.

    Training losses of models that clients train alone vanish and say nothing; test data are not to be looked at before
    the end. So there must be validation data.
    """
    if run.measured(_LOSS) is None:
        raise ConfigError(
            f"{run.where} has no validation losses to take disagreement points M from. Train it, and whatever is "
            "compared with it, with validation data: data.split.validation=0.1."
        )
    losses = run.values(_LOSS)
    missing = np.flatnonzero(~np.isfinite(losses))
    if missing.size:
        raise ConfigError(
            f"client {run.clients.names[missing[0]]} of {run.where} has no validation loss, so M has no value for it. "
            "Give every client validation data, or a number for M."
        )
    return tuple(float(f"{loss:.6g}") for loss in losses)


def with_disagreement(algorithm: Any) -> Any:
    """The algorithm section of a config with the folder of a run in place of M made into that run's losses."""
    named = algorithm.get("M") if isinstance(algorithm, dict) else None
    if not isinstance(named, str) or named in _WORDS or not _is_run(Path(named)):
        return algorithm
    return {**algorithm, "M": list(disagreement_points(read_run(Path(named))))}


def _is_run(path: Path) -> bool:
    try:
        return (path / "status.json").is_file()
    except OSError:  # a number of a thousand digits is no name of a folder
        return False
