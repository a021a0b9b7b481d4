"""Checkpoints: all that a resume needs, at the same cost after round 100,000 as after round 10.

checkpoint-ROUND.json      what counts: the state, how far the journal counts, and checksums of all of it
state-ROUND.safetensors    model, algorithm and client memories after the round
journal-ROUND              the records; see `propfair.runs.journal`

A checkpoint counts once its JSON file is there. The newest two are kept. Whenever a run is killed, either the old
checkpoint counts or the new one does. Reading deletes nothing: a file that can't be read now may be whole.
"""

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from torch import Tensor

from propfair.errors import DataError
from propfair.files import check_memory, read_text, replacing, write_text
from propfair.runs import parts
from propfair.runs.journal import (
    DamagedError,
    Journal,
    Mark,
    Rows,
    check_rows,
    client_tables,
    read_rows,
    round_tables,
    salvage,
)
from propfair.runs.logged import LoggedFile
from propfair.runs.records import ROW, WHOLE_ROUND, Names, Records
from propfair.runs.seal import check_digest, digest_file, is_sealed, sealed
from propfair.runs.tensors import load_tensors, save_tensors

_KEPT = 2
_MAKERS = (client_tables, round_tables)
_OWN = re.compile(r"(?:checkpoint|state|journal|records|rounds)-(\d+)(?:-\d+)?(?:\.json|\.safetensors|\.parquet)?")


@dataclass(frozen=True)
class Checkpoint:
    """All that a resume needs: named tensors after a round, and the seconds that the run took so far.

    `measured` is False where the records lack what was measured after that round.
    """

    round: int
    tensors: dict[str, Tensor]
    seconds: float = 0.0
    measured: bool = True


class Found(NamedTuple):
    """Where a run goes on.

    Attributes:
        checkpoint: None at the beginning.
        warnings: what was passed over, and why.
    """

    checkpoint: Checkpoint | None
    warnings: list[str]


