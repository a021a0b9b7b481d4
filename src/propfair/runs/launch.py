"""Runs: started from a config or from Python, gone on with, or found finished."""

import contextlib
import dataclasses
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import propfair
from propfair.algorithms.base import ALGORITHMS
from propfair.core.checks import settled
from propfair.engines.auto import Auto
from propfair.engines.inprocess import torch_threads
from propfair.engines.session import Engine
from propfair.engines.together import NOTE as TOGETHER
from propfair.errors import ConfigError, DataError, TrainingError
from propfair.federation.federation import SPLITS, Federation
from propfair.runs.building import Beginning, begin_from, build_federation, build_model, build_workload, put_into
from propfair.runs.checks import check_device, check_workload
from propfair.runs.config import RunConfig, make_config
from propfair.runs.environment import describe_environment, directions, with_resume
from propfair.runs.folder import RunFolder
from propfair.runs.loggers import About, Logger, Sinks, open_sinks
from propfair.runs.progress import AfterRound
from propfair.runs.python import PythonSettings, read_settings
from propfair.runs.reading import describe, read_run
from propfair.runs.result import Result
from propfair.runs.run import Clients, Environment, Run, Start, Status
from propfair.runs.together import run_together
from propfair.runs.toml import flat, parse_toml
from propfair.runs.training import Recipe, Trained, fit
from propfair.runs.trust import remember, wishes


def run(
    config: RunConfig,
    out: Path | None = None,
    *,
    name: str | None = None,
    force: bool = False,
    federation: Federation | None = None,
    engine: Engine | None = None,
    after_round: AfterRound = lambda _: None,
) -> Result:
    """Run a config. With `out`, everything is recorded there; the folder is made only once nothing can be wrong.

    `engine` takes the place of the one of the config, and must give the same results.
    """
    check_device(config.device)
    federation = federation or build_federation(config)
    module = build_model(config, federation)
    beginning = None if config.start is None else begin_from(config.start, module, federation)
    recipe = _recipe(config, federation, name or (out.name if out else str(config.parts.algorithm)))
    if engine is not None:
        recipe = dataclasses.replace(recipe, engine=engine)
    return execute(
        module, recipe, out, force=force, config_text=config.to_toml(), beginning=beginning,
        loggers=config.parts.loggers, after_round=after_round,
    )  # fmt: skip


def execute(
    module: nn.Module,
    recipe: Recipe,
    out: Path | None = None,
    *,
    force: bool = False,
    config_text: str = "",
    beginning: Beginning | None = None,
    loggers: Sequence[Logger] = (),
    after_round: AfterRound = lambda _: None,
) -> Result:
    """Train and, with `out`, write the run folder."""
    recipe.server.cohort_size(recipe.work.federation.num_clients)
    check_workload(module, recipe.work)
    recipe = dataclasses.replace(recipe, work=settled(module, recipe.work))
    work = recipe.work
    if out is None:
        trained = fit(module, recipe, after_round=after_round)
        module.load_state_dict(trained.model)
        start = None if beginning is None else beginning.start
        settings = {} if config_text else PythonSettings.of(recipe, module).written()
        return Result(_in_memory(recipe, trained, config_text, start, settings), module, trained.personal)
    config = tomllib.loads(config_text)
    sinks = open_sinks(loggers, About(recipe.name, out, flat(config)))
    environment = describe_environment(work, recipe.engine.name)
    first = None if beginning is None else beginning.model
    if not config_text:  # a run from Python: what a resume can't know otherwise
        environment["settings"] = PythonSettings.of(recipe, module).written()
        first = module.state_dict()
    folder = RunFolder.create(
        out, name=recipe.name, config=config_text, force=force, clients=describe_clients(work.federation).model_dump(),
        environment=environment if beginning is None else {**environment, "start": beginning.start.model_dump()},
        start=first,
    )  # fmt: skip
    remember(out, wishes(config if config_text else environment["settings"]))
    return _train(module, recipe, folder, sinks, after_round)


