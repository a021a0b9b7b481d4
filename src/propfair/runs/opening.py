"""Runs on disk as results, and models measured on any clients."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from propfair.algorithms.fedavg import FedAvg
from propfair.core.checks import check_examples, check_task, settled
from propfair.core.client import LocalTraining, Workload
from propfair.core.evaluation import Evaluation
from propfair.core.losses import choose_task
from propfair.core.metrics import choose_metrics
from propfair.core.params import FlatModel
from propfair.core.tasks import LossFunction, Task
from propfair.engines.inprocess import InProcessSession
from propfair.errors import ConfigError, DataError
from propfair.federation.federation import SPLITS, Federation, Split
from propfair.federation.own import from_datasets
from propfair.federation.ragged import Ragged
from propfair.runs.building import build_federation, build_model, put_into
from propfair.runs.folder import RunFolder
from propfair.runs.launch import saved_config
from propfair.runs.reading import read_run
from propfair.runs.result import Result

Clients = Federation | Sequence[Any] | Mapping[str, Any]


def load(path: str | Path, model: nn.Module | None = None, *, trust: bool = False) -> Result:
    """A run folder as a `Result`: records, settings, and the model it reached.

    Args:
        path: the run folder.
        model: a module of the kind that was trained, which gets the parameters; needed for runs from Python. Runs of
            the command line build it from their config, for which their data are read.
        trust: agree to what the folder asks to be imported or connected; see `propfair.runs.trust`.
    """
    path = Path(path)
    folder = RunFolder.open(path)
    if model is None:
        if not folder.config_text:
            raise ConfigError(f"{path} was started from Python: pass the model, load({str(path)!r}, model=...)")
        config = saved_config(folder, trust=trust)
        model = build_model(config, build_federation(config))
    put_into(model, folder.model(), path)
    return Result(read_run(path), model)


def evaluate(
    model: nn.Module | Result | str | Path,
    clients: Clients,
    *,
    split: Split | None = None,
    metrics: Sequence[Any] = (),
    loss: LossFunction | nn.Module | None = None,
    task: str | Task | None = None,
    num_classes: int | None = None,
    device: str = "cpu",
) -> Evaluation:
    """What a model does for each client, also for clients it was not trained on.

    Args:
        model: a module, a result, or the folder of a run.
        clients: as for `train`.
        split: "train", "validation" or "test"; None: all examples of each client.
        metrics: beside the loss and the score of the task; as for `train`.
        loss: as for `train`.
        task: None: that of the run, or what follows from the loss and the targets.
        num_classes: None: the largest label plus one.
        device: where to compute.
    """
    if split not in (None, *SPLITS):
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, or None for all examples; got split={split!r}")
    if isinstance(model, str | Path):
        model = load(model)
    if isinstance(model, Result):
        task, model = task or (model.run.environment.task if loss is None else None), model.model
    if not isinstance(clients, Federation):
        clients = from_datasets(clients, num_classes=num_classes)
    kind, example_loss = choose_task(task, loss, clients.examples.targets(clients.train[0][:2]))
    work = Workload(
        clients if split else _all_as_test(clients), FedAvg(), LocalTraining(), 0, example_loss, device, task=kind,
        metrics=choose_metrics(metrics, kind),
    )  # fmt: skip
    if split and not len(clients.split(split).values):
        raise DataError(f"no client has examples for {split!r}")
    own = copy.deepcopy(model)
    check_examples(clients.examples, kind)
    check_task(own, work)
    session = InProcessSession(FlatModel(own, device), settled(own, work))
    return session.evaluate(session.model.params, session.model.buffers, split or "test", range(clients.num_clients))


def _all_as_test(clients: Federation) -> Federation:
    """The same clients, with everything they have for the test."""
    whole = [
        torch.cat([clients.train[k], clients.validation[k], clients.test[k]]).sort().values
        for k in range(clients.num_clients)
    ]
    nothing = Ragged.of([part[:0] for part in whole])
    return Federation(clients.examples, clients.names, clients.train, nothing, Ragged.of(whole), clients.note)
