"""The config of a run: TOML plus dotted overrides, validated before anything is loaded."""

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from propfair.algorithms.base import ALGORITHMS, Algorithm, make_algorithm
from propfair.core.client import LocalTraining
from propfair.core.rounds import Rounds
from propfair.core.tasks import TASKS
from propfair.data.base import Source
from propfair.data.imported import ImportedData, make_source
from propfair.engines.session import ENGINES, Engine
from propfair.errors import ConfigError, shown, unknown
from propfair.federation.partition import PARTITIONERS, Partitioner
from propfair.federation.split import Splitter
from propfair.models.base import ImportedModel, ModelSpec, make_model
from propfair.registry import fields_of, make_dataclass
from propfair.runs.callbacks import Stopping
from propfair.runs.disagreement import with_disagreement
from propfair.runs.loggers import LOGGERS, Logger
from propfair.runs.schedule import Schedule
from propfair.runs.toml import read_toml, write_toml
from propfair.runs.trust import check_trust

DEFAULT_ALGORITHM = "propfair"
DEFAULT_ENGINE = "auto"
DEFAULT_CLIENTS = 10


class Part(BaseModel):
    """A named part and its options: `{name = "propfair", M = 5.0}`. Without a name: the usual one, changed so."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """All but the name and what the section itself knows."""
        return dict(self.model_extra or {})


class DataSection(Part):
    """The data set, who gets what, and the split inside each client. What is left out, the data set's protocol says."""

    name: str = "digits"
    folder: Path | None = Field(default=None, description="Where data sets are; also --data-dir.")
    num_clients: int | None = Field(default=None, ge=1, description="How many clients; None: as the data set says.")
    partition: Part = Part()
    split: dict[str, Any] = {}
    saved: Path | None = Field(default=None, description="A partition on file, instead of partition and split.")
    seed: int = Field(default=0, ge=0, description="Decides the partition and the split, and nothing else.")


class RunConfig(BaseModel):
    """Everything that decides a run. Sections: data, model, algorithm, local, server, engine, schedule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(default=0, ge=0, description="Decides all randomness of the training.")
    device: str = Field(default="cpu", description="cpu, cuda, cuda:1, mps.")
    init: Literal["common", "independent"] = Field(
        default="common", description="The first model: one for all, or one that each client draws, as the authors do."
    )
    lean: bool = Field(default=True, description="Leave out arithmetic that only meets padding: equal, faster.")
    start: Path | None = Field(default=None, description="A run folder whose model is trained on.")
    task: str | None = Field(default=None, description="regression, binary ...; none: what follows from the targets.")
    metrics: tuple[str, ...] | None = Field(
        default=None, description="Measured beside the loss and the task's score: names, or module:function."
    )
    data: DataSection = DataSection()
    model: Part = Part()
    algorithm: Part = Part()
    local: LocalTraining = LocalTraining()
    server: Rounds = Rounds()
    engine: Part = Part()
    schedule: Schedule = Schedule()
    early_stopping: Stopping | None = Field(
        default=None,
        description="End when a statistic over clients gets no better; see its keys below.",
    )
    log: tuple[str, ...] = Field(
        default=(), description="Where numbers go beside the folder: tensorboard, mlflow:experiment=mine, wandb."
    )

    @field_validator("metrics", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        """`metrics=f1,mine:bias` is short for a list."""
        return tuple(name.strip() for name in given.split(",")) if isinstance(given, str) else given

    _parts: "Parts" = PrivateAttr()
    _text: str = PrivateAttr()

    @model_validator(mode="after")
    def _make_parts(self) -> Self:
        """Build every part, so that a wrong name or option shows before any data is read."""
        if self.init == "independent" and self.start is not None:
            raise ConfigError("init='independent' draws new models, and start continues from one: choose one of them")
        if self.task is not None and self.task not in TASKS:
            raise unknown("task", self.task, TASKS)
        self._parts = Parts.of(self)
        self._text = _spelled_out(self, self._parts)
        return self

    @property
    def parts(self) -> "Parts":
        """What the sections name, built; once for each config."""
        return self._parts

    def to_toml(self) -> str:
        """The config with everything spelled out; reading it gives the same run."""
        return self._text

    def changed(self, **changes: Any) -> "RunConfig":
        """The config with other values of some of its fields."""
        return RunConfig.model_validate({**dict(self), **changes})

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> "RunConfig":
        """Pydantic's way to a changed copy; the parts of the copy are its own."""
        return self.changed(**(update or {}))


