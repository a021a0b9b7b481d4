"""The config of a run: TOML plus dotted overrides, validated before anything is loaded."""

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from propfair.algorithms.base import ALGORITHMS, Algorithm
from propfair.core.aggregator import Rounds
from propfair.core.client import LocalTraining
from propfair.data.base import SOURCES, Source
from propfair.engines.session import ENGINES, Engine
from propfair.errors import ConfigError, unknown
from propfair.federation.partition import PARTITIONERS, Partitioner
from propfair.federation.split import Splitter
from propfair.models.base import ImportedModel, ModelSpec, make_model
from propfair.registry import fields_of, make_dataclass
from propfair.runs.loggers import LOGGERS, Logger
from propfair.runs.training import Schedule

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
    folder: Path | None = None
    num_clients: int | None = Field(default=None, ge=1)
    partition: Part = Part()
    split: dict[str, Any] = {}
    saved: Path | None = None  # a partition on file, instead of the two above
    seed: int = Field(default=0, ge=0)


class RunConfig(BaseModel):
    """Everything that decides a run. Sections: data, model, algorithm, local, server, engine, schedule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(default=0, ge=0)
    device: str = "cpu"
    init: Literal["common", "independent"] = "common"  # "independent": each client draws its own, as the authors do
    lean: bool = True  # leave out arithmetic on padding: equal, faster; see `propfair.rewrite`
    start: Path | None = None  # a run folder whose model is trained on
    data: DataSection = DataSection()
    model: Part = Part()
    algorithm: Part = Part()
    local: LocalTraining = LocalTraining()
    server: Rounds = Rounds()
    engine: Part = Part()
    schedule: Schedule = Schedule()
    log: tuple[str, ...] = ()  # "tensorboard", "mlflow:experiment=mine", "wandb": see `propfair.runs.loggers`

    @model_validator(mode="after")
    def _parts_can_be_made(self) -> Self:
        """Build every part once, so that a wrong name or option shows before any data is read."""
        self.to_toml()
        self.make_loggers()
        if self.init == "independent" and self.start is not None:
            raise ConfigError("init='independent' draws new models, and start continues from one: choose one of them")
        return self

    def make_algorithm(self) -> Algorithm:
        return ALGORITHMS.make(self.algorithm.name or DEFAULT_ALGORITHM, self.algorithm.options)

    def make_engine(self) -> Engine:
        return ENGINES.make(self.engine.name or DEFAULT_ENGINE, self.engine.options)

    def make_loggers(self) -> list[Logger]:
        """What the numbers of each round go to, beside the CSV file; options are written NAME:KEY=VALUE,..."""
        loggers = []
        for text in self.log:
            name, _, rest = text.partition(":")
            options = dict(parse_override(pair) for pair in rest.split(",") if pair)
            loggers.append(LOGGERS.make(name, options))
        return loggers

    def make_source(self) -> Source:
        """The data set; one that draws its examples takes the seed of the data section."""
        drawn = any(option.name == "seed" for option in SOURCES.options(self.data.name))
        return SOURCES.make(self.data.name, {**self.data.options, **({"seed": self.data.seed} if drawn else {})})

    def make_model(self) -> ModelSpec:
        """The model asked for, or that of the data set's protocol."""
        return make_model(self._model_name, self.model.options)

    @property
    def _model_name(self) -> str:
        return self.model.name or self.make_source().protocol.model

    def make_partitioner(self) -> Partitioner:
        """The partitioner asked for, or that of the data set's protocol with the given options changed."""
        part, (usual, options) = self.data.partition, self.make_source().protocol.partition
        if part.name in ("", usual):
            return PARTITIONERS.make(usual, {**options, **part.options})
        return PARTITIONERS.make(part.name, part.options)

    def make_splitter(self) -> Splitter:
        """The split of the data set's protocol, with the given fields changed."""
        return make_dataclass(Splitter, {**self.make_source().protocol.split, **self.data.split}, "data.split")

    @property
    def num_clients(self) -> int | None:
        """How many clients to make; None where the data says it."""
        if self.data.num_clients is not None:
            return self.data.num_clients
        usual = self.make_source().protocol
        return usual.num_clients if self.make_partitioner().name == usual.partition[0] else DEFAULT_CLIENTS

    def to_toml(self) -> str:
        """The config with everything spelled out; reading it gives the same run."""
        source, model, partitioner = self.make_source(), self.make_model(), self.make_partitioner()
        own_model = isinstance(model, ImportedModel)
        written = self.model_dump(mode="json")
        written["data"] = {
            "name": source.name, **fields_of(source),
            "folder": written["data"]["folder"], "saved": written["data"]["saved"], "seed": self.data.seed,
            "num_clients": self.num_clients, "partition": _spelled_out(partitioner),
            "split": fields_of(self.make_splitter()),
        }  # fmt: skip
        written["model"] = {"name": self._model_name, **(self.model.options if own_model else fields_of(model))}
        written["algorithm"] = _spelled_out(self.make_algorithm())
        written["engine"] = _spelled_out(self.make_engine())
        return _toml(_without_none(json.loads(json.dumps(written, default=str))))