def resume(
    path: Path,
    *,
    rounds: int | None = None,
    data_folder: Path | None = None,
    federation: Federation | None = None,
    engine: Engine | None = None,
    trust: bool = False,
    after_round: AfterRound = lambda _: None,
) -> Result:
    """Go on with a run where its newest whole checkpoint stands, to the same bits as if it had never stopped.

    Args:
        path: the run folder.
        rounds: how many rounds in all, also of a finished run; None: as many as were asked for.
        data_folder: where the data are now, if they have moved.
        federation: the clients, if they are loaded already.
        engine: instead of that of the config; it must give the same results.
        trust: agree to what the folder asks to be imported or connected; see `propfair.runs.trust`.
        after_round: told after each round.
    """
    folder = RunFolder.open(path)
    config = saved_config(folder, trust=trust)
    status = describe(folder).status
    if status.state == "failed":  # before data are read
        raise ConfigError(f"{path} has failed and would fail again: {status.reason}")
    if rounds is not None:
        config = config.changed(schedule=dataclasses.replace(config.schedule, rounds=rounds))
    text = config.to_toml()
    if data_folder is not None:
        config = config.changed(data=config.data.model_copy(update={"folder": data_folder}))
    check_device(config.device)
    federation = federation or build_federation(config)
    module = build_model(config, federation)
    sinks = open_sinks(config.parts.loggers, About(status.name, path, flat(tomllib.loads(config.to_toml()))))
    recipe = _recipe(config, federation, status.name)

    def train_on(engine: Engine | None) -> Result:
        own = recipe if engine is None else dataclasses.replace(recipe, engine=engine)
        return go_on(path, module, own, config_text=text, sinks=sinks, after_round=after_round)

    if engine is None and TOGETHER in folder.environment.get("notes", ()):
        return run_together(config, [train_on])[0]  # as it began, though alone now
    return train_on(engine)


def go_on(
    path: Path,
    module: nn.Module,
    recipe: Recipe,
    *,
    config_text: str = "",
    sinks: Sinks | None = None,
    after_round: AfterRound = lambda _: None,
) -> Result:
    """Go on with a run whose parts are given; they must be those that it began with, but rounds may be more.

    `config_text` is the config of the run as it is to be from now on; none for a run from Python.
    """
    folder = RunFolder.open(path)
    _, status, environment, clients = describe(folder)
    _check_same(path, recipe, status, environment, clients)
    rounds, asked = recipe.schedule.rounds, _rounds_asked(folder, status)
    settings: dict[str, Any] = {}
    if not config_text and (status.state != "finished" or "settings" in folder.environment):  # 0.1.0 kept none
        now = PythonSettings.of(recipe, module)
        read_settings(path).check(now, path)
        settings = {"settings": now.written()}
    if status.state == "finished":
        if rounds <= asked:
            put_into(module, folder.model(), path)
            return Result(read_run(path), module)
        if status.rounds < asked:
            raise ConfigError(f"{path} ended by itself and takes no more rounds: {status.reason}.")
    if (start := folder.start()) is not None:
        put_into(module, start, path)  # before anything is written
    with folder.in_use():
        if status.state == "finished":
            folder.reopen()
        if config_text and rounds != asked:
            folder.save_config(config_text)
        folder.save_environment(
            {"algorithm": str(recipe.work.algorithm), **with_resume(folder.environment), **settings}
        )
    check_workload(module, recipe.work)
    work, engine = settled(module, recipe.work), _same_engine(recipe.engine, environment)
    recipe = dataclasses.replace(recipe, work=work, engine=engine)
    sinks = sinks or open_sinks((), About(recipe.name, path, {}))
    with torch_threads(environment.threads):  # the last bits depend on it
        return _train(module, recipe, folder, sinks, after_round)


def _check_same(path: Path, recipe: Recipe, status: Status, environment: Environment, clients: Clients) -> None:
    """A run goes on with its own data, algorithm and seed, or not at all."""
    if status.state == "failed":
        raise ConfigError(f"{path} has failed and would fail again: {status.reason}")
    if recipe.schedule.rounds < status.rounds:
        raise ConfigError(
            f"{path} has done {status.rounds} rounds already, more than schedule.rounds={recipe.schedule.rounds}"
        )
    fingerprint = recipe.work.federation.fingerprint
    if fingerprint != clients.fingerprint:
        raise DataError(
            f"the data of {path} have changed: their fingerprint was {clients.fingerprint}, now it is {fingerprint}. "
            "Bring the old data back with --data-dir, or run it again."
        )
    for what, now, then in (
        ("algorithm", str(recipe.work.algorithm), environment.algorithm),
        ("seed", recipe.work.seed, environment.seed),
        ("metrics", ", ".join(directions(recipe.work)) or "none", ", ".join(environment.metrics)),
    ):
        if then not in ("", now):
            raise ConfigError(f"{path} began with {what} {then}, and can't go on with {now}. Choose another folder.")


def _rounds_asked(folder: RunFolder, status: Status) -> int:
    """How many rounds the run was to have so far."""
    known = tomllib.loads(folder.config_text) or folder.environment.get("settings") or {}
    found = known.get("schedule", {}).get("rounds", status.rounds)
    return found if isinstance(found, int) else status.rounds


