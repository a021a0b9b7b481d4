"""Run folders that were made to do harm and are consistent in themselves: nothing outside of them is touched.

That they run no code and connect nowhere is tested in tests/runs/test_trust.py.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from propfair.runs.launch import run
from propfair.runs.records import ROW
from propfair.runs.seal import sealed
from tests.cli.inside import call
from tests.runs.killed import tiny
from tests.sealing import reseal

TREASURE = b"not a row of any journal " * 100


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is finished and one that was stopped."""
    home = tmp_path_factory.mktemp("runs")
    run(tiny("algorithm=fedavg", rounds=4), home / "finished")

    def stop(now: Any) -> None:
        if now.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tiny("algorithm=fedavg", rounds=8), home / "stopped", after_round=stop)
    return home


def change(path: Path, **changes: Any) -> None:
    """Change a JSON file and give it the right checksum."""
    path.write_text(json.dumps(sealed({**json.loads(path.read_text()), **changes})))


def change_checkpoints(folder: Path, **changes: Any) -> None:
    for path in (folder / "checkpoints").glob("checkpoint-*.json"):
        change(path, journal={**json.loads(path.read_text())["journal"], **changes})


def journal_of(folder: Path) -> Path:
    return next((folder / "checkpoints").glob("journal-*"))


def state_of(folder: Path) -> Path:
    return max((folder / "checkpoints").glob("state-*"))


def link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def wrong_rows(folder: Path) -> None:
    """Rows that stand for a metric that has no name, with the right checksums."""
    rows = np.fromfile(journal_of(folder), ROW)
    rows["name"][0] = 10**6
    rows.tofile(journal_of(folder))
    for path in (folder / "checkpoints").glob("checkpoint-*.json"):
        mark = json.loads(path.read_text())["journal"]
        content = journal_of(folder).read_bytes()[: mark["rows"] * ROW.itemsize]
        change(path, journal={**mark, "sha256": hashlib.sha256(content).hexdigest()})


def link_empty_journal(folder: Path, outside: Path) -> None:
    change_checkpoints(folder, **EMPTY)
    link(journal_of(folder), outside)


def pipe_journal(folder: Path, outside: Path) -> None:
    journal = journal_of(folder)
    journal.unlink()
    os.mkfifo(journal)


def link_checkpoints(folder: Path, outside: Path) -> None:
    shutil.rmtree(folder / "checkpoints")
    link(folder / "checkpoints", outside.parent)


def link_model(folder: Path, outside: Path) -> None:
    link(folder / "model.safetensors", outside)
    reseal(folder)


def write_and_seal(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    reseal(path.parent)


def grow(path: Path) -> None:
    """To a terabyte of nothing, which takes no room on the disk."""
    os.truncate(path, 1 << 40)


EMPTY = {"rows": 0, "sha256": hashlib.sha256().hexdigest()}
DEEP = b"a" + b".a" * 3000 + b" = 1"
HEADER_OF_A_PETABYTE = b"\xff" * 6 + b"\x03\x00{}"
TRICKS: dict[str, Callable[[Path, Path], object]] = {
    "a journal elsewhere": lambda folder, out: change_checkpoints(folder, file=str(out), **EMPTY),
    "a journal above": lambda folder, out: change_checkpoints(folder, file=f"../../../{out.name}", **EMPTY),
    "a journal that is a link": lambda folder, out: link(journal_of(folder), out),
    "an empty journal that is a link": link_empty_journal,
    "minus one row": lambda folder, out: change_checkpoints(folder, rows=-1),
    "a text of rows": lambda folder, out: change_checkpoints(folder, rows="1"),
    "no names": lambda folder, out: change_checkpoints(folder, names={"clients": [], "rounds": []}),
    "names that are numbers": lambda folder, out: change_checkpoints(folder, names={"clients": [[1, 2]], "rounds": []}),
    "rows without a name": lambda folder, out: wrong_rows(folder),
    "a pipe": pipe_journal,
    "checkpoints elsewhere": link_checkpoints,
    "a state that never was": lambda folder, out: change(folder / "status.json", state="winning"),
    "rounds before the first": lambda folder, out: change(folder / "status.json", rounds=-3),
    "very many rounds": lambda folder, out: change(folder / "status.json", rounds=10**30),
    "files that are none": lambda folder, out: change(folder / "status.json", files={"../../x": "0"}),
    "files of another kind": lambda folder, out: change(folder / "status.json", files=[1]),
    "a model elsewhere": link_model,
    "a large header": lambda folder, out: write_and_seal(folder / "model.safetensors", HEADER_OF_A_PETABYTE),
    "a table that is none": lambda folder, out: write_and_seal(folder / "records.parquet", b"PAR1"),
    "deep JSON": lambda folder, out: (folder / "clients.json").write_text("[" * 100_000),
    "settings nested without end": lambda folder, out: write_and_seal(folder / "config.toml", DEEP),
    "settings that are dates": lambda folder, out: write_and_seal(folder / "config.toml", b"seed = 2020-01-01"),
    "a section that is a text": lambda folder, out: write_and_seal(folder / "config.toml", b"data = 'digits'"),
    "no checksum at all": lambda folder, out: change(folder / "status.json", files={"config.toml": []}),
    "a terabyte of settings": lambda folder, out: grow(folder / "config.toml"),
    "a terabyte of state": lambda folder, out: grow(state_of(folder)),
    "a terabyte of records": lambda folder, out: grow(folder / "records.parquet"),
    "a name that is a path": lambda folder, out: change(folder / "status.json", name="../../../x\x1b[31m<script>"),
}


@pytest.mark.parametrize("name", ["finished", "stopped"])
@pytest.mark.parametrize("trick", TRICKS)
def test_nothing_outside_is_touched(runs: Path, tmp_path: Path, name: str, trick: str) -> None:
    treasure = tmp_path / "outside" / "treasure"
    treasure.parent.mkdir()
    treasure.write_bytes(TREASURE)
    home = tmp_path / "home"
    shutil.copytree(runs / name, home / "run")
    try:
        TRICKS[trick](home / "run", treasure)
    except (FileNotFoundError, StopIteration):
        pytest.skip("a finished run has no checkpoints, a stopped one no records")
    for command in (
        ["report", "run", "-o", "page.html"],
        ["figure", "curves", "run", "-o", "f.svg"],
        ["keep", "run", "-o", "kept.parquet"],
        ["resume", "run"],
    ):
        done = call(*command, cwd=home)
        assert done.is_clean, (command, done)
        assert "\x1b" not in done.stdout + done.stderr
    assert treasure.read_bytes() == TREASURE
    assert [path.name for path in treasure.parent.iterdir()] == ["treasure"]
    assert {path.name for path in home.iterdir()} <= {"run", "page.html", "f.svg", "kept.parquet"}


@pytest.mark.parametrize(
    "command", [["report", "run"], ["keep", "run", "-o", "kept.parquet"], ["figure", "curves", "run"]]
)
def test_a_terabyte_of_journal_is_not_read(runs: Path, tmp_path: Path, command: list[str]) -> None:
    shutil.copytree(runs / "stopped", tmp_path / "run")
    change_checkpoints(tmp_path / "run", rows=1 << 35)
    grow(journal_of(tmp_path / "run"))
    done = call(*command, cwd=tmp_path)
    assert done.is_clean, done
    assert "journal-00000000 is refused: it would take" in done.stderr
