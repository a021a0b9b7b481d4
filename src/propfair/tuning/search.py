"""The experiment file of a sweep: which algorithms, which values, how to choose. Checked before anything runs.

name = "digits"
criterion = "worst10"            # or {mean = 0.5, worst10 = 0.5}, or "worst10 of f1"
seeds = [0, 1, 2]                # for the winners

[run]                            # as in the config of a run
data = {name = "digits"}
schedule = {rounds = 20}

[grid]                           # for every algorithm
local.lr = [0.05, 0.1, 0.2]

[algorithms.fedavg]

[algorithms.propfair]            # keys without a dot are hyper-parameters
M = [2.0, 3.0, 5.0]
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from propfair.errors import ConfigError, unknown
from propfair.federation.federation import Split
from propfair.runs.config import RunConfig, make_config, parse_overrides
from propfair.runs.contestant import Contestant
from propfair.runs.toml import flat, read_toml
from propfair.runs.trust import check_trust
from propfair.tuning.criteria import Criterion

Selection = Literal["validation", "paper"]
Value = bool | int | float | str
_VALIDATION = 0.1


class Range(BaseModel):
    """Values between two numbers, for the TPE sampler: `{low = 0.01, high = 1.0, log = true}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: float
    high: float
    log: bool = False


class Search(BaseModel):
    """How values are tried."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sampler: Literal["grid", "tpe"] = "grid"
    trials: int | None = Field(default=None, ge=1)  # for each algorithm, with TPE
    pruning: bool = False  # stop trials that are below the median of the others at the same round
    seed: int = Field(default=0, ge=0)  # of the runs that are compared
    rounds: int | None = Field(default=None, ge=1)  # of these runs; None: as many as the final ones
    extend: int = Field(default=0, ge=0)  # so many further learning rates beyond an end of the grid, while it is best


class SweepFile(BaseModel):
    """The file as it is written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    run: dict[str, Any] = {}
    grid: dict[str, Any] = {}
    algorithms: dict[str, dict[str, Any]]
    criterion: str | dict[str, float] = "mean"
    selection: Selection = "validation"
    seeds: list[int] = [0]
    search: Search = Search()


@dataclass(frozen=True, kw_only=True)
class Tunable(Contestant):
    """A contestant of a sweep, with what is tried of it; its settings are those that all its trials have.

    Attributes:
        choices: by setting, the values to try, or a range.
    """

    choices: Mapping[str, tuple[Value, ...] | Range]

    def chosen(self, written: str) -> Contestant:
        """The contestant with values that were chosen for it, as they are written for people."""
        own = [self.written] if self.written else []
        return Contestant(label=self.label, settings=self.settings, written=", ".join([*own, written]))

    def grid(self) -> list[dict[str, Value]]:
        """All combinations of the listed values, in order."""
        lists = [values for values in self.choices.values() if not isinstance(values, Range)]
        return [dict(zip(self.choices, values, strict=True)) for values in itertools.product(*lists)]


@dataclass(frozen=True)
class Sweep:
    """A checked sweep.

    Attributes:
        name: of the studies in the storage.
        run: the settings that all runs share.
        contestants: the algorithms.
        criterion: what the best are best at.
        selection: on the validation split; or "paper": on the test split, as the authors did.
        seeds: of the final runs.
        search: how values are tried.
    """

    name: str
    run: dict[str, Any]
    contestants: tuple[Tunable, ...]
    criterion: Criterion
    selection: Selection
    seeds: tuple[int, ...]
    search: Search

    @property
    def split(self) -> Split:
        """Where trials are compared."""
        return "validation" if self.selection == "validation" else "test"

    def num_trials(self, contestant: Tunable) -> int:
        """How many trials this algorithm gets: none where there is nothing to choose."""
        if self.search.sampler == "tpe":
            return self.search.trials or 0
        points = len(contestant.grid())
        return points if points > 1 else 0

    def trial_config(self, contestant: Tunable, point: Mapping[str, Any]) -> RunConfig:
        """The run of one trial; the test split is not looked at, unless trials are compared there."""
        looks = {"schedule.eval_splits": [self.split], "schedule.final_splits": [], "seed": self.search.seed}
        rounds = {} if self.search.rounds is None else {"schedule.rounds": self.search.rounds}
        return self._config(contestant, point, {**looks, **rounds})

    def final_config(self, contestant: Tunable, point: Mapping[str, Any], seed: int) -> RunConfig:
        """A run of the winner, which is measured on the test split once, at the end.

        What else [run] asks for in `schedule.final_splits` is measured then, too.
        """
        others = [split for split in self.run.get("schedule", {}).get("final_splits", ()) if split != "test"]
        looks = {"schedule.eval_splits": [self.split], "schedule.final_splits": ["test", *others], "seed": seed}
        return self._config(contestant, point, looks)

    def _config(self, contestant: Tunable, point: Mapping[str, Any], looks: Mapping[str, Any]) -> RunConfig:
        settings = {**contestant.settings, **point, **looks}
        return make_config(self.run, settings)

    def fingerprint(self, contestant: Tunable) -> str:
        """A hash of all that decides the trials of an algorithm, to tell a changed file from the same one."""
        shape = self.trial_config(contestant, self.example(contestant)).model_dump(mode="json")
        shape["data"].pop("folder", None)
        for key in ("engine", "device"):
            shape.pop(key)
        choices = {
            key: value.model_dump() if isinstance(value, Range) else value for key, value in contestant.choices.items()
        }
        search = self.search.model_dump(exclude=set() if self.search.extend else {"extend"})  # as before it was there
        criterion = {**self.criterion.weights, **({"of": self.criterion.metric} if self.criterion.metric else {})}
        said = [shape, choices, criterion, self.selection, search]
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def example(self, contestant: Tunable) -> dict[str, Value]:
        """One point of the search space."""
        return {key: value.low if isinstance(value, Range) else value[0] for key, value in contestant.choices.items()}


def load_sweep(
    path: Path,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    *,
    criterion: str | None = None,
    selection: Selection | None = None,
    seeds: tuple[int, ...] | None = None,
    trust: bool = False,
) -> Sweep:
    """Read an experiment file; the given options win over it, and `overrides` over its [run] section.

    What the file asks to be imported or connected is refused, unless the overrides say it too, or with `trust`.
    """
    content = read_toml(path)
    overrides = overrides if isinstance(overrides, Mapping) else parse_overrides(overrides)
    check_trust(content, path, said=overrides, trust=trust)
    for key in content:
        if key not in SweepFile.model_fields:
            raise unknown(f"key in {path}:", key, SweepFile.model_fields)
    try:
        written = SweepFile.model_validate({"name": path.stem, **content})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {key}: {first['msg']}; got {first['input']!r}") from None
    return make_sweep(
        written.model_copy(update={
            key: value
            for key, value in (("criterion", criterion), ("selection", selection), ("seeds", seeds))
            if value is not None
        }),
        overrides,
    )  # fmt: skip


def make_sweep(written: SweepFile, overrides: Mapping[str, Any] | Iterable[str] = ()) -> Sweep:
    """Check everything, down to the config of every point of the grid."""
    if not written.algorithms:
        raise ConfigError("the sweep has no algorithms: add a section such as [algorithms.propfair]")
    seeds = tuple(written.seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds must be different numbers, at least one; got seeds={list(seeds)}")
    sweep = Sweep(
        name=written.name or "sweep",
        run=with_validation(make_content(written.run, overrides), written.selection),
        contestants=tuple(_tunable(label, written.grid, own) for label, own in written.algorithms.items()),
        criterion=Criterion.parse(written.criterion),
        selection=written.selection,
        seeds=seeds,
        search=written.search,
    )
    for contestant in sweep.contestants:
        _check(sweep, contestant)
    return sweep


def make_content(run: Mapping[str, Any], overrides: Mapping[str, Any] | Iterable[str]) -> dict[str, Any]:
    """The [run] section with overrides applied, spelled out."""
    config = make_config({"engine": "inprocess", **run}, overrides)  # a worker is one process
    return {key: value for key, value in config.model_dump(mode="json").items() if value is not None}


def _tunable(label: str, shared: Mapping[str, Any], own: Mapping[str, Any]) -> Tunable:
    own = dict(own)
    name = own.pop("name", label)
    settings = _settings(shared) | {key if "." in key else f"algorithm.{key}": v for key, v in _settings(own).items()}
    fixed: dict[str, Any] = {"algorithm": name}
    choices: dict[str, tuple[Value, ...] | Range] = {}
    for key, value in settings.items():
        if isinstance(value, Range):
            choices[key] = value
        elif isinstance(value, list):
            if not value:
                raise ConfigError(f"algorithms.{label}: the list of values for {key} is empty")
            if any(value.count(one) > 1 for one in value):
                raise ConfigError(f"algorithms.{label}: the list of values for {key} has duplicates: {value}")
            choices[key] = tuple(value)
        else:
            fixed[key] = value
    return Tunable(label=label, settings=fixed, choices=choices)


def _check(sweep: Sweep, contestant: Tunable) -> None:
    ranges = [key for key, value in contestant.choices.items() if isinstance(value, Range)]
    if sweep.search.sampler == "grid":
        if ranges:
            raise ConfigError(
                f"algorithms.{contestant.label}: {ranges[0]} is a range, and a grid needs lists of values. "
                'Write a list, or set sampler = "tpe" in [search].'
            )
        points: list[dict[str, Value]] = contestant.grid()
    else:
        if sweep.search.trials is None:
            raise ConfigError('[search] needs trials = NUMBER with sampler = "tpe": how many for each algorithm')
        for key in ranges:
            span = contestant.choices[key]
            assert isinstance(span, Range)
            if not span.low < span.high or (span.log and span.low <= 0):
                raise ConfigError(
                    f"algorithms.{contestant.label}: {key} must have low < high, and low > 0 if log; got {span}"
                )
        points = [sweep.example(contestant)]
    for point in points:
        config = sweep.trial_config(contestant, point)
    if sweep.search.extend and sweep.search.sampler != "grid":
        raise ConfigError("[search] extend is for a grid: a range has no end to go beyond. Widen the range instead.")
    if sweep.search.pruning and config.schedule.eval_every >= config.schedule.rounds:
        raise ConfigError("pruning needs evaluations on the way: set run.schedule.eval_every below run.schedule.rounds")
    if sweep.selection == "validation" and not config.parts.splitter.validation > 0 and config.data.saved is None:
        raise ConfigError(
            "there is no validation split to choose on: set run.data.split.validation to a fraction, say 0.1; "
            "or repeat the authors' way, which chooses on the test split, with --selection paper"
        )


def with_validation(run: dict[str, Any], selection: Selection) -> dict[str, Any]:
    """Carve a validation part out of the training data, unless the file says how much, or none is needed."""
    split = run["data"]["split"]
    usual = {"validation": _VALIDATION} if selection == "validation" else {}
    return {**run, "data": {**run["data"], "split": {**usual, **split}}}


def _settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables as dotted keys; a table with `low` is a range."""
    keys = flat(table, whole=lambda value: "low" in value)
    for key, value in keys.items():
        if isinstance(value, Mapping):
            try:
                keys[key] = Range.model_validate(value)
            except ValidationError as error:
                raise ConfigError(f"{key}: a range is {{low, high, log}}; {error.errors()[0]['msg']}") from None
    return keys