def load_config(path: Path | None = None, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a TOML file (or start from the defaults) and apply overrides such as `algorithm.M=5` or `data=cifar10`."""
    return make_config(read_toml(path), overrides)


def read_toml(path: Path | None) -> dict[str, Any]:
    """The content of a TOML file; empty for None."""
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the config {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def make_config(content: Mapping[str, Any], overrides: Iterable[str] = ()) -> RunConfig:
    """The config from nested values and overrides."""
    merged = json.loads(json.dumps(content, default=str))
    for key, value in sorted((parse_override(text) for text in overrides), key=lambda pair: pair[0].count(".")):
        _assign(merged, key, value)
    for section in ("data", "model", "algorithm", "engine"):
        _name_only(merged, section)
    _name_only(merged.get("data", {}), "partition")
    _check_keys(merged)
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("; ".join(_explain(dict(item)) for item in error.errors())) from None


def parse_override(text: str) -> tuple[str, Any]:
    """`key.path=value`; the value is read as TOML where it is TOML, and as text otherwise."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"an override has the form key=value, such as algorithm.M=5; got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _assign(content: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    place = content
    for name in path:
        _name_only(place, name)
        place = place.setdefault(name, {})
        if not isinstance(place, dict):
            raise ConfigError(f"{key} can't be set: {name} is {place!r}, not a section")
    place[last] = value


def _name_only(content: dict[str, Any], section: str) -> None:
    """`data = "cifar10"` is short for `data = {name = "cifar10"}`."""
    if isinstance(content.get(section), str):
        content[section] = {"name": content[section]}


def _check_keys(content: Mapping[str, Any]) -> None:
    fixed: dict[str, type] = {"local": LocalTraining, "server": Rounds, "schedule": Schedule}
    for key, value in content.items():
        if key not in RunConfig.model_fields:
            owner = [s for s, kind in fixed.items() if key in {f.name for f in dataclasses.fields(kind)}]
            if owner:
                raise ConfigError(f"unknown config key {key!r}. Did you mean '{owner[0]}.{key}'?")
            raise unknown("config key", key, RunConfig.model_fields)
        kind = fixed.get(key)
        for name in value if kind is not None and isinstance(value, dict) else ():
            known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
            if name not in known:
                raise unknown(f"config key in [{key}]:", name, known)


def _explain(error: Mapping[str, Any]) -> str:
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return str(cause)
    place = ".".join(str(part) for part in error["loc"])
    return f"{place}: {error['msg'].removeprefix('Value error, ')}; got {error['input']!r}"


def _spelled_out(part: Any) -> dict[str, Any]:
    return {"name": part.name, **fields_of(part)}


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


def _toml(content: Mapping[str, Any], prefix: str = "") -> str:
    """TOML for nested tables of JSON values, which is all a config holds."""
    plain = {key: value for key, value in content.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in plain.items()]
    text = f"[{prefix}]\n" * bool(prefix and (plain or not tables)) + "".join(line + "\n" for line in lines)
    parts = [text] if text else []
    parts += [_toml(value, f"{prefix}.{key}" if prefix else key) for key, value in tables.items()]
    return "\n".join(parts)
