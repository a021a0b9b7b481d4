"""The one type for a run: in memory or on disk, finished or still going on."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from pydantic import AfterValidator, BaseModel, ConfigDict

from propfair.core.evaluation import Evaluation
from propfair.errors import DataError, printable, unknown
from propfair.fairness.arrays import FloatArray
from propfair.fairness.statistics import ClientStatistics
from propfair.federation.federation import SPLITS, Split
from propfair.runs import answers
from propfair.runs.columns import is_text, numbers, repeated
from propfair.runs.measures import ACCURACY, Measure, Series, Values, ordered, summarize_clients
from propfair.runs.names import algorithm_label
from propfair.runs.toml import check_settings

EndState = Literal["finished", "interrupted", "failed"]
RunState = Literal["running", "finished", "interrupted", "failed"]
PERSONAL = "personal_"  # before the metric's name: of the clients' own models


Printable = Annotated[str, AfterValidator(printable)]


class _File(BaseModel):
    """A JSON file of a run folder. Keys of other versions are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def lost_records(rounds: str) -> str:
    """What is said of rounds whose records are lost; empty for none."""
    return f"the records of {rounds} were damaged and are left out" if rounds else ""


class Status(_File):
    """status.json: how far the run is, and how it ended."""

    name: Printable
    state: RunState
    rounds: int
    reason: Printable = ""
    seconds: float = 0.0
    lost: Printable = ""  # the rounds whose records were damaged, in words; empty: none

    @property
    def caution(self) -> str:
        """What whoever reads the numbers must know; empty: nothing."""
        return lost_records(self.lost)


class Start(_File):
    """The run whose model was trained on, as environment.json tells it."""

    run: Printable
    label: Printable
    rounds: int
    fingerprint: str = ""
    same_clients: bool = True


class Environment(_File):
    """environment.json: what may explain a difference between two runs of one config, and what a resume needs."""

    propfair: str = ""
    python: str = ""
    platform: str = ""
    packages: dict[str, str] = {}
    git_commit: str | None = None
    seed: int
    engine: str = ""
    engine_choice: str = ""  # what `auto` chose
    notes: tuple[Printable, ...] = ()  # how the engine ran the clients, where it chose
    threads: int = 1
    algorithm: Printable = ""  # with all its hyper-parameters; empty in folders of 0.1.0
    task: str = "single-label"
    metrics: dict[Printable, bool] = {}  # beside the loss, by name: whether more is better
    command: tuple[str, ...] = ()
    started: str = ""
    start: Start | None = None
    # Of a run from Python, which has no config; see `propfair.runs.python`.
    settings: Annotated[dict[str, Any], AfterValidator(check_settings)] = {}


