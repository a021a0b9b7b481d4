"""Runs on disk, for whatever looks at several of them: read, or finished first if they were cut off."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from propfair.core.evaluation import Evaluation
from propfair.errors import ConfigError, DataError
from propfair.fairness.arrays import FloatArray
from propfair.fairness.statistics import ClientStatistics, summarize
from propfair.federation.federation import Federation, Split
from propfair.runs.config import RunConfig, make_config
from propfair.runs.folder import RunFolder
from propfair.runs.names import short_name
from propfair.runs.records import last_evaluations
from propfair.runs.run import Watch, build_federation, resume, run


@dataclass(frozen=True)
class SavedRun:
    """What a run folder says about a run that has ended.

    Attributes:
        path: the folder.
        status, environment, clients: the JSON files of the folder.
        config: the resolved config as nested values; empty for a run that was started from Python.
        evaluations: the last ones, by split; of the clients' own models where the algorithm trains them.
    """

    path: Path
    status: dict[str, Any]
    environment: dict[str, Any]
    clients: dict[str, Any]
    config: dict[str, Any]
    evaluations: dict[Split, Evaluation]

    @classmethod
    def read(cls, path: Path) -> "SavedRun":
        """Read the folder of a run that finished, or was stopped after an evaluation."""
        folder = RunFolder.open(path)
        clients, records = folder.clients, folder.records()
        try:
            sizes = clients["sizes"]
            evaluations = last_evaluations(records, sizes) | last_evaluations(records, sizes, "personal_")
            config = tomllib.loads(folder.config_text)
        except (KeyError, IndexError, tomllib.TOMLDecodeError) as error:
            raise DataError(f"{path} is not a whole run folder: {error!r}") from None
        return cls(path, folder.status, folder.environment, clients, config, evaluations)

    @property
    def name(self) -> str:
        return str(self.status["name"])

    @property
    def seed(self) -> int:
        return int(self.environment["seed"])

    @property
    def fingerprint(self) -> str:
        """Of the data and of who holds what."""
        return str(self.clients["fingerprint"])

    @cached_property
    def label(self) -> str:
        """The algorithm with what is not its default; the name of a run that was started from Python."""
        if not self.config:
            return self.name
        label = short_name(make_config(self.config).make_algorithm())
        start = self.environment.get("start")
        return f"{label} from {start['label']}" if start else label

    @property
    def shares(self) -> FloatArray:
        """p_k = n_k / N from training sizes, [n]."""
        sizes = np.asarray(self.clients["sizes"]["train"], dtype=np.float64)
        shares: FloatArray = sizes / sizes.sum()
        return shares

    def evaluation(self, split: Split) -> Evaluation:
        """What the model does for each client."""
        if split not in self.evaluations:
            known = ", ".join(self.evaluations) or "nothing yet"
            raise DataError(f"{self.path} was not evaluated on {split!r}; it was evaluated on: {known}")
        return self.evaluations[split]

    def accuracy(self, split: Split = "test") -> FloatArray:
        """Accuracy of each client, [n]."""
        values: FloatArray = self.evaluation(split).accuracy.numpy()
        return values

    def summary(self, split: Split = "test") -> ClientStatistics:
        """Statistics of the accuracies over clients; weighted ones by data share."""
        return summarize(self.accuracy(split), self.shares)

    @property
    def identity(self) -> str:
        """The same for runs that differ in nothing but the seed."""
        if not self.config:
            return self.name
        kept = {key: value for key, value in self.config.items() if key not in ("seed", "device", "engine", "start")}
        kept["data"] = {key: value for key, value in kept.get("data", {}).items() if key != "folder"}
        kept["schedule"] = {key: v for key, v in kept.get("schedule", {}).items() if key != "checkpoint_every"}
        return json.dumps([kept, self.environment.get("start", {}).get("label")], sort_keys=True)


class Federations:
    """Loads the clients of each data section once."""

    def __init__(self) -> None:
        self._loaded: dict[str, Federation] = {}

    def of(self, config: RunConfig) -> Federation:
        key = config.data.model_dump_json()
        if key not in self._loaded:
            self._loaded[key] = build_federation(config)
        return self._loaded[key]


def finished(folder: Path) -> bool:
    """There is a run in this folder, and it came to its end: reached its last round, or failed."""
    return (folder / "status.json").exists() and RunFolder.open(folder).status["state"] in ("finished", "failed")


def ensure_run(
    config: RunConfig, out: Path, *, name: str, federation: Callable[[], Federation], watch: Watch = lambda _: None
) -> SavedRun:
    """The run of this config in this folder: read if it has ended, resumed if it was cut off, else run.

    Raises KeyboardInterrupt when it was stopped on the way, so that nothing else is started.
    """
    if (out / "status.json").exists():
        folder = RunFolder.open(out)
        if folder.config_text != config.to_toml():
            raise ConfigError(f"{out} holds a run with other settings. Choose another --out, or delete it.")
        if not finished(out) and resume(out, federation=federation(), watch=watch).state == "interrupted":
            raise KeyboardInterrupt
    elif run(config, out, name=name, federation=federation(), watch=watch).state == "interrupted":
        raise KeyboardInterrupt
    return SavedRun.read(out)
