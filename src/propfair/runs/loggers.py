"""Numbers of each round for the tools that people watch runs with; a CSV file in every run folder.

A `Logger` is a part with options, chosen in the config: `log = ["tensorboard"]`. Opened for a run, it gives a `Sink`.
"""

import csv
import io
import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from propfair.core.evaluation import Evaluation
from propfair.errors import DataError, MissingExtraError, PropFairWarning
from propfair.fairness.arrays import FloatArray
from propfair.federation.federation import Split
from propfair.files import read_text, write_text
from propfair.registry import Registry
from propfair.runs.measures import Measure, summarize_clients

_STATISTICS = ("mean", "std", "worst", "worst10", "best10", "jain", "gini")


@dataclass(frozen=True)
class About:
    """The run that is logged.

    Attributes:
        name: of the run.
        folder: of the run.
        settings: dotted keys and values of the config.
    """

    name: str
    folder: Path
    settings: Mapping[str, Any]


class Sink(ABC):
    """Takes the values of one run."""

    def begin(self, done: int) -> None:  # noqa: B027 (most need nothing)
        """Called once, before the first value: rounds up to `done` were logged before, later ones come again."""

    @abstractmethod
    def log(self, round_: int, values: Mapping[str, float]) -> None:
        """The values of a round, by names such as test/accuracy/mean."""

    def end(self, state: str) -> None:  # noqa: B027 (most need nothing)
        """The run is finished, interrupted or failed."""


class Logger(ABC):
    """A named tool: a frozen dataclass whose fields are its options. Subclasses register themselves."""

    name: ClassVar[str]

    @abstractmethod
    def open(self, about: About) -> Sink:
        """Get ready for a run; an extra that is missing is an error here, before anything is trained."""


LOGGERS: Registry[Logger] = Registry("logger", "propfair.runs.loggers", "propfair.loggers")


@LOGGERS.register("tensorboard")
@dataclass(frozen=True, kw_only=True)
class TensorBoard(Logger):
    """Event files in the run folder, for `tensorboard --logdir runs`."""

    def open(self, about: About) -> Sink:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("log=tensorboard", "tensorboard") from None

        class TensorBoardSink(Sink):
            def begin(self, done: int) -> None:
                self.writer = SummaryWriter(str(_own(about.folder / "tensorboard")), purge_step=done + 1)

            def log(self, round_: int, values: Mapping[str, float]) -> None:
                for name, value in values.items():
                    self.writer.add_scalar(name, value, round_)

            def end(self, state: str) -> None:
                self.writer.close()

        return TensorBoardSink()


@LOGGERS.register("mlflow")
@dataclass(frozen=True, kw_only=True)
class MLflow(Logger):
    """A run in MLflow's tracking store.

    Args:
        uri: of the store; "": that of MLFLOW_TRACKING_URI, else a SQLite file beside the run folder.
        experiment: the name that runs are gathered under.
    """

    uri: str = ""
    experiment: str = "propfair"

    def open(self, about: About) -> Sink:
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise MissingExtraError("log=mlflow", "mlflow") from None
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        beside = f"sqlite:///{_own(about.folder.parent / 'mlflow.db').resolve()}"
        client = MlflowClient(self.uri or os.environ.get("MLFLOW_TRACKING_URI") or beside)
        experiment = self.experiment

        class MLflowSink(Sink):
            def begin(self, done: int) -> None:
                known = _own(about.folder / "mlflow-run")
                if done and known.exists():
                    self.run = known.read_text().strip()
                    client.update_run(self.run, "RUNNING")
                    return
                found = client.get_experiment_by_name(experiment)
                home = found.experiment_id if found else client.create_experiment(experiment)
                self.run = client.create_run(home, run_name=about.name).info.run_id
                write_text(known, f"{self.run}\n")
                for key, value in about.settings.items():
                    client.log_param(self.run, key, value)

            def log(self, round_: int, values: Mapping[str, float]) -> None:
                client.log_batch(self.run, metrics=[Metric(key, value, 0, round_) for key, value in values.items()])

            def end(self, state: str) -> None:
                client.set_terminated(self.run, {"finished": "FINISHED", "failed": "FAILED"}.get(state, "KILLED"))

        return MLflowSink()