def ensure_run(
    config: RunConfig,
    out: Path,
    *,
    name: str,
    federation: Callable[[], Federation],
    engine: Engine | None = None,
    after_round: AfterRound = lambda _: None,
) -> Run:
    """The run of this config in this folder: read if it has ended, resumed if it was cut off, else run.

    It takes `engine` instead of the one of the config, if there is one; that must give the same results.

    Raises KeyboardInterrupt when it was stopped on the way, so that nothing else is started.
    """
    if (out / "status.json").exists():
        folder = RunFolder.open(out)
        if folder.config_text != config.to_toml() and saved_config(folder).to_toml() != config.to_toml():
            raise ConfigError(f"{out} holds a run with other settings. Choose another --out, or delete it.")
        if _at_its_end(folder):
            return read_run(out)
        # The user's own config asks for the same.
        result = resume(out, federation=federation(), engine=engine, trust=True, after_round=after_round)
    else:
        result = run(config, out, name=name, federation=federation(), engine=engine, after_round=after_round)
    if result.state == "interrupted":
        raise KeyboardInterrupt
    return result.run


def has_ended(out: Path) -> bool:
    """Whether a folder has a run that `ensure_run` would read and not train."""
    return (out / "status.json").exists() and _at_its_end(RunFolder.open(out))


def _at_its_end(folder: RunFolder) -> bool:
    return describe(folder).status.state in ("finished", "failed")


def saved_config(folder: RunFolder, overrides: Mapping[str, Any] | None = None, *, trust: bool = False) -> RunConfig:
    """The config of a run on disk; what it asks to be imported or connected is refused without `trust`."""
    text = folder.config_text
    if not text:
        raise ConfigError(
            f"{folder.path} was started from Python, with a model or data that no config describes; "
            "only runs of the command line can be rebuilt from their folder"
        )
    content = parse_toml(text, str(folder.path / "config.toml"))
    if isinstance(section := content.get("algorithm"), dict) and section.get("name") in ALGORITHMS.names():
        content["algorithm"] = dict(ALGORITHMS.get(section["name"]).as_named_today(section))
    return make_config(content, overrides or {}, origin=folder.path, trust=trust)


def describe_clients(federation: Federation, *, labels: bool = True) -> Clients:
    """Names, sizes and label counts of the clients, for reports that show who holds what.

    Counts are left out with `labels=False`: of a million clients they are a large table.
    """
    classes = federation.examples.num_classes
    known = federation.examples.labels
    countable = classes and labels and known is not None and known.ndim == 1
    counts = federation.label_counts("train").tolist() if countable else None
    return Clients(
        fingerprint=federation.fingerprint,
        note=federation.note,
        names=federation.names,
        num_classes=classes,
        sizes={split: tuple(federation.split(split).lengths.tolist()) for split in SPLITS},
        train_labels=None if counts is None else tuple(map(tuple, counts)),
    )


def _recipe(config: RunConfig, federation: Federation, name: str) -> Recipe:
    return Recipe(
        work=build_workload(config, federation),
        engine=config.parts.engine,
        server=config.server,
        schedule=config.schedule,
        name=name,
        lean=config.lean,
        callbacks=() if config.early_stopping is None else (config.early_stopping.make(),),
    )


def _same_engine(engine: Engine, environment: Environment) -> Engine:
    """The engine of a config, with what `auto` chose when the run began."""
    choice: Any = environment.engine_choice
    return dataclasses.replace(engine, choice=choice) if isinstance(engine, Auto) and choice else engine


def _train(module: nn.Module, recipe: Recipe, folder: RunFolder, sinks: Sinks, after_round: AfterRound) -> Result:
    with folder.in_use(), _disk_errors(folder):
        trained = fit(module, recipe, folder=folder, sinks=sinks, after_round=after_round)
        folder.save_model(trained.model)
        folder.finish(trained.state, trained.rounds, trained.reason, trained.seconds)
    module.load_state_dict(trained.model)
    return Result(read_run(folder.path), module, trained.personal)


def _in_memory(
    recipe: Recipe, trained: Trained, config_text: str, start: Start | None, settings: dict[str, Any]
) -> Run:
    """The run of a training that was written nowhere."""
    work = recipe.work
    return Run(
        folder=None,
        config_text=config_text,
        status=Status(
            name=recipe.name, state=trained.state, rounds=trained.rounds, reason=trained.reason,
            seconds=trained.seconds,
        ),
        environment=Environment(
            propfair=propfair.__version__, seed=work.seed, engine=recipe.engine.name, engine_choice=trained.choice,
            notes=trained.notes, threads=torch.get_num_threads(), algorithm=str(work.algorithm), start=start,
            task=work.task.name, metrics=directions(work), settings=settings,
        ),
        clients=describe_clients(work.federation, labels=False),
        records=trained.records.clients,
        diagnostics=trained.records.diagnostics,
    )  # fmt: skip


@contextlib.contextmanager
def _disk_errors(folder: RunFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"can't write to {folder.path}: {error.strerror or error}. What was written before is whole; free some "
            "space, or choose another folder with --out."
        ) from error
