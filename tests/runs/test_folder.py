"""The run folder: atomic, never overwritten by accident, readable at any time."""

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors import SafetensorError

from propfair import files
from propfair.errors import ConfigError, DataError, TrainingError
from propfair.runs.config import make_config
from propfair.runs.folder import RunFolder
from propfair.runs.launch import run
from propfair.runs.reading import read_run

TINY = ["model=logistic", "schedule.rounds=2", "schedule.eval_every=1", "data.num_clients=4"]


def test_a_run_writes_everything_and_it_can_be_read_back(tmp_path: Path) -> None:
    config = make_config({}, [*TINY, "algorithm=propfair", "algorithm.placement=step"])
    result = run(config, tmp_path / "one")
    stored = RunFolder.open(tmp_path / "one")
    assert stored.status["state"] == "finished"
    assert stored.status["rounds"] == 2
    assert stored.tables().clients.equals(result.records)
    assert set(result.records["metric"].unique().to_pylist()) >= {"weight", "loss", "accuracy", "slope"}
    assert result.records.column_names == ["run", "round", "client", "split", "metric", "value"]
    assert stored.environment["packages"]["torch"] == torch.__version__
    assert stored.clients["sizes"]["train"] == [sum(row) for row in stored.clients["train_labels"]]
    for name, tensor in result.model.state_dict().items():
        assert torch.equal(stored.model()[name], tensor)
    assert config.to_toml() == stored.config_text
    assert not list((tmp_path / "one").glob(".*"))
    kept = sorted(path.name for path in (tmp_path / "one" / "checkpoints").iterdir())
    assert kept == ["checkpoint-00000002.json", "journal-00000000", "state-00000002.safetensors"]  # for more rounds
    assert pq.read_table(tmp_path / "one" / "records.parquet").num_rows == result.records.num_rows


def test_same_seed_same_bits_other_seed_other_bits(tmp_path: Path) -> None:
    one = run(make_config({}, TINY), tmp_path / "one", name="same")
    two = run(make_config({}, TINY), tmp_path / "two", name="same")
    other = run(make_config({}, [*TINY, "seed=1"]), tmp_path / "three", name="same")
    assert one.records.equals(two.records)
    assert one.rounds_table.equals(two.rounds_table)
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "two/model.safetensors").read_bytes()
    assert (tmp_path / "one/records.parquet").read_bytes() == (tmp_path / "two/records.parquet").read_bytes()
    assert not one.records.equals(other.records)
    assert one.records["client"].equals(other.records["client"])


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    run(make_config({}, TINY), tmp_path / "one")
    before = (tmp_path / "one" / "records.parquet").read_bytes()
    with pytest.raises(ConfigError, match=r"exists already.*--force"):
        run(make_config({}, [*TINY, "seed=1"]), tmp_path / "one")
    assert (tmp_path / "one" / "records.parquet").read_bytes() == before
    run(make_config({}, [*TINY, "seed=1"]), tmp_path / "one", force=True)
    assert (tmp_path / "one" / "records.parquet").read_bytes() != before


def test_force_deletes_nothing_but_run_folders(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="not a run folder"):
        run(make_config({}, TINY), tmp_path / "thesis", force=True)
    assert (tmp_path / "thesis" / "chapter1.tex").exists()


def test_wrong_data_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="5000 clients"):
        run(make_config({}, [*TINY, "data.num_clients=5000"]), tmp_path / "one")
    with pytest.raises(ConfigError, match="only 4"):
        run(make_config({}, [*TINY, "server.participation=9"]), tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_a_folder_that_can_not_be_written_fails_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"can't write to .*file.*Choose another folder with --out"):
        run(make_config({}, TINY), tmp_path / "file" / "one")


@pytest.mark.parametrize(
    ("kind", "text"),
    [(OSError, (errno.ENOSPC, "No space left on device")), (SafetensorError, ("I/O error: No space left on device",))],
)
def test_a_full_disk_is_one_clear_error_and_leaves_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], text: tuple[Any, ...]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise kind(*text)

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(TrainingError, match="No space left on device"):
        run(make_config({}, TINY), tmp_path / "one")
    assert not list((tmp_path / "one").glob(".*"))
    assert read_run(tmp_path / "one").status.state == "running"


def test_replacing_keeps_the_old_file_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with contextlib.suppress(RuntimeError), files.replacing(path) as temporary:
        temporary.write_text("half of the n")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


SEALED = ["config.toml", "clients.json", "environment.json", "records.parquet", "rounds.parquet", "model.safetensors"]


@pytest.mark.parametrize("name", [*SEALED, "status.json"])
def test_damage_to_a_finished_run_is_named(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "one"
    run(make_config({}, TINY), folder)
    stored = json.loads((folder / "status.json").read_text())
    assert set(stored["files"]) == {*SEALED, "metrics.csv"}
    whole = (folder / name).read_bytes()
    for place in (0, len(whole) // 2, len(whole) - 3):
        (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(DataError, match=name):
            _read_all(folder)
    (folder / name).write_bytes(whole[:-10])
    with pytest.raises(DataError, match=name):
        _read_all(folder)
    (folder / name).unlink()
    with pytest.raises(DataError, match=name):
        _read_all(folder)
    (folder / name).write_bytes(whole)
    _read_all(folder)


def _read_all(folder: Path) -> None:
    read_run(folder)
    RunFolder.open(folder).model()


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    run(make_config({}, TINY), tmp_path / "one")
    path = tmp_path / "one" / "records.parquet"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match=r"records\.parquet is a pipe, not a file"):
        read_run(tmp_path / "one")


def test_foreign_and_damaged_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a run folder"):
        RunFolder.open(tmp_path)
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        RunFolder.open(tmp_path)
    (tmp_path / "status.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(DataError, match="has format 99"):
        RunFolder.open(tmp_path)


def test_divergence_is_recorded_and_total_divergence_keeps_the_last_good_model(tmp_path: Path) -> None:
    result = run(make_config({}, [*TINY, "local.lr=1e38", "algorithm=fedavg"]), tmp_path / "hot")
    assert result.state == "failed"
    assert "Lower local.lr" in result.reason
    stored = RunFolder.open(tmp_path / "hot")
    assert stored.status["state"] == "failed"
    assert all(torch.isfinite(tensor).all() for tensor in stored.model().values())
