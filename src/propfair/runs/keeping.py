"""Records for keeping: many runs that have ended in one small file, from which tables and reports are made again.

The file is Parquet, one row per value, with what describes the runs as a sealed JSON text beside the rows. Models,
checkpoints and the paths of the machine stay behind.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from propfair.errors import ConfigError, DataError
from propfair.files import check_readable, replacing
from propfair.runs import seal
from propfair.runs.answers import SPLIT as ANSWERS
from propfair.runs.columns import check_unpacked
from propfair.runs.records import CLIENT_SCHEMA, ROUND_SCHEMA, WHOLE_ROUND
from propfair.runs.run import Clients, Environment, Run, Status
from propfair.runs.toml import check_saved, write_toml

FORMAT = 1
_KEY = b"propfair"
_MAX_DESCRIPTION = 1 << 28  # bytes
_TRAINING = "round"  # the split of what clients report in each round
_TEXT = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [("run", pa.int32()), ("round", pa.int32()), ("client", pa.int32()), ("split", _TEXT), ("metric", _TEXT),
     ("value", pa.float64())]
)  # fmt: skip


def keep_runs(runs: Sequence[Run], path: Path, *, rounds: bool = False, answers: bool = True) -> None:
    """Write the records of runs into one file: of finished ones, and of failed ones as such.

    Args:
        runs: which.
        path: the file, *.parquet; one that is there is replaced.
        rounds: also what clients reported in each round, weights and losses; else evaluations and the diagnostics of
            whole rounds alone.
        answers: also the answers of the last models to single test examples, with which runs of one seed are compared;
            with many test examples they are most of the file.
    """
    import pyarrow.parquet as pq

    if path.suffix != ".parquet":
        raise ConfigError(f"records are kept in a Parquet file: give a path that ends in .parquet; got {path}")
    if not runs:
        raise ConfigError("there are no runs to keep")
    for run in runs:
        if run.status.state in ("running", "interrupted"):
            raise ConfigError(
                f"{run.where} is {run.status.state}: only runs at their end are kept. propfair resume brings it there."
            )
    left_out = {_TRAINING: not rounds, ANSWERS: not answers}
    rows = pa.concat_tables([_rows(number, run, left_out) for number, run in enumerate(runs)]).unify_dictionaries()
    clients = list({run.clients.model_dump_json(): None for run in runs})  # once, however many runs they had
    description = {
        "format": FORMAT,
        "clients": [json.loads(one) for one in clients],
        "runs": [{**_described(run), "clients": clients.index(run.clients.model_dump_json())} for run in runs],
        "rows": _digest(rows),
    }
    text = base64.b64encode(zlib.compress(json.dumps(seal.sealed(description)).encode(), 9))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        pq.write_table(rows.replace_schema_metadata({_KEY: text}), temporary, compression="zstd")


def is_kept(path: Path) -> bool:
    """Whether a path is a file that may hold kept runs, rather than a folder of them."""
    return path.suffix == ".parquet" and path.is_file()


def read_kept(path: Path) -> list[Run]:
    """The runs of a file that `keep_runs` wrote."""
    import pyarrow.parquet as pq

    check_readable(path)
    try:
        with pq.ParquetFile(path) as file:
            check_unpacked(path, file.metadata)
            table = file.read()
        text = (table.schema.metadata or {}).get(_KEY, b"")
        described = json.loads(_unpacked(base64.b64decode(text)) or b"null")
    except DataError:
        raise
    except (OSError, pa.ArrowException, ValueError, RecursionError, zlib.error) as error:
        raise DataError(f"{path} can't be read: {error}") from None
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise DataError(f"{path} holds no runs of format {FORMAT}: such files are written by propfair keep")
    table = table.replace_schema_metadata(None)
    whole = table.schema == _SCHEMA and not any(column.null_count for column in table.columns)
    if not whole or not seal.is_sealed(described) or _digest(table) != described.get("rows"):
        raise DataError(f"{path} is damaged or was edited: its checksum is wrong")
    try:
        clients = [Clients.model_validate(one) for one in described["clients"]]
        for one in described["runs"]:
            check_saved(one["config"], "the config of a run")
        return [_run(table, number, clients, of) for number, of in enumerate(described["runs"])]
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise DataError(f"{path} does not describe its runs as propfair keep does: {error}") from None


def _unpacked(packed: bytes) -> bytes:
    unpack = zlib.decompressobj()
    text = unpack.decompress(packed, _MAX_DESCRIPTION)
    if unpack.unconsumed_tail:
        raise ValueError(f"its description has more than {_MAX_DESCRIPTION >> 20} MB")
    return text


def _rows(number: int, run: Run, left_out: Mapping[str, bool]) -> pa.Table:
    """The records of a run without the splits that are left out."""
    import pyarrow.compute as pc  # here, since it takes long to import

    values = run.records
    for split in (name for name, out in left_out.items() if out):
        values = values.filter(pc.field("split") != split)
    whole = run.diagnostics
    empty = pa.array([""] * len(whole), pa.string()).dictionary_encode()
    clients = pa.array([WHOLE_ROUND] * len(whole), pa.int32())
    both = [
        [values["round"], values["client"], values["split"], values["metric"], values["value"]],
        [whole["round"], clients, empty, whole["metric"], whole["value"]],
    ]
    return pa.concat_tables(
        pa.table([pa.array([number] * len(columns[0]), pa.int32()), *columns], schema=_SCHEMA) for columns in both
    )


def _described(run: Run) -> dict[str, Any]:
    config = {key: value for key, value in run.config.items() if key != "log"}
    config["data"] = {key: value for key, value in config.get("data", {}).items() if key != "folder"}
    return {
        "config": write_toml(_without_folders(config)) if run.config else "",
        "status": run.status.model_dump(mode="json"),
        "environment": _without_folders(run.environment.model_dump(mode="json")),
    }


def _without_folders(said: Any) -> Any:
    """Nested values; of an absolute path, also behind a key= of a command line, the last part."""
    if isinstance(said, Mapping):
        return {key: _without_folders(value) for key, value in said.items()}
    if isinstance(said, list | tuple):
        return [_without_folders(value) for value in said]
    if not isinstance(said, str):
        return said
    key, sign, value = said.rpartition("=")
    return f"{key}{sign}{Path(value).name}" if Path(value).is_absolute() else said


def _run(table: pa.Table, number: int, clients: Sequence[Clients], described: Mapping[str, Any]) -> Run:
    import pyarrow.compute as pc

    own = table.filter(pc.field("run") == number)
    status = Status.model_validate(described["status"])
    names = pa.array([status.name] * len(own), pa.string()).dictionary_encode()
    named = own.set_column(0, "run", names)
    return Run(
        None, described["config"], status, Environment.model_validate(described["environment"]),
        clients[described["clients"]],
        named.filter(pc.field("client") != WHOLE_ROUND).cast(CLIENT_SCHEMA),
        named.filter(pc.field("client") == WHOLE_ROUND).select(ROUND_SCHEMA.names).cast(ROUND_SCHEMA),
    )  # fmt: skip


def _digest(table: pa.Table) -> str:
    """Of the values, whatever pages and dictionaries they are written in."""
    digest = hashlib.sha256()
    for name in _SCHEMA.names:
        column = table[name].combine_chunks()
        plain = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        for piece in plain.to_pylist() if pa.types.is_string(plain.type) else [plain.to_numpy().tobytes()]:
            digest.update(piece.encode() + b"\0" if isinstance(piece, str) else piece)
    return digest.hexdigest()