class Tables(NamedTuple):
    """The records of a run as far as they are written."""

    clients: pa.Table
    rounds: pa.Table


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: where they are; the first one makes it. The log of the run, metrics.csv, lies beside it.

    Attributes:
        lost: the rounds whose records were damaged and left out, in words; empty: none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lost = ""
        self._journal: Journal | None = None
        self._log = LoggedFile(folder.parent / "metrics.csv")

    def save(self, checkpoint: Checkpoint, records: Records) -> None:
        """Write the rows since the last checkpoint, then the checkpoint; older checkpoints are pruned."""
        self._check_own()
        self.folder.mkdir(exist_ok=True)
        if self._journal is None:
            self._journal = self._new_journal(0)
        mark = self._journal.append(records.rows(self._journal.names))
        state = self.folder / f"state-{checkpoint.round:08d}.safetensors"
        save_tensors(state, checkpoint.tensors)
        content = {
            "round": checkpoint.round,
            "seconds": checkpoint.seconds,
            "on_device": [name for name, tensor in checkpoint.tensors.items() if tensor.device.type != "cpu"],
            "state": digest_file(state),
            "journal": mark.as_dict(),
            "logged": self._log.mark(),
            "lost": self.lost,
        }
        path = self._path(checkpoint.round)
        write_text(path, json.dumps(sealed(content), indent=1) + "\n")
        records.clear()
        self._prune(path)

    def load(self, device: str = "cpu", reached: int = 0) -> Found:
        """Get ready to go on from the newest checkpoint whose state can be read; the others stay where they are.

        Those after `reached` come last: the logs of other tools may not go as far.

        Args:
            device: where the tensors go that were not on the CPU.
            reached: the round of the last checkpoint, as the status says.
        """
        self._check_own()
        warnings: list[str] = []
        newest = self._newest_first()
        if reached and self._path(reached) not in newest:
            warnings.append(f"{self._path(reached)} is missing; going back to the checkpoint before it")
        for path in sorted(newest, key=lambda path: _number(path) > reached):
            try:
                content = _read_json(path)
                checkpoint = self._read_state(content, device, _number(path))
            except DataError as error:
                warnings.append(f"checkpoint {path} is not used: {error}; going back to the one before it")
                continue
            warnings += self._go_on_with_journal(path, content, checkpoint.round, in_place=path == newest[0])
            warnings += self._log.go_on(content.get("logged") or {}, checkpoint.round)
            return Found(checkpoint, warnings)
        if warnings:
            warnings.append(f"no checkpoint in {self.folder} can be used: starting from the beginning")
        return Found(None, warnings)

    def tables(self, run: str, reached: int = 0) -> Tables:
        """The records up to the checkpoint of round `reached`; damage is a `DataError` that names the file."""
        if not reached:
            return Tables(Records(run).clients, Records(run).diagnostics)
        path = self._path(reached)
        content = _read_json(path)
        if parts.is_old(content):
            return Tables(*parts.old_tables(self.folder, content))
        mark = _mark(path, content)
        check_memory(self.folder / mark.file, mark.rows * ROW.itemsize)
        return Tables(*(pa.concat_tables(make(run, mark.names, self._rows(mark))) for make in _MAKERS))

    def write_tables(self, run: str, clients: Path, rounds: Path) -> None:
        """Write the records of the whole run as Parquet, a piece at a time."""
        import pyarrow.parquet as pq

        mark = None if self._journal is None else self._journal.mark
        for path, make in zip((clients, rounds), _MAKERS, strict=True):
            names, rows = (Names(), iter(())) if mark is None else (mark.names, self._rows(mark))
            tables = make(run, names, rows)
            first = next(tables)  # there is one, even if it is empty
            with replacing(path) as temporary, pq.ParquetWriter(temporary, first.schema) as writer:
                for table in itertools.chain([first], tables):
                    writer.write_table(table)

    def reopen(self, number: int) -> None:
        """Let a run that was finished after this round go on: its records are as if the round had not been the last.

        What was measured after that round is dropped, for whoever goes on to measure again.
        """
        path = self._path(number)
        content = _read_json(path)
        mark = _mark(path, content)
        measured = [code for (split, _), code in mark.names.clients.items() if split != "round"]
        journal = self._new_journal(number, mark.names)
        for rows in self._rows(mark):
            of_model = (rows["client"] != WHOLE_ROUND) & np.isin(rows["name"], measured)
            journal.append(rows[~(of_model & (rows["round"] == number))])
        content = {**content, "journal": journal.mark.as_dict(), "measured": False}
        write_text(path, json.dumps(sealed(content), indent=1) + "\n")
        self._prune(path)

    def remove(self, keep: int | None = None) -> None:
        """Delete the checkpoints, and what was half written when a run was killed; other files are left alone.

        The checkpoint of round `keep` stays, with what it stands on.
        """
        if not self.folder.is_dir():
            return
        kept: set[str] = set()
        if keep is not None and self._journal is not None:
            kept = {self._path(keep).name, f"state-{keep:08d}.safetensors", self._journal.path.name}
        for path in self.folder.iterdir():
            if (_OWN.fullmatch(path.name) or path.name.startswith(".")) and path.name not in kept:
                path.unlink()
        with contextlib.suppress(OSError):  # what is left is not ours
            self.folder.rmdir()

    def _check_own(self) -> None:
        """Nothing is written where a stranger's link leads."""
        if self.folder.is_symlink():
            raise DataError(f"{self.folder} is a link, and a run keeps its checkpoints in a folder of its own")

    def _rows(self, mark: Mark) -> Iterator[Rows]:
        try:
            check_rows(self.folder, mark)
            yield from read_rows(self.folder, mark)
        except DamagedError as error:
            raise DataError(str(error)) from None
        except OSError as error:
            raise DataError(f"{self.folder / mark.file} can't be read: {error.strerror or error}") from None

    def _path(self, number: int) -> Path:
        return self.folder / f"checkpoint-{number:08d}.json"

    def _newest_first(self) -> list[Path]:
        found = [path for path in self.folder.glob("checkpoint-*.json") if _OWN.fullmatch(path.name)]
        return sorted(found, key=_number, reverse=True)

    def _read_state(self, content: dict[str, Any], device: str, number: int) -> Checkpoint:
        try:
            if parts.is_old(content):
                name, checksum = parts.old_state(content)
            else:
                name, checksum = f"state-{number:08d}.safetensors", content["state"]
            check_digest(self.folder / name, checksum)
            tensors = load_tensors(self.folder / name)
            for key in content["on_device"]:
                tensors[key] = tensors[key].to(device)
            return Checkpoint(number, tensors, float(content["seconds"]), content.get("measured", True))
        except DataError:
            raise
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"it is damaged ({error!r})") from None

    def _go_on_with_journal(self, path: Path, content: dict[str, Any], number: int, *, in_place: bool) -> list[str]:
        """Open the journal at a checkpoint; warnings about what is damaged in it.

        A journal that is damaged, or that a later checkpoint stands on, is left alone: what is good of it is copied.
        """
        warnings: list[str] = []
        if parts.is_old(content):
            names = Names()
            pieces: Iterable[Rows] = [parts.salvage(self.folder, content, names, warnings)]
        else:
            mark = _mark(path, content)
            names, self.lost = mark.names, str(content.get("lost", ""))
            try:
                if in_place:
                    self._journal = Journal(self.folder / mark.file, mark)
                    return []
                check_rows(self.folder, mark)
                pieces = self._rows(mark)
            except (DamagedError, FileNotFoundError) as error:
                warnings.append(str(error))
                pieces = [salvage(self.folder, mark)]
            except OSError as error:
                raise DataError(
                    f"{self.folder / mark.file} can't be read: {error.strerror or error}. Make it readable, or delete "
                    "it to go on without the records up to here."
                ) from None
        self._journal = self._new_journal(number, names)
        rounds: set[int] = set()
        for rows in pieces:
            self._journal.append(rows)
            rounds.update(np.unique(rows["round"]).tolist())
        if warnings:
            self.lost = _ranges(set(range(1, number + 1)) - rounds)
            return [f"{'; '.join(warnings)}; the records of {self.lost or 'no round'} are lost, the model is whole"]
        return []

    def _new_journal(self, number: int, names: Names | None = None) -> Journal:
        """One under a name that no other has."""
        path = self.folder / f"journal-{number:08d}"
        for again in itertools.count(2):
            if not path.exists():
                break
            path = path.with_name(f"journal-{number:08d}-{again}")
        return Journal(path, names=names)

    def _prune(self, written: Path) -> None:
        """Delete all but the newest checkpoints and the one just written, and journals that none of them needs."""
        newest = self._newest_first()
        kept = {*newest[:_KEPT], written}
        for path in newest:
            if path not in kept:
                path.unlink()
                (self.folder / f"state-{_number(path):08d}.safetensors").unlink(missing_ok=True)
        journals = list(self.folder.glob("journal-*"))
        if len(journals) > 1:
            with contextlib.suppress(DataError):  # one that can't be read may need any of them
                needed = {_mark(path, _read_json(path)).file for path in kept}
                for path in journals:
                    if path.name not in needed:
                        path.unlink()


def _read_json(path: Path) -> dict[str, Any]:
    """The content of a checkpoint file; a `DataError` if it is damaged or can't be read."""
    try:
        content = json.loads(read_text(path))
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict) or not (parts.is_old(content) or is_sealed(content)):
        raise DataError(f"{path} is damaged: its checksum is wrong")
    return content


def _mark(path: Path, content: dict[str, Any]) -> Mark:
    try:
        return Mark.of(content["journal"])
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error!r})") from None


def _number(path: Path) -> int:
    """The round in a name such as state-00000010.safetensors."""
    match = _OWN.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _ranges(rounds: set[int]) -> str:
    """Rounds 1, 2, 3 and 7 as "rounds 1 to 3, 7"."""
    numbers = sorted(rounds)
    starts = [number for number in numbers if number - 1 not in rounds]
    ends = [number for number in numbers if number + 1 not in rounds]
    spans = [str(first) if first == last else f"{first} to {last}" for first, last in zip(starts, ends, strict=True)]
    return f"rounds {', '.join(spans)}" if spans else ""