class Clients(_File):
    """clients.json: who took part."""

    fingerprint: str
    note: Printable = ""
    names: tuple[Printable, ...]
    num_classes: int | None = None
    sizes: dict[str, tuple[int, ...]]  # by split, how many examples each client has
    train_labels: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """What is known of a run. Everything that shows, compares or judges runs looks at this.

    Attributes:
        folder: where it is written; None: nowhere.
        config_text: the resolved config, TOML; empty for a run that was started from Python.
        status, environment, clients: see there.
        records: run, round, client, split, metric, value (Arrow).
        diagnostics: of whole rounds: run, round, metric, value (Arrow).
    """

    folder: Path | None
    config_text: str
    status: Status
    environment: Environment
    clients: Clients
    records: pa.Table
    diagnostics: pa.Table

    @property
    def name(self) -> str:
        return self.status.name

    @property
    def seed(self) -> int:
        """Of the training."""
        return self.environment.seed

    @property
    def where(self) -> str:
        """The folder, or the name of a run without one, for messages."""
        return printable(str(self.folder)) if self.folder is not None else f"run {self.name!r}"

    @property
    def fingerprint(self) -> str:
        """Of the data and of who holds what."""
        return self.clients.fingerprint

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The resolved config as nested values; empty for a run that was started from Python."""
        return tomllib.loads(self.config_text)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """What was asked for, as nested values: the config, or what is kept of the arguments of a run from Python."""
        return self.config or {key: said for key, said in self.environment.settings.items() if key != "name"}

    @property
    def plain_name(self) -> str:
        """The name without the seed: what runs over several seeds have in common."""
        return re.sub(rf"[\s,_-]*seed[\s=_-]?{self.seed}(-\d+)?$", "", self.name) or self.name

    @cached_property
    def label(self) -> str:
        """The algorithm with what is not its default, and what it started from; the same for all seeds.

        A run that was started from Python is called by its name without the seed.
        """
        if not self.config:
            return self.plain_name
        label = printable(algorithm_label(self.config.get("algorithm", {})))
        return f"{label} from {self.environment.start.label}" if self.environment.start else label

    @property
    def algorithm(self) -> str:
        """With all its hyper-parameters, where the version that made the run wrote them down; else the label."""
        return self.environment.algorithm or self.label

    @property
    def data_name(self) -> str:
        """Of the data set."""
        section = self.config.get("data")
        name = section.get("name") if isinstance(section, dict) else None
        return str(name) if name else "own data"

    @property
    def total_rounds(self) -> int | None:
        """Rounds asked for, if the config says so."""
        total = self.config.get("schedule", {}).get("rounds")
        return total if isinstance(total, int) else None

    @cached_property
    def shares(self) -> FloatArray:
        """p_k = n_k / N from training sizes, [n]."""
        sizes = np.asarray(self.clients.sizes["train"], dtype=np.float64)
        shares: FloatArray = sizes / sizes.sum()
        return shares

    @cached_property
    def num_dropped(self) -> int:
        """How often a client was left out of a round because it diverged."""
        dropped = self.recorded("round", "dropped")
        if dropped is not None:
            return int(np.isfinite(dropped.value).sum())
        return int(np.nansum(self.diagnostic("num_dropped")[1]))  # where the records of clients were not kept

    # The records, as tables.

    def diagnostic(self, metric: str) -> tuple[FloatArray, FloatArray]:
        """The rounds that have this number of the whole round, and the number in each."""
        rows = is_text(self.diagnostics["metric"], metric)
        return numbers(self.diagnostics["round"])[rows], numbers(self.diagnostics["value"])[rows]

    def series(self, split: str, metric: str) -> Series | None:
        """One metric as [rounds, clients]; None if it was never recorded. Made when it is first asked for."""
        if (split, metric) not in self._made:
            found = self.recorded(split, metric)
            self._made[split, metric] = None if found is None else found.whole()
        return self._made[split, metric]

    def recorded(self, split: str, metric: str) -> Values | None:
        """The same, without a place for what there is not."""
        if (split, metric) not in self._values:
            self._values[split, metric] = self._make(split, metric)
        return self._values[split, metric]

    @cached_property
    def round_metrics(self) -> tuple[str, ...]:
        """What was recorded of the clients of each round: "weight" and so on."""
        return tuple(metric for split, metric in self._recorded if split == "round")

    @cached_property
    def personal(self) -> bool:
        """The measured models are the clients' own."""
        return any(metric.startswith(PERSONAL) for _, metric in self._recorded)

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """What was measured of the models, the most telling first: accuracies before losses, test first of all."""
        return tuple(
            Measure(split, metric, self.environment.metrics.get(metric))
            for metric in ordered(self._metric_names)
            for split in reversed(SPLITS)
            if {(split, metric), (split, f"{PERSONAL}{metric}")} & self._recorded.keys()
        )

    def leading(self, split: Split = "test") -> Measure:
        """The most telling measure of a split: accuracy where the task has it."""
        return next((measure for measure in self.measures if measure.split == split), Measure(split))

    def measured(self, measure: Measure) -> Series | None:
        """What the models that clients are served by do for them, over the rounds.

        Where the algorithm trains a model for each client, that is the client's own; else the global one.
        """
        own = self.series(measure.split, f"{PERSONAL}{measure.metric}")
        return own if own is not None else self.series(measure.split, measure.metric)

    def served(self, measure: Measure) -> Values | None:
        """The same, as it is recorded."""
        own = self.recorded(measure.split, f"{PERSONAL}{measure.metric}")
        return own if own is not None else self.recorded(measure.split, measure.metric)

    # The end.

    def global_evaluations(self) -> dict[Split, Evaluation]:
        """The newest evaluation of the global model on each split."""
        return self._evaluations("")

    def personal_evaluations(self) -> dict[Split, Evaluation]:
        """The newest evaluation of the clients' own models on each split; empty unless the algorithm trains them."""
        return self._evaluations(PERSONAL)

    def evaluation(self, split: Split = "test") -> Evaluation:
        """What the last evaluated model does for each client; personal models where the algorithm trains them."""
        found = self._served
        if split not in found:
            known = ", ".join(found) or "nothing yet"
            reason = f": {self.status.reason}" if self.status.reason else ""
            raise DataError(
                f"{self.where} was not evaluated on {split!r}; it was evaluated on: {known}. "
                f"The run is {self.status.state}{reason}"
            )
        return found[split]

    def values(self, measure: Measure = ACCURACY) -> FloatArray:
        """The last value of each client, [n]; NaN for clients without examples in the split."""
        wanted: Split = next((split for split in SPLITS if split == measure.split), "test")
        found = self.evaluation(wanted)
        if measure.metric == "accuracy":
            return found.accuracy.numpy()
        known = found.values()
        if measure.metric not in known:
            raise unknown(f"metric of {self.where}:", measure.metric, known)
        return known[measure.metric].numpy()

    def answers(self, split: Split = "test") -> npt.NDArray[np.bool_] | None:
        """[N], which examples the last evaluated models get right, those of the first client first; None: not kept."""
        served = self.served(Measure(split))
        words: list[Values] = []
        while (word := self.recorded(answers.SPLIT, f"{split}/{len(words)}")) is not None:
            words.append(word)
        if served is None or any(one.rounds[-1] != served.rounds[-1] for one in words):
            return None  # of an earlier model: the run was given more rounds
        return answers.unpack([one.last().last for one in words], np.asarray(self.clients.sizes[split]))

    def summary(self, measure: Measure | None = None) -> ClientStatistics:
        """Statistics over clients of their last values; weighted ones by data share. None: of the leading measure."""
        chosen = measure or self.leading()
        key = (chosen, chosen.higher_is_better)
        if key not in self._summaries:  # tables, words and pictures ask for the same again and again
            self._summaries[key] = summarize_clients(self.values(chosen), self.shares, chosen)
        return self._summaries[key]

    @cached_property
    def _summaries(self) -> dict[tuple[Measure, bool], ClientStatistics]:
        return {}

    @cached_property
    def _served(self) -> dict[Split, Evaluation]:
        return self.global_evaluations() | self.personal_evaluations()

    def _evaluations(self, prefix: str) -> dict[Split, Evaluation]:
        found: dict[Split, Evaluation] = {}
        for split in SPLITS:
            named = {name: self.recorded(split, f"{prefix}{name}") for name in self._metric_names}
            known = {name: values.last() for name, values in named.items() if values is not None}
            if not known:
                continue
            last = max(int(series.rounds[-1]) for series in known.values())
            values = {name: torch.from_numpy(series.at(last)) for name, series in known.items()}
            nothing = torch.full((len(self.clients.names),), torch.nan, dtype=torch.float64)
            loss, accuracy = values.pop("loss", nothing), values.pop("accuracy", nothing)
            found[split] = Evaluation(loss, accuracy, torch.tensor(self.clients.sizes[split]), values)
        return found

    @cached_property
    def _metric_names(self) -> tuple[str, ...]:
        """What was measured of models, of either kind."""
        return tuple({name.removeprefix(PERSONAL): None for split, name in self._recorded if split in SPLITS})

    @cached_property
    def _made(self) -> dict[tuple[str, str], Series | None]:
        return {}

    @cached_property
    def _values(self) -> dict[tuple[str, str], Values | None]:
        return {}

    @cached_property
    def _codes(self) -> tuple[npt.NDArray[np.int64], list[str], list[str]]:
        """A number for the split and metric of every row, and what the numbers stand for."""
        (split_codes, splits), (metric_codes, metrics) = (_numbered(self.records[name]) for name in ("split", "metric"))
        return split_codes * max(1, len(metrics)) + metric_codes, splits, metrics

    @cached_property
    def _recorded(self) -> dict[tuple[str, str], int]:
        codes, splits, metrics = self._codes
        return {
            (splits[code // len(metrics)], metrics[code % len(metrics)]): code for code in np.unique(codes).tolist()
        }

    def _make(self, split: str, metric: str) -> Values | None:
        code = self._recorded.get((split, metric))
        if code is None:
            return None
        rows = np.flatnonzero(self._codes[0] == code)
        number, client, value = (numbers(self.records[name])[rows] for name in ("round", "client", "value"))
        return Values.of(number, client, value, len(self.clients.names))


def _numbered(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[str]]:
    """A text column as numbers and what they stand for."""
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        joined = joined.chunk(0) if joined.num_chunks else repeated([])
    return numbers(joined.indices).astype(np.int64), joined.dictionary.to_pylist()
