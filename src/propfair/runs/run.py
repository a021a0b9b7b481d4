"""From a config to a run: loads the data once, builds the model, trains, writes the folder."""

import contextlib
import dataclasses
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from propfair.core.aggregator import Rounds
from propfair.core.client import Workload
from propfair.engines.auto import Auto
from propfair.engines.inprocess import torch_threads
from propfair.engines.session import Engine
from propfair.errors import ConfigError, DataError, TrainingError
from propfair.federation.federation import Federation, federate
from propfair.federation.saved import load_partition
from propfair.runs.config import RunConfig, make_config
from propfair.runs.environment import describe_environment, with_resume
from propfair.runs.folder import RunFolder
from propfair.runs.initial import Initial
from propfair.runs.loggers import About, Logger, Sinks, flat, open_sinks
from propfair.runs.names import short_name
from propfair.runs.records import Records, count_dropped, last_evaluations
from propfair.runs.result import Result
from propfair.runs.training import Progress, Schedule, Trained, check_workload, fit, split_sizes

Watch = Callable[[Progress], None]


class Start(NamedTuple):
    """The model of an earlier run, to be trained on."""

    model: dict[str, Tensor]  # state dict
    described: dict[str, Any]  # for environment.json


def build_federation(config: RunConfig) -> Federation:
    """The clients of a config. Depends on its data section alone, so that runs can share them."""
    examples = config.make_source().load(config.data.folder)
    if config.data.saved is not None:
        return load_partition(config.data.saved, examples)
    return federate(examples, config.make_partitioner(), config.num_clients, config.make_splitter(), config.data.seed)


def initial(config: RunConfig, federation: Federation) -> Initial:
    """The models that clients start from, drawn from the seed of the config."""
    shape = tuple(federation.examples.inputs(federation.train[0][:1]).shape[1:])
    return Initial(config.make_model(), shape, federation.examples.num_classes, config.seed)


def build_model(config: RunConfig, federation: Federation) -> nn.Module:
    """The model of a config, initialised from its seed."""
    return initial(config, federation).module()


def build_workload(config: RunConfig, federation: Federation) -> Workload:
    """All that the clients of a config need."""
    starts = initial(config, federation) if config.init == "independent" else None
    return Workload(federation, config.make_algorithm(), config.local, config.seed, device=config.device, starts=starts)


def run(
    config: RunConfig,
    out: Path | None = None,
    *,
    name: str | None = None,
    force: bool = False,
    federation: Federation | None = None,
    watch: Watch = lambda _: None,
) -> Result:
    """Run a config. With `out`, everything is recorded there; the folder is made only once nothing can be wrong."""
    check_device(config.device)
    federation = federation or build_federation(config)
    module = build_model(config, federation)
    start = None if config.start is None else load_start(config.start, module, federation)
    work = build_workload(config, federation)
    return execute(
        module, work, engine=config.make_engine(), rounds=config.server, schedule=config.schedule,
        name=name or (out.name if out else str(work.algorithm)), out=out, force=force,
        config_text=config.to_toml(), start=start, lean=config.lean, loggers=config.make_loggers(), watch=watch,
    )  # fmt: skip


def load_start(path: Path, module: nn.Module, federation: Federation) -> Start:
    """Put the model that a run reached into `module`."""
    folder = RunFolder.open(path)
    model = folder.model()
    try:
        module.load_state_dict(model)
    except RuntimeError as error:
        raise ConfigError(
            f"the model of {path} does not fit: {str(error).splitlines()[-1].strip()} Train the same model on data of "
            "the same shape."
        ) from None
    status, clients = folder.status, folder.clients
    described = {
        "run": str(path),
        "label": short_name(saved_config(folder).make_algorithm()) if folder.config_text else status["name"],
        "rounds": status["rounds"],
        "fingerprint": clients["fingerprint"],
        "same_clients": clients["fingerprint"] == federation.fingerprint,
    }
    return Start(model, described)


def execute(
    module: nn.Module,
    work: Workload,
    *,
    engine: Engine,
    rounds: Rounds,
    schedule: Schedule,
    name: str,
    out: Path | None = None,
    force: bool = False,
    config_text: str = "",
    start: Start | None = None,
    lean: bool = True,
    loggers: Sequence[Logger] = (),
    watch: Watch = lambda _: None,
) -> Result:
    """Train and, with `out`, write the run folder."""
    rounds.cohort_size(work.federation.num_clients)
    check_workload(module, work)
    folder = sinks = None
    if out is not None:
        sinks = open_sinks(loggers, About(name, out, flat(tomllib.loads(config_text))))
        environment = describe_environment(work.seed, engine.name)
        folder = RunFolder.create(
            out, name=name, config=config_text, force=force, clients=describe_clients(work.federation),
            environment=environment if start is None else {**environment, "start": start.described},
            start=None if start is None else start.model,
        )  # fmt: skip
    return _train(
        module, work, folder, engine=engine, rounds=rounds, schedule=schedule, name=name, lean=lean, sinks=sinks,
        watch=watch,
    )  # fmt: skip