@LOGGERS.register("wandb")
@dataclass(frozen=True, kw_only=True)
class WeightsAndBiases(Logger):
    """A run of Weights & Biases; offline by default, to be sent later with `wandb sync RUN/wandb/offline-run-*`.

    Args:
        project: the name that runs are gathered under.
        mode: "offline"; "online" sends the config and all numbers to the service.
    """

    project: str = "propfair"
    mode: Literal["offline", "online"] = "offline"

    def open(self, about: About) -> Sink:
        try:
            import wandb
        except ImportError:
            raise MissingExtraError("log=wandb", "wandb") from None
        project, mode = self.project, self.mode

        class WandbSink(Sink):
            def begin(self, done: int) -> None:
                known = _own(about.folder / "wandb-run")
                _own(about.folder / "wandb")
                again = done and known.exists()
                identity = known.read_text().strip() if again else wandb.util.generate_id()
                write_text(known, f"{identity}\n")
                self.run = wandb.init(
                    project=project, mode=mode, name=about.name, id=identity, resume="allow", dir=str(about.folder),
                    config=dict(about.settings), settings=wandb.Settings(silent=True, disable_git=True),
                )  # fmt: skip

            def log(self, round_: int, values: Mapping[str, float]) -> None:
                self.run.log(dict(values), step=round_)

            def end(self, state: str) -> None:
                self.run.finish(exit_code=0 if state == "finished" else 1)

        return WandbSink()


class CsvSink(Sink):
    """metrics.csv in the run folder: round, name, value. Written for every run."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metrics.csv"

    def begin(self, done: int) -> None:
        """Keep what was logged up to the round that the run goes on from."""
        kept = []
        if done and self._path.exists():
            rows = csv.reader(read_text(self._path).splitlines()[1:])
            kept = [row for row in rows if len(row) == 3 and row[0].isdigit() and int(row[0]) <= done]
        write_text(self._path, _lines([["round", "name", "value"], *kept]))

    def log(self, round_: int, values: Mapping[str, float]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_lines([[round_, name, repr(value)] for name, value in values.items()]))


class Sinks(Sink):
    """All sinks of a run. One that breaks is left out with a warning: training is worth more than its log."""

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self._sinks = dict(sinks)

    def begin(self, done: int) -> None:
        self._each("begin", done)

    def log(self, round_: int, values: Mapping[str, float]) -> None:
        self._each("log", round_, values)

    def end(self, state: str) -> None:
        self._each("end", state)

    def _each(self, what: str, *arguments: Any) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                getattr(sink, what)(*arguments)
            except Exception as error:
                del self._sinks[name]
                text = f"the log {name!r} broke and gets no more values: {type(error).__name__}: {error}"
                warnings.warn(text, PropFairWarning, stacklevel=2)


def open_sinks(loggers: Sequence[Logger], about: About) -> Sinks:
    """The CSV file and whatever was chosen."""
    return Sinks({"csv": CsvSink(about.folder), **{logger.name: logger.open(about) for logger in loggers}})


def evaluation_values(split: Split, evaluation: Evaluation, shares: FloatArray, prefix: str = "") -> dict[str, float]:
    """Statistics over clients of an evaluation, by name."""
    values = {f"{split}/{prefix}loss/mean": float(evaluation.loss.nanmean())}
    for metric, column in evaluation.values().items():
        if metric != "loss" and not column.isnan().all():
            numbers = summarize_clients(column.numpy(), shares, Measure(split, metric)).as_dict()
            values |= {f"{split}/{prefix}{metric}/{name}": float(numbers[name]) for name in _STATISTICS}
    return values


def _own(path: Path) -> Path:
    """A file or folder of a log, which must not lead elsewhere or wait for ever: the run folder may be a stranger's."""
    if path.is_symlink() or not (path.is_file() or path.is_dir() or not path.exists()):
        raise DataError(f"{path} is a link, a pipe or a device, and a log is kept in files and folders of its own")
    return path


def _lines(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