@dataclass(frozen=True)
class Parts:
    """What a config names, built.

    Attributes:
        source: the data set; one that draws its examples takes the seed of the data section.
        partitioner: the one asked for, or that of the data set's protocol with the given options changed.
        splitter: that of the data set's protocol, with the given fields changed.
        num_clients: how many clients to make; None where the data says it.
        model_name, model: the one asked for, or that of the data set's protocol.
        algorithm: the rule.
        engine: how clients are run.
        loggers: what the numbers of each round go to, beside the CSV file.
    """

    source: Source
    partitioner: Partitioner
    splitter: Splitter
    num_clients: int | None
    model_name: str
    model: ModelSpec
    algorithm: Algorithm
    engine: Engine
    loggers: tuple[Logger, ...]

    @classmethod
    def of(cls, config: RunConfig) -> "Parts":
        """Build what the sections of a config name; what they leave out, the data set's protocol says."""
        data = config.data
        source = make_source(data.name, data.options, data.seed)
        model_name = config.model.name or source.protocol.model
        model = make_model(model_name, config.model.options)
        usual, options = source.protocol.partition
        if data.partition.name in ("", usual):
            partitioner = PARTITIONERS.make(usual, {**options, **data.partition.options})
        else:
            partitioner = PARTITIONERS.make(data.partition.name, data.partition.options)
        num_clients = data.num_clients
        if num_clients is None:
            num_clients = source.protocol.num_clients if partitioner.name == usual else DEFAULT_CLIENTS
        return cls(
            source=source,
            partitioner=partitioner,
            splitter=make_dataclass(Splitter, {**source.protocol.split, **data.split}, "data.split"),
            num_clients=num_clients,
            model_name=model_name,
            model=model,
            algorithm=make_algorithm(config.algorithm.name or DEFAULT_ALGORITHM, config.algorithm.options),
            engine=ENGINES.make(config.engine.name or DEFAULT_ENGINE, config.engine.options),
            loggers=tuple(_make_logger(text) for text in config.log),
        )


def load_config(
    path: Path | None = None, overrides: Mapping[str, Any] | Iterable[str] = (), *, trust: bool = False
) -> RunConfig:
    """Read a TOML file (or start from the defaults) and apply overrides such as `algorithm.M=5` or `data=cifar10`.

    What the file asks to be imported or connected is refused, unless the overrides say it too, or with `trust`.
    """
    return make_config(read_toml(path), overrides, origin=path, trust=trust)


def make_config(
    content: Mapping[str, Any],
    overrides: Mapping[str, Any] | Iterable[str] = (),
    *,
    origin: Path | None = None,
    trust: bool = False,
) -> RunConfig:
    """The config from nested values and overrides: values by dotted keys, or text as on the command line.

    Args:
        content: nested values.
        overrides: what the user says; wins over `content`.
        origin: the file or folder that `content` comes from, if it may be a stranger's; see `propfair.runs.trust`.
        trust: the user agrees to what it asks for.
    """
    settings = overrides if isinstance(overrides, Mapping) else parse_overrides(overrides)
    merged = _plain(content)
    for key, value in sorted(settings.items(), key=lambda pair: pair[0].count(".")):
        _assign(merged, key, value)
    for section in ("data", "model", "algorithm", "engine"):
        _name_only(merged, section)
    if isinstance(merged.get("data"), dict):
        _name_only(merged["data"], "partition")
    if origin is not None:
        check_trust(merged, origin, said=settings, trust=trust)
    merged["algorithm"] = with_disagreement(merged.get("algorithm", {}))
    _check_keys(merged)
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(dict(item)) for item in error.errors())) from None


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Texts of the form key.path=value, read once; of two for one key the last wins."""
    return dict(parse_override(text) for text in texts)


def parse_override(text: str) -> tuple[str, Any]:
    """`key.path=value`; the value is read as TOML where it is TOML, and as text otherwise."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"an override has the form key=value, such as algorithm.M=5; got {shown(text)}")
    try:
        read = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError):  # the first also for a number of 5,000 digits, the second for as many brackets
        return key.strip(), value.strip()
    return key.strip(), read["value"] if len(read) == 1 else value.strip()


