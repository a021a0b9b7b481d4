"""One run folder, read: what the pages and figures show of it, and no more."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel, ValidationError

from propfair.errors import DataError
from propfair.fairness.arrays import FloatArray
from propfair.federation.federation import SPLITS
from propfair.runs.folder import RunFolder
from propfair.runs.records import count_dropped

_MAX_COLUMNS = 150  # of a heat map: more than a screen can tell apart
_MIN_COLUMNS = 4


class Clients(BaseModel):
    """clients.json."""

    fingerprint: str
    note: str = ""
    names: list[str]
    num_classes: int | None = None
    sizes: dict[str, list[int]]
    train_labels: list[list[int]] | None = None


class Status(BaseModel):
    """status.json."""

    name: str
    state: str
    rounds: int
    reason: str = ""
    seconds: float = 0.0


class Environment(BaseModel):
    """The part of environment.json that helps to repeat a run."""

    propfair: str = ""
    python: str = ""
    platform: str = ""
    packages: dict[str, str] = {}
    git_commit: str | None = None
    seed: int
    engine: str = ""
    command: list[str] = []
    started: str = ""


@dataclass(frozen=True)
class Series:
    """Values of every client over some rounds; NaN where a client has none.

    Attributes:
        rounds: [T].
        values: [T, n].
        thinned: some rounds were left out or averaged to keep the page small.
    """

    rounds: npt.NDArray[np.int64]
    values: FloatArray
    thinned: bool = False

    @property
    def last(self) -> FloatArray:
        """[n], of the last round."""
        final: FloatArray = self.values[-1]
        return final

    def picked(self, columns: int) -> "Series":
        """At most so many of the rounds, evenly spaced; the last one stays."""
        if len(self.rounds) <= columns:
            return self
        keep = np.unique(np.linspace(0, len(self.rounds) - 1, columns).round().astype(int))
        return Series(self.rounds[keep], self.values[keep], thinned=True)

    def averaged(self, columns: int) -> "Series":
        """Means over blocks of rounds, at most so many of them; each is known by its first round."""
        if len(self.rounds) <= columns:
            return self
        starts = np.unique(np.linspace(0, len(self.rounds), columns, endpoint=False).astype(int))
        counts = np.add.reduceat(~np.isnan(self.values), starts, axis=0)
        totals = np.add.reduceat(np.nan_to_num(self.values), starts, axis=0)
        means = np.divide(totals, counts, out=np.full_like(totals, np.nan), where=counts > 0)
        return Series(self.rounds[starts], means, thinned=True)


@dataclass(frozen=True)
class RunData:
    """A run as reports see it.

    Attributes:
        path: the folder, as it was given.
        status, environment, clients: the JSON files.
        config_text, config: the resolved config; empty for runs started from Python.
        measured: "test/accuracy" and so on, what the model of a round does for each client. For algorithms that train a
            model for each client, that model is the one measured.
        personal: the measured models are the clients' own.
        rounds: "weight" and so on, what a round did to each client; thinned.
        num_dropped: how often a client was left out of a round because it diverged.
    """

    path: Path
    status: Status
    environment: Environment
    clients: Clients
    config_text: str
    config: dict[str, Any]
    measured: dict[str, Series]
    personal: bool
    rounds: dict[str, Series]
    num_dropped: int

    @property
    def name(self) -> str:
        """Of the run."""
        return self.status.name

    @property
    def seed(self) -> int:
        """Of the training."""
        return self.environment.seed

    @property
    def total_rounds(self) -> int | None:
        """Rounds asked for, if the config says so."""
        total = self.config.get("schedule", {}).get("rounds")
        return total if isinstance(total, int) else None

    @property
    def label(self) -> str:
        """The name without the seed: what runs over several seeds have in common."""
        return re.sub(rf"[\s,_-]*seed[\s=_-]?{self.seed}(-\d+)?$", "", self.name) or self.name


def read_run(path: Path, max_values: int = 2_000_000) -> RunData:
    """Read a run folder, also one whose run goes on.

    Args:
        path: the folder.
        max_values: about so many client values of what rounds did; more rounds are averaged in blocks.
    """
    folder = RunFolder.open(path)
    try:
        status = Status.model_validate(folder.status)
        environment = Environment.model_validate(folder.environment)
        clients = Clients.model_validate(folder.clients)
        config_text = folder.config_text
        config = tomllib.loads(config_text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{path}: {error.title.lower()}.json: {place}: {first['msg']}") from None
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path / 'config.toml'} is not valid TOML: {error}") from None
    _check_clients(path, clients)
    records = folder.records()
    series = _series(path, records, len(clients.names))
    kinds = 1 + sum(split == "round" for split, _ in series)  # reports derive one more
    columns = int(np.clip(max_values // (kinds * len(clients.names)), _MIN_COLUMNS, _MAX_COLUMNS))
    measured, personal = _measured(series)
    series.pop(("round", "dropped"), None)
    return RunData(
        path=path,
        status=status,
        environment=environment,
        clients=clients,
        config_text=config_text,
        config=config,
        measured=measured,
        personal=personal,
        rounds={metric: table.averaged(columns) for (split, metric), table in series.items() if split == "round"},
        num_dropped=count_dropped(records),
    )


def _check_clients(path: Path, clients: Clients) -> None:
    n = len(clients.names)
    lengths = {f"sizes.{split}": len(sizes) for split, sizes in clients.sizes.items()}
    if clients.train_labels is not None:
        lengths["train_labels"] = len(clients.train_labels)
        if any(len(row) != clients.num_classes for row in clients.train_labels):
            raise DataError(f"{path / 'clients.json'}: train_labels must have {clients.num_classes} counts per client")
    wrong = [name for name, length in lengths.items() if length != n]
    if not n or wrong or "train" not in clients.sizes:
        what = f"{wrong[0]} has {lengths[wrong[0]]} entries for {n} clients" if wrong else "no clients or no sizes"
        raise DataError(f"{path / 'clients.json'}: {what}")


def _measured(series: Mapping[tuple[str, str], Series]) -> tuple[dict[str, Series], bool]:
    """The evaluations; those of personal models take the place of the global model's, as in `Result.evaluation`."""
    measured = {}
    for split in (*reversed(SPLITS),):
        for metric in ("accuracy", "loss"):
            found = series.get((split, f"personal_{metric}")) or series.get((split, metric))
            if found is not None:
                measured[f"{split}/{metric}"] = found
    return measured, any(metric.startswith("personal_") for _, metric in series)


