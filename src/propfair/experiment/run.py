"""From a config to a run: loads the data once, builds the model, trains, writes the folder."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from propfair.client import Workload
from propfair.engines.base import Engine
from propfair.errors import ConfigError, TrainingError
from propfair.experiment.config import RunConfig
from propfair.experiment.environment import describe_environment
from propfair.experiment.folder import RunFolder
from propfair.experiment.partition import load_partition
from propfair.experiment.training import Progress, Schedule, check_workload, fit
from propfair.federation import SPLITS, Federation, federate
from propfair.result import Result
from propfair.seeds import derive, untouched_global_rng
from propfair.server import Rounds

Watch = Callable[[Progress], None]


def build_federation(config: RunConfig) -> Federation:
    """The clients of a config. Depends on its data section alone, so that runs can share them."""
    examples = config.make_source().load(config.data.folder)
    if config.data.saved is not None:
        return load_partition(config.data.saved, examples)
    return federate(examples, config.make_partitioner(), config.num_clients, config.make_splitter(), config.data.seed)


def build_model(config: RunConfig, federation: Federation) -> nn.Module:
    """The model of a config, initialised from its seed."""
    shape = tuple(federation.examples.inputs(federation.train[0][:1]).shape[1:])
    with untouched_global_rng():
        torch.manual_seed(derive(config.seed, "init"))
        return config.make_model().build(shape, federation.examples.num_classes)


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
    work = Workload(federation, config.make_algorithm(), config.local, config.seed, device=config.device)
    return execute(
        module, work, engine=config.make_engine(), rounds=config.server, schedule=config.schedule,
        name=name or (out.name if out else str(work.algorithm)), out=out, force=force,
        config_text=config.to_toml(), watch=watch,
    )  # fmt: skip


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
    watch: Watch = lambda _: None,
) -> Result:
    """Train and, with `out`, write the run folder."""
    rounds.cohort_size(work.federation.num_clients)
    check_workload(module, work)
    folder = None
    if out is not None:
        folder = RunFolder.create(out, force=force)
        with _disk_errors(folder):
            folder.save_config(config_text)
            folder.save_environment(describe_environment(work.seed, engine.name))
            folder.save_clients(describe_clients(work.federation))
    return _train(module, work, folder, engine=engine, rounds=rounds, schedule=schedule, name=name, watch=watch)


def _train(
    module: nn.Module, work: Workload, folder: RunFolder | None, *,
    engine: Engine, rounds: Rounds, schedule: Schedule, name: str, watch: Watch,
) -> Result:  # fmt: skip
    with _disk_errors(folder):
        trained = fit(
            module, work, engine=engine, rounds=rounds, schedule=schedule, name=name, folder=folder, watch=watch
        )
        if folder is not None:
            folder.save_model(trained.model)
            folder.finish(keep_checkpoints=trained.state == "interrupted")
            folder.save_status(trained.state, trained.rounds, trained.reason)
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
        "sizes": {split: federation.split(split).lengths.tolist() for split in SPLITS},
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
