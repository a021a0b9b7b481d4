"""Checkpoints of version 0.1.0, which kept the records of each one in two Parquet files; only read, never written.

Their checkpoint-ROUND.json holds under "sha256" the checksums of the state and of every part of the records.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from propfair.errors import DataError
from propfair.runs.columns import read_table
from propfair.runs.records import CLIENT_SCHEMA, ROUND_SCHEMA, ROW, WHOLE_ROUND, Names
from propfair.runs.seal import check_digest

_SCHEMAS = {"records": CLIENT_SCHEMA, "rounds": ROUND_SCHEMA}


def is_old(content: Mapping[str, Any]) -> bool:
    """Whether a checkpoint was written by version 0.1.0."""
    return isinstance(content.get("sha256"), dict)


def old_state(content: Mapping[str, Any]) -> tuple[str, str]:
    """The file of the state, and its checksum."""
    (found,) = ((name, checksum) for name, checksum in content["sha256"].items() if name.startswith("state-"))
    return found


def old_tables(folder: Path, content: Mapping[str, Any]) -> list[pa.Table]:
    """The two tables up to a checkpoint; a part that is damaged is a `DataError` that names it."""
    return [_joined([_read(folder, name, content) for name in _names(kind, content)], kind) for kind in _SCHEMAS]


def salvage(folder: Path, content: Mapping[str, Any], names: Names, warnings: list[str]) -> NDArray[np.void]:
    """The rows of the parts that are whole; what is wrong with the others joins `warnings`, new names `names`."""
    tables: dict[str, pa.Table] = {}
    for kind in _SCHEMAS:
        whole = []
        for name in _names(kind, content):
            try:
                whole.append(_read(folder, name, content))
            except DataError as error:
                warnings.append(str(error))
        tables[kind] = _joined(whole, kind)
    return _to_rows(tables["records"], tables["rounds"], names)


def _names(kind: str, content: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in content["sha256"] if name.startswith(f"{kind}-"))


def _read(folder: Path, name: str, content: Mapping[str, Any]) -> pa.Table:
    check_digest(folder / name, content["sha256"][name])
    try:
        return read_table(folder / name, _SCHEMAS[name.partition("-")[0]])
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{folder / name} can't be read: {error}") from None


def _joined(tables: list[pa.Table], kind: str) -> pa.Table:
    if not tables:
        return _SCHEMAS[kind].empty_table()
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def _to_rows(clients: pa.Table, rounds: pa.Table, names: Names) -> NDArray[np.void]:
    """Tables as rows of a journal; new names join `names`."""
    made = np.empty(len(clients) + len(rounds), ROW)
    for rows, table in ((made[: len(clients)], clients), (made[len(clients) :], rounds)):
        for column in ("round", "value"):
            rows[column] = table[column].to_numpy()
    made["client"][: len(clients)] = clients["client"].to_numpy()
    made["client"][len(clients) :] = WHOLE_ROUND
    pairs = zip(clients["split"].to_pylist(), clients["metric"].to_pylist(), strict=True)
    made["name"] = [
        *(names.of_client(split, metric) for split, metric in pairs),
        *(names.of_round(metric) for metric in rounds["metric"].to_pylist()),
    ]
    return made