def resume(
    path: Path,
    *,
    data_folder: Path | None = None,
    federation: Federation | None = None,
    watch: Watch = lambda _: None,
) -> Result:
    """Go on with a run where its newest whole checkpoint stands, to the same bits as if it had never stopped.

    Args:
        path: the run folder.
        data_folder: where the data are now, if they have moved.
        federation: the clients, if they are loaded already.
        watch: told after each round.
    """
    folder = RunFolder.open(path)
    config = saved_config(folder)
    status, environment = folder.status, folder.environment
    if status["state"] == "failed":
        raise ConfigError(f"{path} has failed and would fail again: {status['reason']}")
    if data_folder is not None:
        config = config.model_copy(update={"data": config.data.model_copy(update={"folder": data_folder})})
    check_device(config.device)
    federation = federation or build_federation(config)
    if federation.fingerprint != folder.clients["fingerprint"]:
        raise DataError(
            f"the data of {path} have changed: their fingerprint was {folder.clients['fingerprint']}, now it is "
            f"{federation.fingerprint}. Bring the old data back with --data-dir, or run it again."
        )
    module = build_model(config, federation)
    work = build_workload(config, federation)
    if status["state"] == "finished":
        return _result(_reread(folder, federation), module, work, folder, status["name"])
    start = folder.start()
    if start is not None:
        module.load_state_dict(start)
    folder.save_environment(with_resume(environment))
    with torch_threads(environment["threads"]):  # the last bits depend on it
        return _train(
            module, work, folder, engine=_same_engine(config.make_engine(), environment), rounds=config.server,
            schedule=config.schedule, name=status["name"], lean=config.lean, watch=watch,
            sinks=open_sinks(config.make_loggers(), About(status["name"], path, flat(tomllib.loads(config.to_toml())))),
        )  # fmt: skip


def _same_engine(engine: Engine, environment: Mapping[str, Any]) -> Engine:
    """The engine of a config, with what `auto` chose when the run began."""
    choice = environment.get("engine_choice")
    return dataclasses.replace(engine, choice=choice) if isinstance(engine, Auto) and choice else engine


def saved_config(folder: RunFolder) -> RunConfig:
    """The config of a run on disk."""
    text = folder.config_text
    if not text:
        raise ConfigError(
            f"{folder.path} was started from Python, with a model or data that no config describes; "
            "only runs of the command line can be rebuilt from their folder"
        )
    return make_config(tomllib.loads(text))


def _train(
    module: nn.Module, work: Workload, folder: RunFolder | None, *,
    engine: Engine, rounds: Rounds, schedule: Schedule, name: str, lean: bool, sinks: Sinks | None, watch: Watch,
) -> Result:  # fmt: skip
    with folder.in_use() if folder else contextlib.nullcontext(), _disk_errors(folder):
        trained = fit(
            module, work, engine=engine, rounds=rounds, schedule=schedule, name=name, folder=folder, lean=lean,
            sinks=sinks, watch=watch,
        )  # fmt: skip
        if folder is not None:
            folder.save_model(trained.model)
            folder.finish(trained.state, trained.rounds, trained.reason, trained.seconds)
    return _result(trained, module, work, folder, name)


def _reread(folder: RunFolder, federation: Federation) -> Trained:
    """The end of a training that is on disk."""
    status, records, sizes = folder.status, folder.records(), split_sizes(federation)
    return Trained(
        state=status["state"],
        rounds=status["rounds"],
        reason=status["reason"],
        records=Records(status["name"]),
        model=folder.model(),
        evaluations=last_evaluations(records, sizes),
        personal=last_evaluations(records, sizes, "personal_"),
        num_dropped=count_dropped(records),
        seconds=status["seconds"],
    )


def _result(trained: Trained, module: nn.Module, work: Workload, folder: RunFolder | None, name: str) -> Result:
    module.load_state_dict(trained.model)
    return Result(
        name=name,
        algorithm=str(work.algorithm),
        state=trained.state,
        reason=trained.reason,
        rounds=trained.rounds,
        clients=work.federation.names,
        records=folder.records() if folder else trained.records.clients,
        rounds_table=folder.rounds() if folder else trained.records.rounds,
        evaluations=trained.evaluations,
        personal=trained.personal,
        model=module,
        num_dropped=trained.num_dropped,
        notes=tuple(trained.notes),
        seconds=trained.seconds,
        folder=folder.path if folder else None,
    )


def check_device(device: str) -> None:
    """Refuse a device that is not there, before anything is loaded."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {device!r} can't be used here: {str(error).splitlines()[0]}. Try --device cpu."
        ) from None


def describe_clients(federation: Federation) -> dict[str, Any]:
    """Names, sizes and label counts of the clients, for reports that show who holds what."""
    classes = federation.examples.num_classes
    described: dict[str, Any] = {
        "fingerprint": federation.fingerprint,
        "note": federation.note,
        "names": list(federation.names),
        "num_classes": classes,
        "sizes": split_sizes(federation),
    }
    if classes:
        described["train_labels"] = federation.label_counts("train").tolist()
    return described


@contextlib.contextmanager
def _disk_errors(folder: RunFolder | None) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = folder.path if folder else error.filename
        raise TrainingError(
            f"can't write to {where}: {error.strerror or error}. What was written before is whole; free some space, "
            "or choose another folder with --out."
        ) from error
