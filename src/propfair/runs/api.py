"""The library call: your model, your clients, an algorithm; a result with per-client numbers."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsIndex, TypeVar

from torch import nn

from propfair.algorithms.base import Algorithm, checked_algorithm, make_algorithm
from propfair.core.client import LocalTraining, Workload
from propfair.core.losses import choose_task
from propfair.core.metrics import choose_metrics
from propfair.core.rounds import Rounds
from propfair.core.tasks import LossFunction, Task
from propfair.engines.session import ENGINES, Engine
from propfair.errors import ConfigError, PropFairWarning, shown
from propfair.federation.federation import Federation
from propfair.federation.own import from_datasets
from propfair.runs import launch
from propfair.runs.callbacks import Callback
from propfair.runs.checks import check_device
from propfair.runs.launch import execute, go_on
from propfair.runs.progress import AfterRound
from propfair.runs.python import read_settings
from propfair.runs.result import Result
from propfair.runs.schedule import Schedule
from propfair.runs.training import Recipe
from propfair.runs.trust import check_trust

T = TypeVar("T")


def algorithm(name: str, **hyper_parameters: Any) -> Algorithm:
    """An algorithm by name: `algorithm("propfair", M=3.0)`, `algorithm("mine:Rule")`."""
    return make_algorithm(name, hyper_parameters)


def train(
    model: nn.Module,
    clients: Federation | Sequence[Any] | Mapping[str, Any],
    algorithm: str | Algorithm = "propfair",
    *,
    rounds: int = 50,
    lr: float | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    local: LocalTraining | None = None,
    participation: float | None = None,
    server: Rounds | None = None,
    loss: LossFunction | nn.Module | None = None,
    task: str | Task | None = None,
    metrics: Sequence[Any] = (),
    num_classes: int | None = None,
    eval_every: int = 10,
    seed: int = 0,
    data_seed: int = 0,
    engine: str | Engine = "auto",
    device: str = "cpu",
    lean: bool = True,
    out: str | Path | None = None,
    force: bool = False,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    after_round: AfterRound = lambda _: None,
    watch: AfterRound | None = None,
) -> Result:
    """Train `model` fairly over `clients`.

    Args:
        model: any module; it is trained in place and is `result.model` afterwards.
        clients: one data set per client, in a list or a mapping from names: `(x, y)`, a data frame, a file, a torch
            `Dataset`, or a dict of these with `train`, `validation`, `test`; see `from_datasets`, whose result goes
            here too. Without splits, 80 % trains and 20 % tests.
        algorithm: a name (`propfair list algorithms`) or an object such as `PropFair(M=3.0)`.
        rounds: communication rounds.
        lr: learning rate of local SGD; 0.1 by default.
        batch_size: examples per local step; 64 by default.
        epochs: local passes in a round; one by default.
        local: everything about local training, instead of the three above.
        participation: share or number of clients in a round; all by default.
        server: everything about rounds, instead of participation.
        loss: cross-entropy by default; a function of (output, target) to losses [B], or a torch criterion.
        task: "single-label", "binary", "multi-label", "regression", "per-position" or "other"; None: what follows from
            the loss and the targets.
        metrics: further numbers of each client: names such as "f1", "auc", "rmse", objects of torchmetrics, functions
            of (output, target), or `Metric`s.
        num_classes: None: the largest label plus one.
        eval_every: rounds between evaluations of all clients.
        seed: decides all randomness of the training; torch's global generators stay as they are.
        data_seed: decides the split of clients that come without one, so that seeds share their data.
        engine: how clients are run, see `propfair list engines`.
        device: "cpu", "cuda", "mps".
        lean: leave out arithmetic that only meets padding; the same model, faster.
        out: a folder for the records, the model and the environment; None keeps everything in memory.
        force: replace `out` if it is an older run.
        resume: go on with the run in `out` if there is one, to the same bits as if it had never stopped; model, clients
            and settings must be those it began with, but `rounds` may be more.
        callbacks: called before and after each round, such as `EarlyStopping`; they may end the training.
        after_round: called after each round, with a `Progress`.
        watch: the name that `after_round` had in 0.1.0.
    """
    if watch is not None:
        warnings.warn("train(watch=...) is now called after_round=...", DeprecationWarning, stacklevel=2)
        after_round = watch
    device = str(device)  # a torch.device goes, too
    check_device(device)
    _check_arguments(model, seed, data_seed, callbacks, metrics)
    chosen = _algorithm(algorithm)
    if not isinstance(clients, Federation):
        clients = from_datasets(clients, num_classes=num_classes, seed=data_seed)
    kind, example_loss = choose_task(task, loss, clients.examples.targets(clients.train[0][:2]))
    work = Workload(
        clients,
        chosen,
        _either(LocalTraining, "local", local, lr=lr, batch_size=batch_size, epochs=epochs),
        seed,
        example_loss,
        device,
        task=kind,
        metrics=choose_metrics(metrics, kind),
    )
    recipe = Recipe(
        work=work,
        engine=_engine(engine),
        server=_either(Rounds, "server", server, participation=participation),
        schedule=Schedule(rounds=rounds, eval_every=eval_every),
        name=Path(out).name if out else str(chosen),
        lean=lean,
        callbacks=tuple(callbacks),
    )
    place = None if out is None else Path(out)
    if resume and place is None:
        raise ConfigError("resume=True needs out, the folder of the run")
    if resume and place is not None and (place / "status.json").exists():
        return _warned(go_on(place, model, recipe, after_round=after_round))
    return _warned(execute(model, recipe, place, force=force, after_round=after_round))


def resume(
    path: str | Path,
    model: nn.Module | None = None,
    clients: Federation | Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    rounds: int | None = None,
    algorithm: str | Algorithm | None = None,
    loss: LossFunction | nn.Module | None = None,
    lr_schedule: Callable[[int], float] | None = None,
    metrics: Sequence[Any] = (),
    num_classes: int | None = None,
    data_seed: int = 0,
    data_folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
    trust: bool = False,
    after_round: AfterRound = lambda _: None,
) -> Result:
    """Go on with a run where its newest whole checkpoint stands, to the same bits as if it had never stopped.

    A run of the command line knows all it needs; one that `train(out=...)` began needs its model and its clients.

    Args:
        path: the folder of the run.
        model: a module of the same kind as the one that was trained.
        clients: the same clients.
        rounds: how many rounds in all, also of a finished run; None: as many as were asked for.
        algorithm: if it was one of your own that has no name.
        loss: as it was given to `train`, and so are the next four.
        lr_schedule: if it was a function.
        metrics: measured beside the loss.
        num_classes: None: the largest label plus one.
        data_seed: decides the split of clients that come without one.
        data_folder: of a run of the command line, where the data are now, if they have moved.
        callbacks: the same ones, in the same order; what they kept goes on.
        trust: agree to what the folder asks to be imported or connected; see `propfair.runs.trust`.
        after_round: called after each round, with a `Progress`.
    """
    if model is None or clients is None:
        if algorithm is not None or loss is not None or lr_schedule is not None or metrics:
            raise ConfigError("only a run that was started from Python takes new settings: pass its model and clients")
        again = launch.resume(Path(path), rounds=rounds, data_folder=data_folder, trust=trust, after_round=after_round)
        return _warned(again)
    _check_arguments(model, 0, data_seed, callbacks, metrics)
    settings = read_settings(Path(path))
    check_trust(settings.model_dump(mode="json"), Path(path), trust=trust)
    check_device(settings.device)
    if not isinstance(clients, Federation):
        clients = from_datasets(clients, num_classes=num_classes, seed=data_seed)
    few = clients.examples.targets(clients.train[0][:2])
    task, example_loss = choose_task(settings.task, loss, few)
    chosen = settings.make_algorithm() if algorithm is None else _algorithm(algorithm)
    work = Workload(
        clients, chosen, settings.local, settings.seed, example_loss, settings.device,
        task=task, metrics=choose_metrics(metrics, task),
    )  # fmt: skip
    schedule = settings.schedule if rounds is None else replace(settings.schedule, rounds=rounds)
    recipe = Recipe(
        work=work, engine=settings.make_engine(), server=settings.make_server(lr_schedule), schedule=schedule,
        name=settings.name, lean=settings.lean, callbacks=tuple(callbacks),
    )  # fmt: skip
    return _warned(go_on(Path(path), model, recipe, after_round=after_round))


def _warned(result: Result) -> Result:
    """What failed is told, though whoever trains many may go on with the others."""
    if result.state == "failed":
        warnings.warn(f"the training failed (result.state): {result.reason}", PropFairWarning, stacklevel=3)
    return result


def _algorithm(wanted: str | Algorithm) -> Algorithm:
    return make_algorithm(wanted) if isinstance(wanted, str) else checked_algorithm(wanted)


def _engine(wanted: str | Engine) -> Engine:
    if isinstance(wanted, str):
        return ENGINES.make(wanted)
    if not isinstance(wanted, Engine):
        raise ConfigError(f"engine must be a name, or an object of such a class; got {shown(wanted)}")
    return wanted


def _check_arguments(model: Any, seed: Any, data_seed: Any, callbacks: Sequence[Any], metrics: Any) -> None:
    """What is of the wrong kind is told by its name, before anything is read."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    for name, value in (("seed", seed), ("data_seed", data_seed)):
        if not isinstance(value, SupportsIndex) or value.__index__() < 0:
            raise ConfigError(f"{name} must be a whole number of at least 0; got {name}={shown(value)}")
    if not isinstance(callbacks, Sequence):
        raise ConfigError(f"callbacks must be a list; got {type(callbacks).__name__}. Try callbacks=[...].")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"callbacks must be derived from propfair.Callback; got {shown(callback)}. A function of the progress "
                "goes into after_round=."
            )
    if isinstance(metrics, str):
        raise ConfigError(f"metrics must be a list; got {shown(metrics)}. Try metrics=[{metrics!r}].")


def _either(kind: type[T], name: str, whole: T | None, **single: Any) -> T:
    """The whole object, or one from the single values that were given; both would leave one of them unused."""
    given = {key: value for key, value in single.items() if value is not None}
    if whole is None:
        return kind(**given)
    if not isinstance(whole, kind):
        raise ConfigError(f"{name} must be a {kind.__name__}; got {type(whole).__name__}. Try {kind.__name__}(...).")
    if given:
        raise ConfigError(
            f"{next(iter(given))}= and {name}= were both given, and one of them would be ignored. "
            f"Put it into {name}={kind.__name__}(...)."
        )
    return whole
