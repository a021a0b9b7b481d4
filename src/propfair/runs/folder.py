"""The folder of a run: config, environment, records, checkpoints, model, status.

config.toml            what to run, resolved
environment.json       versions, machine, git commit
clients.json           names, sizes and label counts of the clients
status.json            state (running, finished, interrupted, failed), rounds done, seconds
start.safetensors      the model it started from, if that was another run's
records.parquet        run, round, client, split, metric, value
rounds.parquet         run, round, metric, value
metrics.csv            round, name, value: statistics over clients for other tools
model.safetensors      the model reached
checkpoints/           until the run is finished: parts of the records, and all that a resume needs

A checkpoint counts once its checkpoint-ROUND.json is there, with the checksums of every file it stands on. Whenever a
run is killed, either the old checkpoint counts or the new one does.
"""

import contextlib
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors
import safetensors.torch
from torch import Tensor

from propfair.errors import ConfigError, DataError
from propfair.files import give_usual_mode, replacing, write_text
from propfair.runs.records import CLIENT_SCHEMA, ROUND_SCHEMA, Records
from propfair.runs.run import RunState

if sys.platform != "win32":
    import fcntl

_KEPT_CHECKPOINTS = 2
FORMAT = 1  # of the folder; a folder of another format is refused


class InUseError(ConfigError):
    """Another process trains in this folder."""


@dataclass(frozen=True)
class Checkpoint:
    """All that a resume needs: named tensors after a round, and the seconds that the run took so far."""

    round: int
    tensors: dict[str, Tensor]
    seconds: float = 0.0


