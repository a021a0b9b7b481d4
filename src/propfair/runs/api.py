"""The library call: your model, your clients, an algorithm; a result with per-client numbers."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from propfair.algorithms.base import ALGORITHMS, Algorithm
from propfair.core.aggregator import Rounds
from propfair.core.client import LocalTraining, Workload
from propfair.core.losses import choose_task
from propfair.core.metrics import choose_metrics
from propfair.core.tasks import LossFunction, Task
from propfair.engines.session import ENGINES, Engine
from propfair.errors import ConfigError
from propfair.federation.federation import Federation
from propfair.federation.own import from_datasets
from propfair.runs.checks import check_device
from propfair.runs.launch import execute
from propfair.runs.result import Result
from propfair.runs.schedule import Schedule
from propfair.runs.training import AfterRound, Recipe


def algorithm(name: str, **hyper_parameters: Any) -> Algorithm:
    """An algorithm by name: `algorithm("propfair", M=3.0)`, `algorithm("afl", preset="paper")`."""
    return ALGORITHMS.make(name, hyper_parameters)


def train(
    model: nn.Module,
    clients: Federation | Sequence[Any] | Mapping[str, Any],
    algorithm: str | Algorithm = "propfair",
    *,
    rounds: int = 50,
    lr: float = 0.1,
    batch_size: int = 64,
    epochs: int = 1,
    local: LocalTraining | None = None,
    participation: float = 1.0,
    server: Rounds | None = None,
    loss: LossFunction | nn.Module | None = None,
    task: str | Task | None = None,
    metrics: Sequence[Any] = (),
    num_classes: int | None = None,
    eval_every: int = 10,
    seed: int = 0,
    engine: str | Engine = "auto",
    device: str = "cpu",
    lean: bool = True,
    out: str | Path | None = None,
    force: bool = False,
    after_round: AfterRound = lambda _: None,
    watch: AfterRound | None = None,
) -> Result:
    """Train `model` fairly over `clients`.

    Args:
        model: any module; it is trained in place and is `result.model` afterwards.
        clients: one data set per client: `(x, y)`, a torch `Dataset`, or a dict of these with `train`, `validation`,
            `test`; a list or a mapping from names. Without splits, 80 % trains and 20 % tests.
        algorithm: a name (`propfair list algorithms`) or an object such as `PropFair(M=3.0)`.
        rounds: communication rounds.
        lr: learning rate of local SGD.
        batch_size: examples per local step.
        epochs: local passes in a round.
        local: everything about local training, instead of the three above.
        participation: share or number of clients in a round.
        server: everything about rounds, instead of participation.
        loss: cross-entropy by default; a function of (output, target) to losses [B], or a torch criterion.
        task: "single-label", "binary", "multi-label", "regression", "per-position" or "other"; None: what follows from
            the loss and the targets.
        metrics: further numbers of each client: names such as "f1", "auc", "rmse", objects of torchmetrics, functions
            of (output, target), or `Metric`s.
        num_classes: None: the largest label plus one.
        eval_every: rounds between evaluations of all clients.
        seed: decides all randomness; torch's global generators stay as they are.
        engine: how clients are run, see `propfair list engines`.
        device: "cpu", "cuda", "mps".
        lean: leave out arithmetic that only meets padding; the same model, faster.
        out: a folder for the records, the model and the environment; None keeps everything in memory.
        force: replace `out` if it is an older run.
        after_round: called after each round, with a `Progress`.
        watch: the name that `after_round` had in 0.1.0.
    """
    if watch is not None:
        warnings.warn("train(watch=...) is now called after_round=...", DeprecationWarning, stacklevel=2)
        after_round = watch
    check_device(device)
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    chosen = ALGORITHMS.make(algorithm) if isinstance(algorithm, str) else algorithm
    if not isinstance(clients, Federation):
        clients = from_datasets(clients, num_classes=num_classes, seed=seed)
    kind, example_loss = choose_task(task, loss, clients.examples.targets(clients.train[0][:2]))
    work = Workload(
        clients,
        chosen,
        local or LocalTraining(lr=lr, batch_size=batch_size, epochs=epochs),
        seed,
        example_loss,
        device,
        task=kind,
        metrics=choose_metrics(metrics, kind),
    )
    recipe = Recipe(
        work=work,
        engine=ENGINES.make(engine) if isinstance(engine, str) else engine,
        server=server or Rounds(participation=participation),
        schedule=Schedule(rounds=rounds, eval_every=eval_every),
        name=Path(out).name if out else str(chosen),
        lean=lean,
    )
    return execute(model, recipe, None if out is None else Path(out), force=force, after_round=after_round)
