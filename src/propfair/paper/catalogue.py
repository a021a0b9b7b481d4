"""The tables and figures of the paper, and the experiments behind them, as files that come with the package."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from propfair.errors import ConfigError, unknown
from propfair.tuning.search import Search, Sweep, SweepFile, make_sweep

Scale = Literal["smoke", "small", "paper"]
MeanAndStd = tuple[float, float]
_Size = TypeVar("_Size")
_AS_PUBLISHED = "the paper's protocol, but a tenth of the data is for validation and all clients start from one model"


class _Written(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str


class Statistics(_Written):
    """A table of statistics over clients, in percent."""

    kind: Literal["statistics"]
    experiment: str
    columns: list[str]
    paper: dict[str, dict[str, MeanAndStd]]


class Sizes(_Written):
    """A table of data sets."""

    kind: Literal["sizes"]
    experiments: list[str]
    paper: dict[str, dict[str, int]]


class Chosen(_Written):
    """A table of the best values: `parameters` names the setting of each algorithm."""

    kind: Literal["chosen"]
    experiments: list[str]
    parameters: dict[str, str]
    paper: dict[str, dict[str, float]]


class Relative(_Written):
    """Relative changes of the clients of one model under others; `paper` has the means in percent."""

    kind: Literal["relative"]
    experiment: str
    reference: str
    paper: dict[str, float]


class Finetune(_Written):
    """Relative changes by training on: from `start` with the others, or from the others with `end`."""

    kind: Literal["finetune"]
    experiment: str
    start: str | None = None
    end: str | None = None
    paper: dict[str, float]

    @property
    def algorithms(self) -> list[str]:
        """All that must be trained."""
        return [*self.paper, self.start or self.end or ""]


class Scatter(_Written):
    """The mean against the worst 10 % of clients, from tables of statistics."""

    kind: Literal["scatter"]
    parts: list[str]
    algorithms: list[str]


class Together(_Written):
    """Several presets at once."""

    kind: Literal["together"]
    parts: list[str]


class Example(_Written):
    """A picture that needs no training."""

    kind: Literal["example"]
    example: Literal["nash", "afl-failure"]


class RankedData(BaseModel):
    """One data set of a ranking: the settings that all contestants share, and what to know about it.

    Where runs are dear it has fewer seeds than the others, and trials of fewer rounds than the final runs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    note: str
    run: dict[str, Any]
    seeds: list[int] = []  # none: those of the scale
    trial_rounds: int | None = None  # None: as many as the final runs


class RankedScale(BaseModel):
    """How large a ranking is: trials of each contestant, seeds of the final runs, data sets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trials: int
    seeds: list[int]
    data: dict[str, RankedData]


class Ranking(_Written):
    """Contestants on several data sets at equal budgets of tuning, ranked, and held against the `reference`."""

    kind: Literal["ranking"]
    reference: str
    criterion: str
    contestants: list[str]
    scale: dict[str, RankedScale]

    def at(self, scale: Scale) -> RankedScale:
        """What is run at this scale."""
        return _of_scale(self.scale, scale, self.title)


class NaturalScale(BaseModel):
    """How large a study of natural clients is: seeds and data sets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seeds: list[int]
    data: dict[str, RankedData]


class Natural(_Written):
    """Contestants on natural clients under several conditions, held against the `reference` in each."""

    kind: Literal["natural"]
    reference: str
    contestants: list[str]
    conditions: dict[str, dict[str, Any]]
    scale: dict[str, NaturalScale]

    def at(self, scale: Scale) -> NaturalScale:
        """What is run at this scale."""
        return _of_scale(self.scale, scale, self.title)


class _Claimed(BaseModel):
    """A claim of the paper, in a sentence, and where it is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    where: str


class BestClaim(_Claimed):
    """An algorithm is ahead of all others of some tables by a statistic."""

    kind: Literal["best"]
    tables: list[str]
    algorithm: str
    statistic: str


class OrderClaim(_Claimed):
    """The algorithms of some tables are in the paper's order by a statistic."""

    kind: Literal["order"]
    tables: list[str]
    statistic: str


class RelativeClaim(_Claimed):
    """The relative changes of a figure are negative."""

    kind: Literal["relative"]
    figure: str


class FinetunedClaim(_Claimed):
    """Training on as in a figure makes models better for their clients on average, or does not."""

    kind: Literal["finetuned"]
    figure: str
    better: bool


class GapClaim(_Claimed):
    """By a statistic, an algorithm loses more from the training to the test split than a rival."""

    kind: Literal["gap"]
    tables: list[str]
    algorithm: str
    rival: str
    statistic: str


class DivergesClaim(_Claimed):
    """Runs of a rule with these settings diverge."""

    kind: Literal["diverges"]
    tables: list[str]
    name: str
    settings: dict[str, float]


