"""The folder of a run: config, environment, records, checkpoints, model, status.

config.toml            what to run, resolved
environment.json       versions, machine, git commit
clients.json           names, sizes and label counts of the clients
status.json            state (running, finished, interrupted, failed), rounds done, seconds, checksums of other files
start.safetensors      the model it started from, if that was another run's
records.parquet        run, round, client, split, metric, value; once the run has ended
rounds.parquet         run, round, metric, value; likewise
metrics.csv            round, name, value: statistics over clients for other tools
model.safetensors      the model reached
checkpoints/           the records, and all that a resume needs; of a finished run, what more rounds need

Every JSON file carries its own checksum. What never changes is sealed from the beginning, everything once the run has
ended. Reading a file verifies it, and damage is an error that names it. Folders of version 0.1.0 (format 1) have no
checksums and are read without.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch import Tensor

from propfair.errors import ConfigError, DataError
from propfair.files import check_readable, give_usual_mode, read_text, write_text
from propfair.runs import seal
from propfair.runs.checkpoints import Checkpoint, Checkpoints, Found, Tables
from propfair.runs.columns import read_table
from propfair.runs.holder import holder_of
from propfair.runs.records import CLIENT_SCHEMA, ROUND_SCHEMA, Records
from propfair.runs.run import RunState, lost_records
from propfair.runs.tensors import load_tensors, save_tensors

if sys.platform != "win32":
    import fcntl

_UNSEALED = 1  # the format of version 0.1.0
FORMAT = 2  # a folder of yet another format is refused
_FIXED = ("config.toml", "clients.json", "start.safetensors")  # written once
_FINAL = (*_FIXED, "environment.json", "records.parquet", "rounds.parquet", "metrics.csv", "model.safetensors")


class InUseError(ConfigError):
    """Another process trains in this folder."""


class RunFolder:
    """One run on disk. Everything is written atomically, so a reader never sees half a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._checkpoints = Checkpoints(path / "checkpoints")

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
            write_text(draft.path / "config.toml", config)
            draft._write_json("environment.json", environment or {})
            draft._write_json("clients.json", clients or {})
            if start is not None:
                save_tensors(draft.path / "start.safetensors", start)
            about = {"format": FORMAT, "name": name, "files": draft._digests(_FIXED)}
            draft._write_json("status.json", {**about, **draft._now("running", 0)})
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
        if found not in (_UNSEALED, FORMAT):
            raise DataError(
                f"{path} has format {found!r}; this version of propfair reads formats {_UNSEALED} and {FORMAT}. "
                "Use the version that wrote it (see its environment.json), or run it again."
            )
        return folder

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Keeps other processes from training in this folder. The system frees it when this process ends."""
        path = self.path / "config.toml"  # the one file that is only replaced between two sessions
        check_readable(path)
        with path.open("r+") as file:
            if sys.platform != "win32":
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    replaced = os.fstat(file.fileno()).st_ino != path.stat().st_ino
                except BlockingIOError:
                    replaced = True
                if replaced:
                    raise InUseError(f"{self.path} is in use: {holder_of(path)} is running it")
            yield

    # What stands in it.

    @property
    def status(self) -> dict[str, Any]:
        """State, rounds done, seconds, why it ended, and the checksums of the files that will not change."""
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
        self._verify("config.toml", "If the change is meant, it is another run: propfair run --config with that file.")
        return self._read("config.toml")

    def tables(self) -> Tables:
        """The records of clients and those of whole rounds, also while the run goes on."""
        while True:
            status = self.status
            try:
                if status.get("state") in ("finished", "failed"):
                    clients, rounds = self.path / "records.parquet", self.path / "rounds.parquet"
                    return Tables(self._read_table(clients, CLIENT_SCHEMA), self._read_table(rounds, ROUND_SCHEMA))
                return self._checkpoints.tables(str(status.get("name", "")), status.get("rounds", 0))
            except DataError:
                if self.status == status:
                    raise  # else the run has gone on meanwhile, and pruned or joined what was to be read

    def model(self) -> dict[str, Tensor]:
        """The state dict of the model reached."""
        self._verify("model.safetensors")
        return load_tensors(self.path / "model.safetensors")

    def start(self) -> dict[str, Tensor] | None:
        """The state dict of the model it started from, if it was given one."""
        path = self.path / "start.safetensors"
        if not path.exists() and path.name not in self.status.get("files", {}):
            return None
        self._verify(path.name)
        return load_tensors(path)

    # What is written.

    def save_environment(self, environment: Mapping[str, Any]) -> None:
        self._write_json("environment.json", environment)

    def save_status(self, state: RunState, rounds: int, reason: str = "", seconds: float = 0.0) -> None:
        """Say how far the run is, and seal what will not change from here on."""
        status = {**self.status, **self._now(state, rounds, reason, seconds)}
        if "files" in status:
            fixed = {name: checksum for name, checksum in status["files"].items() if name in _FIXED}
            final = {"running": (), "interrupted": ("model.safetensors",)}.get(state, _FINAL)
            status["files"] = {**self._digests(name for name in final if name not in fixed), **fixed}
        self._write_json("status.json", status)

    def _now(self, state: RunState, rounds: int, reason: str = "", seconds: float = 0.0) -> dict[str, Any]:
        lost = {"lost": self._checkpoints.lost} if self._checkpoints.lost else {}
        return {"state": state, "rounds": rounds, "reason": reason, "seconds": round(seconds, 3), **lost}

    def save_model(self, state: Mapping[str, Tensor]) -> None:
        save_tensors(self.path / "model.safetensors", state)

    def save_checkpoint(self, checkpoint: Checkpoint, records: Records) -> None:
        """Write the rows since the last checkpoint, then the checkpoint; older checkpoints are pruned."""
        self._checkpoints.save(checkpoint, records)

    def load_checkpoint(self, device: str = "cpu") -> Found:
        """Get ready to go on from the newest checkpoint whose state can be read."""
        if self.status.get("format") == _UNSEALED:
            self._seal()
        return self._checkpoints.load(device, self.status.get("rounds", 0))

    def finish(self, state: RunState, rounds: int, reason: str, seconds: float) -> None:
        """Join the records into one file each, unless the run is to be resumed.

        Of the checkpoints all stay if it is, the last if it is finished and may be given more rounds, else none.
        """
        if state != "interrupted":
            name = str(self.status.get("name", ""))
            self._checkpoints.write_tables(name, self.path / "records.parquet", self.path / "rounds.parquet")
        self.save_status(state, rounds, reason or lost_records(self._checkpoints.lost), seconds)
        if state != "interrupted":
            self._checkpoints.remove(keep=rounds if state == "finished" else None)

    def reopen(self) -> None:
        """Let a finished run go on: all is as if its last round had not been the last. Call it within `in_use`."""
        status = self.status
        try:
            self._checkpoints.reopen(status["rounds"])
        except DataError as error:
            raise ConfigError(
                f"{self.path} is finished after {status['rounds']} rounds, and what more rounds need is not there: "
                f"{error}. Train on from its model instead: propfair run --from."
            ) from None
        self.save_status("interrupted", status["rounds"], "to be given more rounds", status["seconds"])

    def save_config(self, config: str) -> None:
        """Replace the config; call it within `in_use`. Whenever it is killed, the old one counts or the new one."""
        path, status = self.path / "config.toml", self.status
        files = status.get("files", {})
        draft = path.with_name(".config.toml")
        write_text(draft, config)
        both = [files.get(path.name), seal.digest_file(draft)]
        if files:
            self._write_json("status.json", {**status, "files": {**files, path.name: both}})
        draft.replace(path)
        if files:
            self._write_json("status.json", {**status, "files": {**files, path.name: both[1]}})

    def _seal(self) -> None:
        """Give a folder of version 0.1.0 the checksums that one of this version has from the beginning."""
        for name in ("environment.json", "clients.json"):
            self._write_json(name, self._read_json(name))
        self._write_json("status.json", {**self.status, "format": FORMAT, "files": self._digests(_FIXED)})

    def _digests(self, names: Iterable[str]) -> dict[str, str]:
        return {name: seal.digest_file(self.path / name) for name in names if (self.path / name).exists()}

    def _verify(self, name: str, way_out: str = "") -> None:
        """A `DataError` unless a file is the one that was sealed."""
        status = self.status
        checksum = status.get("files", {}).get(name)  # several if it was about to be replaced
        if checksum is not None:
            seal.check_digest(self.path / name, checksum, way_out)
        elif status.get("format") != _UNSEALED:
            raise DataError(f"{self.path} has no {name} that counts: the run is {status.get('state')}")

    def _read_table(self, path: Path, schema: pa.Schema) -> pa.Table:
        self._verify(path.name)
        check_readable(path)
        try:
            return read_table(path, schema)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path} can't be read: {error}") from None

    def _read(self, name: str) -> str:
        try:
            return read_text(self.path / name)
        except DataError:
            raise
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{self.path} is not a run folder: it has no {name}{self._instead()}") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path / name} can't be read: {error}") from None

    def _instead(self) -> str:
        """What may have been meant by a path that is no run folder."""
        if self.path.is_file():
            return ". This is a file; of kept runs there are reports, tables, figures and certificates (--of)"
        below = sorted(path.parent for path in self.path.glob("*/status.json"))
        return f". There are runs below it: name them, such as {below[0]}" if below else ""

    def _read_json(self, name: str) -> dict[str, Any]:
        text = self._read(name)
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.path / name} is not valid JSON: {error}") from None
        if not isinstance(content, dict):
            raise DataError(f"{self.path / name} must hold a JSON object")
        if name == "status.json" and not isinstance(content.get("files", {}), dict):
            raise DataError(f"{self.path / name} must list checksums by file")
        number = (content if name == "status.json" else self.status).get("format")
        must = number == FORMAT or (number == _UNSEALED and seal.KEY in content)  # others may be sealed in another way
        if must and not seal.is_sealed(content):
            raise DataError(f"{self.path / name} is damaged or was edited: its checksum is wrong")
        return content

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        write_text(self.path / name, json.dumps(seal.sealed(content), indent=2, ensure_ascii=False) + "\n")


def _hidden_sibling(path: Path) -> Path:
    """A new empty folder beside `path`."""
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:40]}."))
    give_usual_mode(folder, 0o777)
    return folder