class RunFolder:
    """One run on disk. Everything is written atomically, so a reader never sees half a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checkpoints = path / "checkpoints"
        self._parts: dict[str, str] = {}  # the checksums of the parts of the records that count

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        name: str,
        config: str = "",
        environment: Mapping[str, Any] | None = None,
        clients: Mapping[str, Any] | None = None,
        start: Mapping[str, Tensor] | None = None,
        force: bool = False,
    ) -> "RunFolder":
        """Make a new run folder, whole or not at all.

        An existing one is never overwritten, unless `force` and it is a run folder that no process works on.
        """
        old = path.exists() and any(path.iterdir() if path.is_dir() else [path])
        if old and not force:
            raise ConfigError(f"{path} exists already. Choose another name with --out, or replace it with --force.")
        if old and not (path / "status.json").exists():
            raise ConfigError(f"{path} is not a run folder: --force will not delete it. Choose another --out.")
        drafts = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = cls(_hidden_sibling(path))
            drafts.append(draft.path)
            draft._write_json("status.json", {"format": FORMAT, "name": name})
            draft.save_status("running", 0)
            write_text(draft.path / "config.toml", config)
            draft._write_json("environment.json", environment or {})
            draft._write_json("clients.json", clients or {})
            if start is not None:
                draft._save_tensors("start.safetensors", start)
            if old:
                with cls(path).in_use():
                    aside = _hidden_sibling(path)
                    drafts.append(aside)
                    path.replace(aside)
            draft.path.replace(path)
        except OSError as error:
            raise ConfigError(
                f"can't write to {path}: {error.strerror or error}. Choose another folder with --out."
            ) from None
        finally:
            for leftover in drafts:
                shutil.rmtree(leftover, ignore_errors=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder."""
        folder = cls(path)
        found = folder.status.get("format")
        if found != FORMAT:
            raise DataError(
                f"{path} has format {found!r}; this version of propfair reads format {FORMAT}. "
                "Use the version that wrote it (see its environment.json), or run it again."
            )
        return folder

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps other processes from training in this folder. The system frees it when this process ends."""
        with (self.path / "config.toml").open("r+") as file:  # the one file that is never replaced
            if sys.platform != "win32":
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise InUseError(f"{self.path} is in use: another process is running it") from None
            yield

    # What stands in it.

    @property
    def status(self) -> dict[str, Any]:
        """State, rounds done, seconds, and why it ended."""
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
        """The resolved config, TOML; empty for a run that was started from Python."""
        return self._read("config.toml")

    def records(self) -> pa.Table:
        """The client table, also while the run goes on."""
        return self._table("records", CLIENT_SCHEMA)

    def diagnostics(self) -> pa.Table:
        """The table of whole rounds, also while the run goes on."""
        return self._table("rounds", ROUND_SCHEMA)

    def model(self) -> dict[str, Tensor]:
        """The state dict of the model reached."""
        return self._load_tensors("model.safetensors")

    def start(self) -> dict[str, Tensor] | None:
        """The state dict of the model it started from, if it was given one."""
        return self._load_tensors("start.safetensors") if (self.path / "start.safetensors").exists() else None

    # What is written.

    def save_environment(self, environment: Mapping[str, Any]) -> None:
        self._write_json("environment.json", environment)

    def save_status(self, state: RunState, rounds: int, reason: str = "", seconds: float = 0.0) -> None:
        now = {"state": state, "rounds": rounds, "reason": reason, "seconds": round(seconds, 3)}
        self._write_json("status.json", {**self.status, **now})

    def save_model(self, state: Mapping[str, Tensor]) -> None:
        self._save_tensors("model.safetensors", state)

    def save_checkpoint(self, checkpoint: Checkpoint, records: Records) -> None:
        """Write the rows since the last checkpoint, then the checkpoint; older checkpoints are pruned."""
        self._checkpoints.mkdir(exist_ok=True)
        number = f"{checkpoint.round:08d}"
        for kind, table in (("records", records.clients), ("rounds", records.diagnostics)):
            part = self._checkpoints / f"{kind}-{number}.parquet"
            with replacing(part) as temporary:
                pq.write_table(table, temporary)
                self._parts[part.name] = _checksum(temporary)
        state = self._checkpoints / f"state-{number}.safetensors"
        with replacing(state) as temporary:
            safetensors.torch.save_file(_separate(checkpoint.tensors), temporary)
            files = {**self._parts, state.name: _checksum(temporary)}
        elsewhere = [name for name, tensor in checkpoint.tensors.items() if tensor.device.type != "cpu"]
        content = {"seconds": checkpoint.seconds, "on_device": elsewhere, "sha256": files}
        write_text(self._checkpoints / f"checkpoint-{number}.json", json.dumps(content, indent=1) + "\n")
        records.clear()
        for old in sorted(self._checkpoints.glob("checkpoint-*.json"))[:-_KEPT_CHECKPOINTS]:
            old.unlink()
            (self._checkpoints / f"state-{_number(old):08d}.safetensors").unlink(missing_ok=True)

    def finish(self, state: RunState, rounds: int, reason: str, seconds: float) -> None:
        """Join the parts of the records into one file each; drop the checkpoints, unless the run is to be resumed."""
        for kind, schema in (("records", CLIENT_SCHEMA), ("rounds", ROUND_SCHEMA)):
            table = self._table(kind, schema)
            with replacing(self.path / f"{kind}.parquet") as temporary:
                pq.write_table(table, temporary)
        self.save_status(state, rounds, reason, seconds)
        if state != "interrupted":
            shutil.rmtree(self._checkpoints, ignore_errors=True)

    def load_checkpoint(self, device: str = "cpu") -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, and a warning for each damaged one that was passed over.

        Rows written after it belong to rounds that will be run again: they are removed.
        """
        warnings, found = [], None
        for path in sorted(self._checkpoints.glob("checkpoint-*.json"), reverse=True):
            try:
                found = self._read_checkpoint(path, device)
                break
            except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
                warnings.append(f"checkpoint {path} is damaged and not used ({error}); going back to the one before it")
        done = found.round if found else 0
        for path in self._checkpoints.glob("*"):
            if path.name.startswith(".") or _number(path) > done:
                path.unlink()
        self._parts = {name: checksum for name, checksum in self._parts.items() if _number(Path(name)) <= done}
        return found, warnings

    def _read_checkpoint(self, path: Path, device: str) -> Checkpoint:
        content = json.loads(path.read_text(encoding="utf-8"))
        files: dict[str, str] = content["sha256"]
        for name, checksum in files.items():
            if _checksum(self._checkpoints / name) != checksum:
                raise ValueError(f"the checksum of {name} does not match")
        (state,) = (name for name in files if name.startswith("state-"))
        tensors = safetensors.torch.load_file(self._checkpoints / state)
        for name in content["on_device"]:
            tensors[name] = tensors[name].to(device)
        self._parts = {name: checksum for name, checksum in files.items() if name != state}
        return Checkpoint(_number(path), tensors, float(content["seconds"]))

    def _table(self, kind: str, schema: pa.Schema) -> pa.Table:
        for last_try in (False, True):
            ended = self.status.get("state") in ("finished", "failed")
            whole = self.path / f"{kind}.parquet"
            parts = [whole] if ended and whole.exists() else sorted(self._checkpoints.glob(f"{kind}-*.parquet"))
            try:
                tables = [pq.read_table(part, schema=schema) for part in parts]
                break
            except (OSError, pa.ArrowInvalid) as error:
                if last_try:  # else the run may have ended just now, and joined its parts
                    raise DataError(f"{self.path}: can't read the {kind}: {error}") from None
        return pa.concat_tables(tables).unify_dictionaries().combine_chunks() if tables else schema.empty_table()

    def _save_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        with replacing(self.path / name) as temporary:
            safetensors.torch.save_file(_separate(tensors), temporary)

    def _load_tensors(self, name: str) -> dict[str, Tensor]:
        try:
            return safetensors.torch.load_file(self.path / name)
        except (OSError, safetensors.SafetensorError) as error:
            raise DataError(f"{self.path} has no readable {name}: {error}") from None

    def _read(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
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


def _hidden_sibling(path: Path) -> Path:
    """A new empty folder beside `path`."""
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    give_usual_mode(folder, 0o777)
    return folder


def _number(path: Path) -> int:
    """The round in a name such as state-00000010.safetensors."""
    return int(path.stem.partition("-")[2])


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without shared storage, which the format refuses."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.contiguous() if storage not in seen else tensor.clone()
        seen.add(storage)
    return apart