Claim = Annotated[
    BestClaim | OrderClaim | RelativeClaim | FinetunedClaim | GapClaim | DivergesClaim, Field(discriminator="kind")
]


class Claims(_Written):
    """The claims of the paper, judged on records of runs."""

    kind: Literal["claims"]
    claims: list[Claim]


Preset = Statistics | Sizes | Chosen | Relative | Finetune | Scatter | Together | Example | Ranking | Natural | Claims
_PRESET: TypeAdapter[Preset] = TypeAdapter(Annotated[Preset, Field(discriminator="kind")])


class ScaleFile(BaseModel):
    """What a smaller scale changes in an experiment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    note: str
    run: dict[str, Any] = {}
    grid: dict[str, Any] = {}
    algorithms: dict[str, dict[str, Any]] = {}
    seeds: list[int] | None = None
    search: Search = Search()
    finetune_rounds: int


class Experiment(BaseModel):
    """All runs of the paper on one data set: at paper scale as it is, at the others with changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    seeds: list[int]
    criterion: str
    finetune_rounds: int
    run: dict[str, Any]
    grid: dict[str, Any]
    algorithms: dict[str, dict[str, Any]]
    published: dict[str, dict[str, Any]]
    scale: dict[str, ScaleFile]

    def note(self, scale: Scale) -> str:
        """What differs from the paper at this scale."""
        return _AS_PUBLISHED if scale == "paper" else self.scale[scale].note

    def rounds_to_finetune(self, scale: Scale) -> int:
        return self.finetune_rounds if scale == "paper" else self.scale[scale].finetune_rounds

    def sweep(
        self,
        name: str,
        scale: Scale,
        *,
        published: bool = False,
        only: Sequence[str] = (),
        seeds: Sequence[int] = (),
        overrides: Mapping[str, Any] | Iterable[str] = (),
    ) -> Sweep:
        """The runs as a sweep.

        Args:
            name: of the studies.
            scale: how large.
            published: take the best values of the paper instead of searching them.
            only: these algorithms; none: all.
            seeds: instead of the usual ones.
            overrides: settings that win over all others.
        """
        change = None if scale == "paper" else self.scale[scale]
        run, grid, algorithms, search = self.run, self.grid, self.algorithms, Search()
        if change is not None:
            run, search = _merged(run, change.run), change.search
            grid = change.grid or grid
            algorithms = {label: {**own, **change.algorithms.get(label, {})} for label, own in algorithms.items()}
        if published:
            grid, search = {}, Search()
            algorithms = {label: {**own, **self.published[label]} for label, own in algorithms.items()}
        for label in only:
            if label not in algorithms:
                raise unknown("algorithm of this experiment:", label, algorithms)
        return make_sweep(
            SweepFile(
                name=f"{name}{' published' if published else ''}",
                run=run,
                grid=grid,
                algorithms={label: own for label, own in algorithms.items() if not only or label in only},
                criterion=self.criterion,
                seeds=list(seeds) or (change.seeds if change and change.seeds else self.seeds),
                search=search,
            ),
            overrides,
        )


def preset_names() -> list[str]:
    """All tables and figures."""
    return sorted(file.name.removesuffix(".toml") for file in _home().iterdir() if file.name.endswith(".toml"))


def load_preset(name: str) -> Preset:
    """A table or figure."""
    if name not in preset_names():
        raise unknown("table or figure", name, preset_names())
    return _PRESET.validate_python(_read(f"{name}.toml"))


def load_experiment(name: str) -> Experiment:
    """The experiments on one data set."""
    known = [file.name.removesuffix(".toml") for file in (_home() / "experiments").iterdir()]
    if name not in known:
        raise unknown("experiment", name, known)
    return Experiment.model_validate(_read(f"experiments/{name}.toml"))


def check_experiments(chosen: Sequence[str], named: Sequence[str]) -> list[str]:
    """Those of the experiments of a preset that were asked for; all if none was."""
    for name in chosen:
        if name not in named:
            raise ConfigError(f"this table or figure has no experiment {name!r}; it has: {', '.join(named)}")
    return [name for name in named if not chosen or name in chosen]


def _of_scale(sizes: Mapping[str, _Size], scale: Scale, title: str) -> _Size:
    if scale not in sizes:
        raise ConfigError(f"{title} has no scale {scale!r}; it has: {', '.join(sizes)}")
    return sizes[scale]


def _home() -> Any:
    return resources.files("propfair.paper.presets")


def _read(path: str) -> dict[str, Any]:
    return tomllib.loads((_home() / path).read_text(encoding="utf-8"))


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables joined; of two values the second wins."""
    joined = dict(base)
    for key, value in change.items():
        old = joined.get(key)
        joined[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return joined