def _series(path: Path, records: pa.Table, num_clients: int) -> dict[tuple[str, str], Series]:
    """The long table as one [rounds, clients] table for each split and metric."""
    client = records["client"].to_numpy()
    number = records["round"].to_numpy()
    value = records["value"].to_numpy()
    if len(client) and not (client.min() >= 0 and client.max() < num_clients):
        raise DataError(f"{path}: the records speak of client {client.max()}, but there are {num_clients} clients")
    split_codes, splits = _codes(records["split"])
    metric_codes, metrics = _codes(records["metric"])
    pair = split_codes * max(1, len(metrics)) + metric_codes
    series = {}
    for code in np.unique(pair):
        rows = pair == code
        rounds, place = np.unique(number[rows], return_inverse=True)
        values = np.full((len(rounds), num_clients), np.nan)
        values[place, client[rows]] = value[rows]
        series[splits[code // len(metrics)], metrics[code % len(metrics)]] = Series(rounds.astype(np.int64), values)
    return series


def _codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[str]]:
    """A text column as numbers and what they stand for."""
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):
        joined = joined.chunk(0) if joined.num_chunks else pa.DictionaryArray.from_arrays([], pa.array([], pa.string()))
    return np.asarray(joined.indices, dtype=np.int64), joined.dictionary.to_pylist()