def _plain(value: Any) -> Any:
    """Nested values of our own to change; what is not of JSON, such as a path or a date, as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _assign(content: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    section: Any = content
    for name in path:
        _name_only(section, name)
        section = section.setdefault(name, {})
        if not isinstance(section, dict):
            raise ConfigError(f"{key} can't be set: {name} is {shown(section)}, not a section")
    section[last] = value


def _name_only(content: dict[str, Any], section: str) -> None:
    """`data = "cifar10"` is short for `data = {name = "cifar10"}`."""
    if isinstance(content.get(section), str):
        content[section] = {"name": content[section]}


_SECTIONS: dict[str, type] = {
    "local": LocalTraining, "server": Rounds, "schedule": Schedule, "early_stopping": Stopping,
}  # fmt: skip


def _check_keys(content: Mapping[str, Any]) -> None:
    for key, value in content.items():
        if key not in RunConfig.model_fields:
            raise _unknown_key(key, content, "config key", RunConfig.model_fields)
        kind = _SECTIONS.get(key)
        for name in value if kind is not None and isinstance(value, dict) else ():
            known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
            if name not in known:
                raise _unknown_key(name, content, f"config key in [{key}]:", known)


def _unknown_key(name: str, content: Mapping[str, Any], what: str, known: Iterable[str]) -> ConfigError:
    """A key in the wrong place is told its right one: that of another section, or of the algorithm asked for."""
    homes = [
        f"{section}.{name}"
        for section, kind in _SECTIONS.items()
        if name in {field.name for field in dataclasses.fields(kind)}
    ]
    homes += [f"data.{name}"] * (name in DataSection.model_fields) + [name] * (name in RunConfig.model_fields)
    section = content.get("algorithm")
    algorithm = (section.get("name") if isinstance(section, dict) else section) or DEFAULT_ALGORITHM
    if algorithm in ALGORITHMS.names() and name in {option.name for option in ALGORITHMS.options(algorithm)}:
        homes.append(f"algorithm.{name}")
    if homes:
        return ConfigError(f"unknown {what} {name!r}. Did you mean {' or '.join(map(repr, homes))}?")
    return unknown(what, name, known)


def _explain(error: Mapping[str, Any]) -> str:
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return str(cause)
    key = ".".join(str(part) for part in error["loc"])
    return f"{key}: {error['msg'].removeprefix('Value error, ')}; got {shown(error['input'])}"


def _make_logger(text: str) -> Logger:
    """From NAME or NAME:KEY=VALUE,..."""
    name, _, rest = text.partition(":")
    return LOGGERS.make(name, parse_overrides(pair for pair in rest.split(",") if pair))


def _spelled_out(config: RunConfig, parts: Parts) -> str:
    """The TOML text of a config with every option of every part."""
    written = config.model_dump(mode="json")
    written["data"] = {
        **_source(parts.source),
        "folder": written["data"]["folder"], "saved": written["data"]["saved"], "seed": config.data.seed,
        "num_clients": parts.num_clients, "partition": _named(parts.partitioner), "split": fields_of(parts.splitter),
    }  # fmt: skip
    own_model = isinstance(parts.model, ImportedModel)
    written["model"] = {"name": parts.model_name, **(config.model.options if own_model else fields_of(parts.model))}
    written["algorithm"] = _named(parts.algorithm)
    written["engine"] = _named(parts.engine)
    return write_toml(_plain(written))


def _source(source: Source) -> dict[str, Any]:
    return {"name": source.path, **source.options} if isinstance(source, ImportedData) else _named(source)


def _named(part: Any) -> dict[str, Any]:
    return {"name": part.name, **fields_of(part)}
