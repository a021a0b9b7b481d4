"""The one reader of run folders, also of runs that are still going on."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pydantic import ValidationError

from propfair.errors import DataError, PropFairError, printable, shown
from propfair.runs.columns import numbers
from propfair.runs.folder import RunFolder
from propfair.runs.keeping import is_kept, read_kept
from propfair.runs.run import Clients, Environment, Run, Status
from propfair.runs.toml import check_saved

_RUN_FILES = frozenset({"config.toml", "environment.json", "clients.json", "records.parquet", "checkpoints"})
_LONGEST_NAME = 1000  # of a metric: a text that is repeated packs well, and pages show it again and again


class Description(NamedTuple):
    """A run without its records: the first fields of a `Run` after its folder."""

    config_text: str
    status: Status
    environment: Environment
    clients: Clients


@dataclass(frozen=True)
class Problem:
    """A folder that can't be read, and why."""

    path: Path
    text: str

    def __str__(self) -> str:
        return printable(self.text if str(self.path) in self.text else f"{self.path}: {self.text}")


def read_run(path: str | Path) -> Run:
    """Read a run folder, finished or not."""
    path = Path(path)
    folder = RunFolder.open(path)
    described = describe(folder)
    records, diagnostics = folder.tables()
    _check_records(path, records, diagnostics, len(described.clients.names))
    return Run(path, *described, records, diagnostics)


def describe(folder: RunFolder) -> Description:
    """What a folder says about its run beside the records, which may be damaged."""
    path = folder.path
    try:
        status = Status.model_validate(folder.status)
        environment = Environment.model_validate(folder.environment)
        clients = Clients.model_validate(folder.clients)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{path}: {error.title.lower()}.json: {key}: {first['msg']}") from None
    config = folder.config_text
    check_saved(config, str(path / "config.toml"))
    _check_clients(path, clients)
    return Description(config, status, environment, clients)


def read_runs(places: str | Path | Iterable[str | Path]) -> tuple[list[Run], list[Problem]]:
    """Every readable run at or below the places, or in files of kept runs, and why the others are not."""
    here = [Path(place) for place in ([places] if isinstance(places, str | Path) else places)]
    paths, problems = find_runs(place for place in here if not is_kept(place))
    runs: list[Run] = []
    for path in (*filter(is_kept, here), *paths):
        try:
            runs += _read_file(path) if is_kept(path) else [read_run(path)]
        except PropFairError as error:
            problems.append(Problem(path, str(error)))
        except Exception as error:  # whatever is strange about one run, the others are read
            problems.append(Problem(path, f"it can't be read: {type(error).__name__}: {error}"))
    return runs, problems


def _read_file(path: Path) -> list[Run]:
    """The runs of a file of kept runs, held to what is asked of folders."""
    runs = read_kept(path)
    for run in runs:
        _check_clients(path, run.clients)
        _check_records(path, run.records, run.diagnostics, len(run.clients.names))
    return runs


def trials_apart(runs: Iterable[Run]) -> tuple[list[Run], list[Run]]:
    """Runs proper, and the trials of sweeps: what lies in trials/ beside the final/ that has a sweep's winners."""
    proper: list[Run] = []
    trials: list[Run] = []
    for run in runs:
        home = None if run.folder is None else run.folder.parent
        is_trial = home is not None and home.name == "trials" and (home.parent / "final").is_dir()
        (trials if is_trial else proper).append(run)
    return proper, trials


def find_runs(places: Iterable[Path]) -> tuple[list[Path], list[Problem]]:
    """The run folders at or below each place, in order of their names, and what is wrong with the others."""
    found: dict[Path, None] = {}
    problems = []
    for place in places:
        if not place.is_dir():
            text = "there is no such folder" if not place.exists() else "this is a file; a run is a folder"
            problems.append(Problem(place, text))
            continue
        runs, broken = _below(place)
        found |= dict.fromkeys(runs)
        problems += [Problem(path, "half a run folder: it has no status.json") for path in broken]
        if not runs and not broken:
            problems.append(Problem(place, "not a run folder, and there is none below it (no status.json)"))
    return list(found), problems


def _below(place: Path) -> tuple[list[Path], list[Path]]:
    """Runs, and folders that look like the rest of one. A run has no runs below it."""
    runs, broken = [], []
    for name, folders, files in os.walk(place):
        path = Path(name)
        if "status.json" in files:
            runs.append(path)
            folders.clear()
        elif len(_RUN_FILES.intersection((*files, *folders))) > 1:
            broken.append(path)
            folders.clear()
        else:
            folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
    return runs, broken


def _check_clients(path: Path, clients: Clients) -> None:
    where = path if path.suffix == ".parquet" else path / "clients.json"
    n = len(clients.names)
    lengths = {f"sizes.{split}": len(sizes) for split, sizes in clients.sizes.items()}
    if clients.train_labels is not None:
        lengths["train_labels"] = len(clients.train_labels)
        if any(len(row) != clients.num_classes for row in clients.train_labels):
            raise DataError(f"{where}: train_labels must have {clients.num_classes} counts per client")
    wrong = [name for name, length in lengths.items() if length != n]
    if not n or wrong or "train" not in clients.sizes:
        what = f"{wrong[0]} has {lengths[wrong[0]]} entries for {n} clients" if wrong else "no clients or no sizes"
        raise DataError(f"{where}: {what}")


def _check_records(path: Path, records: pa.Table, diagnostics: pa.Table, num_clients: int) -> None:
    names = [records["split"], records["metric"], diagnostics["metric"]]
    for name in (text for column in names for chunk in column.chunks for text in chunk.dictionary.to_pylist()):
        if not isinstance(name, str) or not name.isprintable() or len(name) > _LONGEST_NAME:
            raise DataError(f"{path}: the records speak of {shown(name)}, which is the name of no split and no metric")
    clients = numbers(records["client"])
    if len(clients) and not (clients.min() >= 0 and clients.max() < num_clients):
        raise DataError(f"{path}: the records speak of client {clients.max()}, but there are {num_clients} clients")
