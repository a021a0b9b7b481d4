"""Models of runs on disk, run again on the examples of the clients: which of them do they get right?"""

import numpy as np
import torch
from numpy.typing import NDArray

from propfair.core.evaluation import chunks, measure
from propfair.core.params import FlatModel
from propfair.core.tasks import SINGLE_LABEL, cross_entropy
from propfair.errors import ConfigError, DataError
from propfair.federation.federation import Federation, Split
from propfair.runs.building import build_model
from propfair.runs.folder import RunFolder
from propfair.runs.launch import saved_config
from propfair.runs.run import Run


def hits(run: Run, federation: Federation, split: Split) -> NDArray[np.bool_]:
    """Whether the model of a run gets each example of the split right, clients one after the other, [sum of sizes]."""
    if run.fingerprint != federation.fingerprint:
        raise DataError(f"the data of {run.where} have changed since it was run")
    if run.folder is None or not run.config_text:
        raise ConfigError(f"{run.where} can't be run again: it has no config, or no folder")
    config = saved_config(RunFolder.open(run.folder))
    if config.parts.algorithm.personal is not None:
        raise ConfigError(f"{run.where} has a model for each client, and they are not stored: leave --paired out")
    model = FlatModel(build_model(config, federation))
    model.load(*model.vectors(RunFolder.open(run.folder).model()))
    batches = chunks(federation, split, range(federation.num_clients))
    correct = [rows[1] for rows in measure(model, federation.examples, SINGLE_LABEL, cross_entropy, batches)]
    found: NDArray[np.bool_] = torch.cat(correct).numpy() > 0
    return found
