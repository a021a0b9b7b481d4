"""From a config to what is trained: the clients, the first model, and what the clients need."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from propfair.core.client import Workload
from propfair.core.losses import choose_task
from propfair.core.metrics import choose_metrics
from propfair.core.tasks import LossFunction, Task
from propfair.data.base import Examples
from propfair.data.imported import ImportedData
from propfair.errors import ConfigError
from propfair.federation.federation import Federation, federate
from propfair.federation.own import from_datasets
from propfair.federation.saved import load_partition
from propfair.runs.config import RunConfig
from propfair.runs.folder import RunFolder
from propfair.runs.initial import Initial
from propfair.runs.reading import read_run
from propfair.runs.run import Start


class Beginning(NamedTuple):
    """The model of an earlier run, to be trained on, and what is recorded of that run."""

    model: dict[str, Tensor]  # state dict
    start: Start


def build_federation(config: RunConfig) -> Federation:
    """The clients of a config. Depends on its data section alone, so that runs can share them."""
    parts, data = config.parts, config.data
    if isinstance(parts.source, ImportedData):
        found = parts.source.call()
        if isinstance(found, Federation):
            return found
        if not isinstance(found, Examples):
            return from_datasets(found, splitter=parts.splitter, seed=data.seed)
        examples = found
    else:
        examples = parts.source.load(data.folder)
    if data.saved is not None:
        return load_partition(data.saved, examples)
    return federate(examples, parts.partitioner, parts.num_clients, parts.splitter, data.seed)


class Federations:
    """Loads the clients of each data section once."""

    def __init__(self) -> None:
        self._loaded: dict[str, Federation] = {}

    def of(self, config: RunConfig) -> Federation:
        """The clients of a config."""
        key = config.data.model_dump_json()
        if key not in self._loaded:
            self._loaded[key] = build_federation(config)
        return self._loaded[key]


def build_model(config: RunConfig, federation: Federation) -> nn.Module:
    """The model of a config, initialised from its seed."""
    return _initial(config, federation).module()


def build_workload(config: RunConfig, federation: Federation) -> Workload:
    """All that the clients of a config need."""
    starts = _initial(config, federation) if config.init == "independent" else None
    task, loss = _task(config, federation)
    return Workload(
        federation, config.parts.algorithm, config.local, config.seed, loss, config.device, starts, task,
        choose_metrics(config.metrics or (), task),
    )  # fmt: skip


def begin_from(path: Path, module: nn.Module, federation: Federation) -> Beginning:
    """Put the model that a run reached into `module`."""
    model = RunFolder.open(path).model()
    put_into(module, model, path)
    run = read_run(path)
    start = Start(
        run=str(path),
        label=run.label,
        rounds=run.status.rounds,
        fingerprint=run.fingerprint,
        same_clients=run.fingerprint == federation.fingerprint,
    )
    return Beginning(model, start)


def put_into(module: nn.Module, model: Mapping[str, Tensor], path: Path) -> None:
    """Put the model of a run folder into a module, which must be of the same kind."""
    try:
        module.load_state_dict(model)
    except RuntimeError as error:
        raise ConfigError(
            f"the model of {path} does not fit: {str(error).splitlines()[-1].strip()} Take the same model and data of "
            "the same shape."
        ) from None


def _initial(config: RunConfig, federation: Federation) -> Initial:
    """The models that clients start from, drawn from the seed of the config."""
    few = federation.train[0][:1]
    x = federation.examples.inputs(few)
    if not isinstance(x, Tensor):
        raise ConfigError("models of a config take one input; train a model with several inputs from Python")
    task, _ = _task(config, federation)
    outputs = task.num_outputs(federation.examples.targets(few), federation.examples.num_classes)
    return Initial(config.parts.model, tuple(x.shape[1:]), outputs, config.seed)


def _task(config: RunConfig, federation: Federation) -> tuple[Task, LossFunction]:
    """What the config says; else real-valued targets are regression, as no loss of one's own can say otherwise."""
    targets = federation.examples.targets(federation.train[0][:2])
    named = config.task or ("regression" if targets.is_floating_point() else None)
    return choose_task(named, None, targets)
