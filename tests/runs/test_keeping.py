"""Records of runs in one file: the same runs come back, and damage is named."""

import base64
import json
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from propfair.errors import ConfigError, DataError
from propfair.runs.grouping import group_runs
from propfair.runs.keeping import keep_runs, read_kept
from propfair.runs.reading import read_run, read_runs
from propfair.runs.seal import sealed
from tests.cli.inside import call
from tests.report.builders import write_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in range(2):
        write_run(tmp_path / "runs" / f"fedavg-{seed}", seed=seed)
        write_run(tmp_path / "runs" / f"propfair-{seed}", name="propfair", algorithm="propfair", seed=seed, spread=0.1)
    return tmp_path / "runs"


def test_the_runs_of_a_file_are_those_of_the_folders(runs: Path, tmp_path: Path) -> None:
    read, problems = read_runs([runs])
    keep_runs(read, tmp_path / "kept" / "two.parquet")
    again, others = read_runs([tmp_path / "kept" / "two.parquet"])
    assert problems == others == []
    for one, two in zip(read, again, strict=True):
        assert (two.folder, two.label, two.seed) == (None, one.label, one.seed)
        assert two.summary() == one.summary()
        assert two.clients == one.clients
        evaluated = pc.field("split") == "test"
        assert two.records.filter(evaluated).to_pylist() == one.records.filter(evaluated).to_pylist()
        assert two.diagnostics.to_pylist() == one.diagnostics.to_pylist()
    assert [len(group.runs) for group in group_runs(again)] == [2, 2]


def test_what_clients_reported_is_kept_on_request(runs: Path, tmp_path: Path) -> None:
    run = read_run(runs / "fedavg-0")
    keep_runs([run], tmp_path / "small.parquet")
    keep_runs([run], tmp_path / "all.parquet", rounds=True)
    (small,), (whole,) = read_kept(tmp_path / "small.parquet"), read_kept(tmp_path / "all.parquet")
    assert "round" not in small.records["split"].unique().to_pylist()
    assert whole.records.to_pylist() == run.records.to_pylist()


def test_answers_are_left_out_on_request(tmp_path: Path) -> None:
    from propfair.runs import launch
    from propfair.runs.config import make_config

    launch.run(make_config({}, ["data=digits", "data.num_clients=3", "schedule.rounds=1"]), tmp_path / "run")
    run = read_run(tmp_path / "run")
    keep_runs([run], tmp_path / "all.parquet")
    keep_runs([run], tmp_path / "few.parquet", answers=False)
    (whole,), (few,) = read_kept(tmp_path / "all.parquet"), read_kept(tmp_path / "few.parquet")
    rest = [row for row in whole.records.to_pylist() if row["split"] != "answers"]
    assert few.records.to_pylist() == rest
    assert len(rest) < len(whole.records)


def test_no_path_of_the_machine_is_kept(tmp_path: Path) -> None:
    from propfair.runs.config import make_config
    from propfair.runs.launch import run

    config = make_config({}, ["data=digits", "data.num_clients=3", "schedule.rounds=1", f"data.folder={tmp_path}"])
    run(config, tmp_path / "first")
    run(config.changed(start=tmp_path / "first"), tmp_path / "run")
    keep_runs([read_run(tmp_path / "run")], tmp_path / "kept.parquet")
    (kept,) = read_kept(tmp_path / "kept.parquet")
    assert str(tmp_path) not in kept.config_text
    assert kept.environment.start is not None
    assert kept.environment.start.run == "first"
    assert not any(Path(word.rpartition("=")[2]).is_absolute() for word in kept.environment.command)


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said["runs"][0].update(config=5),
        lambda said: said["runs"][0].update(config="x = ["),
        lambda said: said["runs"][0].update(clients="a"),
        lambda said: said.update(runs=3),
        lambda said: said.update(clients=[]),
        lambda said: said["clients"][0].update(names=["too few"]),
    ],
)
def test_a_file_that_was_made_to_do_harm_is_named(
    runs: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    path = tmp_path / "kept.parquet"
    keep_runs(read_runs([runs])[0], path)
    table = pq.read_table(path)
    said = json.loads(zlib.decompress(base64.b64decode(table.schema.metadata[b"propfair"])))
    change(said)
    text = base64.b64encode(zlib.compress(json.dumps(sealed(said)).encode()))
    pq.write_table(table.replace_schema_metadata({b"propfair": text}), path)
    found, (problem,) = read_runs([path])
    assert not found
    assert "kept.parquet" in str(problem)


def test_what_unpacks_to_more_than_memory_is_not_unpacked(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_runs(read_runs([runs])[0], tmp_path / "kept.parquet")
    monkeypatch.setattr(os, "sysconf", lambda name: 1 if name == "SC_PHYS_PAGES" else 4096)
    for place in (tmp_path / "kept.parquet", runs / "fedavg-0"):
        found, (problem,) = read_runs([place])
        assert not found
        assert re.search(r"\.parquet is refused: it would take .* more than 50% of this machine's memory", str(problem))


def test_runs_that_may_go_on_are_not_kept(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "half", state="interrupted"))
    with pytest.raises(ConfigError, match="half is interrupted: only runs at their end are kept"):
        keep_runs([run], tmp_path / "kept.parquet")


def test_a_run_that_failed_is_kept_as_such(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "diverged", state="failed")
    write_run(tmp_path / "runs" / "whole", seed=1)
    shown = call("keep", str(tmp_path / "runs"), "--out", str(tmp_path / "kept.parquet"))
    assert shown.code == 0
    assert "2 runs (1 of them failed)" in shown.stdout
    assert {run.status.state for run in read_kept(tmp_path / "kept.parquet")} == {"failed", "finished"}


def test_damage_is_named(runs: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.parquet"
    keep_runs(read_runs([runs])[0], path)
    whole = path.read_bytes()
    before = [run.summary() for run in read_kept(path)]
    named = []
    for place in range(4, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = [run.summary() for run in read_kept(path)]
        except DataError as error:
            named.append("kept.parquet" in str(error))
        else:
            assert found == before, place
    assert named
    assert all(named)


def test_the_command_writes_a_file_that_report_takes(runs: Path, tmp_path: Path) -> None:
    said = call("keep", runs, "-o", "kept.parquet", cwd=tmp_path)
    assert said.stdout.startswith("4 runs, "), said
    assert call("report", "kept.parquet", "-o", "page.html", cwd=tmp_path).code == 0
    assert "propfair" in (tmp_path / "page.html").read_text()
