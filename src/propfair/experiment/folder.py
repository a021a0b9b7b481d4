"""The folder of a run: config, environment, records, checkpoints, model, status.

config.toml            what to run, resolved
environment.json       versions, machine, git commit
clients.json           names, sizes and label counts of the clients
status.json            state (running, finished, interrupted, failed), rounds done
records.parquet        run, round, client, split, metric, value
rounds.parquet         run, round, metric, value
model.safetensors      the model reached
checkpoints/           until the run is finished: parts of the records, and all that a resume needs
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors
import safetensors.torch
from torch import Tensor

from propfair.errors import ConfigError, DataError
from propfair.experiment.files import replacing, write_text
from propfair.experiment.records import CLIENT_SCHEMA, ROUND_SCHEMA, Records

RunState = Literal["running", "finished", "interrupted", "failed"]
_KEPT_CHECKPOINTS = 2
FORMAT = 1  # of the folder; a folder of another format is refused


@dataclass(frozen=True)
class Checkpoint:
    """All that a resume needs: named tensors after a round."""

    round: int
    tensors: dict[str, Tensor]


class RunFolder:
    """One run on disk. Everything is written atomically, so a reader never sees half a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checkpoints = path / "checkpoints"

    @classmethod
    def create(cls, path: Path, *, force: bool = False) -> "RunFolder":
        """Make a new run folder. An existing one is never overwritten, unless `force` and it is a run folder."""
        if path.exists() and any(path.iterdir() if path.is_dir() else [path]):
            if not force:
                raise ConfigError(f"{path} exists already. Choose another name with --out, or replace it with --force.")
            if not (path / "status.json").exists():
                raise ConfigError(f"{path} is not a run folder: --force will not delete it. Choose another --out.")
            shutil.rmtree(path)
        folder = cls(path)
        try:
            folder._checkpoints.mkdir(parents=True)
            folder.save_status("running", 0)
        except OSError as error:
            shutil.rmtree(path, ignore_errors=True)
            raise ConfigError(
                f"can't write to {path}: {error.strerror or error}. Choose another folder with --out."
            ) from None
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder."""
        folder = cls(path)
        found = folder.status.get("format")
        if found != FORMAT:
            raise DataError(f"{path} has format {found!r}; this version of propfair reads format {FORMAT}")
        return folder

    # What stands in it.

    @property
    def status(self) -> dict[str, Any]:
        """State, rounds done, and why it ended."""
        return self._read_json("status.json")

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, machine, git commit, times."""
        return self._read_json("environment.json")

    @property
    def clients(self) -> dict[str, Any]:
        """Names, sizes and label counts of the clients, and the fingerprint of the data."""
        return self._read_json("clients.json")

    @property
    def config_text(self) -> str:
        """The resolved config, TOML."""
        return self._read("config.toml")

    def records(self) -> pa.Table:
        """The client table, also while the run goes on."""
        return self._table("records", CLIENT_SCHEMA)

    def rounds(self) -> pa.Table:
        """The round table, also while the run goes on."""
        return self._table("rounds", ROUND_SCHEMA)

    def model(self) -> dict[str, Tensor]:
        """The state dict of the model reached."""
        try:
            return safetensors.torch.load_file(self.path / "model.safetensors")
        except (OSError, safetensors.SafetensorError) as error:
            raise DataError(f"{self.path} has no readable model.safetensors: {error}") from None

    # What is written.

    def save_config(self, text: str) -> None:
        write_text(self.path / "config.toml", text)

    def save_environment(self, environment: Mapping[str, Any]) -> None:
        self._write_json("environment.json", environment)

    def save_clients(self, clients: Mapping[str, Any]) -> None:
        self._write_json("clients.json", clients)

    def save_status(self, state: RunState, rounds: int, reason: str = "") -> None:
        self._write_json("status.json", {"format": FORMAT, "state": state, "rounds": rounds, "reason": reason})

    def save_model(self, state: Mapping[str, Tensor]) -> None:
        with replacing(self.path / "model.safetensors") as temporary:
            safetensors.torch.save_file(dict(state), temporary)

    def save_checkpoint(self, checkpoint: Checkpoint, records: Records) -> None:
        """Write the rows since the last checkpoint, then the checkpoint; older checkpoints are pruned."""
        self._checkpoints.mkdir(exist_ok=True)
        stem = f"{checkpoint.round:08d}"
        for kind, table in (("records", records.clients), ("rounds", records.rounds)):
            with replacing(self._checkpoints / f"{kind}-{stem}.parquet") as temporary:
                pq.write_table(table, temporary)
        records.clear()
        with replacing(self._checkpoints / f"state-{stem}.safetensors") as temporary:
            tensors = {name: tensor.contiguous() for name, tensor in checkpoint.tensors.items()}
            data = safetensors.torch.save(tensors, {"round": str(checkpoint.round)})
            temporary.write_bytes(hashlib.sha256(data).digest() + data)
        for old in sorted(self._checkpoints.glob("state-*.safetensors"))[:-_KEPT_CHECKPOINTS]:
            old.unlink()

    def finish(self, *, keep_checkpoints: bool = False) -> None:
        """Join the parts of the records into one file each; drop the checkpoints, unless the run is to be resumed."""
        for kind, schema in (("records", CLIENT_SCHEMA), ("rounds", ROUND_SCHEMA)):
            table = self._table(kind, schema)
            with replacing(self.path / f"{kind}.parquet") as temporary:
                pq.write_table(table, temporary)
        if not keep_checkpoints:
            shutil.rmtree(self._checkpoints, ignore_errors=True)

    def load_checkpoint(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, and a warning for each damaged one that was passed over.

        Rows written after it belong to rounds that will be run again: they are removed.
        """
        warnings = []
        found = None
        for path in sorted(self._checkpoints.glob("state-*.safetensors"), reverse=True):
            content = path.read_bytes()
            if hashlib.sha256(content[32:]).digest() == content[:32]:
                found = Checkpoint(int(path.stem.split("-")[1]), safetensors.torch.load(content[32:]))
                break
            warnings.append(f"{path} is damaged (checksum does not match); the checkpoint before it is used")
        done = found.round if found else 0
        for part in self._checkpoints.glob("*-*"):
            if int(part.stem.split("-")[1]) > done:
                part.unlink()
        return found, warnings

    def _table(self, kind: str, schema: pa.Schema) -> pa.Table:
        parts = sorted(self._checkpoints.glob(f"{kind}-*.parquet")) or [self.path / f"{kind}.parquet"]
        try:
            tables = [pq.read_table(part, schema=schema) for part in parts if part.exists()]
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{self.path}: can't read the {kind}: {error}") from None
        return pa.concat_tables(tables).unify_dictionaries().combine_chunks() if tables else schema.empty_table()

    def _read(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except OSError:
            raise DataError(f"{self.path} is not a run folder: it has no readable {name}") from None

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads(self._read(name))
        except json.JSONDecodeError as error:
            raise DataError(f"{self.path / name} is not valid JSON: {error}") from None
        if not isinstance(content, dict):
            raise DataError(f"{self.path / name} must hold a JSON object")
        return content

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        write_text(self.path / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
