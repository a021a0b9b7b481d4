"""Training on from another run's model."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from propfair.errors import ConfigError, DataError, PropFairWarning
from propfair.runs.contestant import Contestant
from propfair.runs.finetune import config_from, finetune
from propfair.runs.folder import RunFolder
from propfair.runs.launch import ensure_run, resume, run
from propfair.runs.progress import AfterRound
from propfair.runs.reading import read_run
from tests.runs.killed import content, tiny


@contextlib.contextmanager
def quiet(title: str, rounds: int) -> Iterator[AfterRound]:
    yield lambda _: None


@pytest.fixture
def start(tmp_path: Path) -> Path:
    run(tiny("algorithm=propfair", "algorithm.M=3", rounds=4), tmp_path / "start")
    return tmp_path / "start"


def test_it_goes_on_from_the_model_with_the_settings_of_the_start(start: Path, tmp_path: Path) -> None:
    config = config_from(start, None, {"algorithm": "fedavg", "schedule.rounds": 2, "schedule.eval_every": 1})
    assert config.parts.algorithm.name == "fedavg"
    assert config.local.batch_size == 32
    result = run(config, tmp_path / "end")
    first = RunFolder.open(tmp_path / "end").start()
    assert first is not None
    for name, tensor in RunFolder.open(start).model().items():
        assert torch.equal(first[name], tensor)
    losses = result.records.to_pandas().query("round == 1 and split == 'test' and metric == 'loss'")["value"]
    scratch = run(tiny("algorithm=fedavg", "schedule.eval_every=1", rounds=2), tmp_path / "scratch")
    cold = scratch.records.to_pandas().query("round == 1 and split == 'test' and metric == 'loss'")["value"]
    assert losses.mean() < cold.mean()
    described = RunFolder.open(tmp_path / "end").environment["start"]
    assert described["label"] == "propfair(M=3.0)"
    assert described["rounds"] == 4
    assert described["same_clients"]
    assert read_run(tmp_path / "end").label == "fedavg from propfair(M=3.0)"


def test_other_clients_are_allowed_and_reported(start: Path, tmp_path: Path) -> None:
    run(config_from(start, None, {"data.num_clients": 5, "schedule.rounds": 1}), tmp_path / "end")
    assert not RunFolder.open(tmp_path / "end").environment["start"]["same_clients"]


def test_another_model_is_refused(start: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        run(config_from(start, None, {"model": "mlp"}), tmp_path / "end")
    assert not (tmp_path / "end").exists()


def test_a_fine_tuned_run_resumes_though_its_start_is_gone(start: Path, tmp_path: Path) -> None:
    config = config_from(start, None, {"algorithm": "fedavg", "schedule.rounds": 5})
    run(config, tmp_path / "whole", name="tiny")
    run(config, tmp_path / "cut", name="tiny", after_round=lambda now: os.kill(os.getpid(), signal.SIGTERM))
    for path in (tmp_path / "cut" / "checkpoints").iterdir():
        path.unlink()  # back to the first round
    start.rename(tmp_path / "elsewhere")
    with pytest.warns(PropFairWarning) as warned:
        resume(tmp_path / "cut")
    assert "starting from the beginning" in str(warned[-1].message)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_every_start_with_every_algorithm_and_not_twice(start: Path, tmp_path: Path) -> None:
    run(tiny("algorithm=fedavg", rounds=4), tmp_path / "other")
    both = Contestant.parse_all(["afl", "term:alpha=0.1"])
    starts = [start, tmp_path / "other"]
    tuned = finetune(starts, both, overrides={"schedule.rounds": 1}, out=tmp_path / "ft", show_run=quiet)
    assert [(one.start.label, one.end.label) for one in tuned] == [
        ("propfair(M=3.0)", "afl from propfair(M=3.0)"),
        ("propfair(M=3.0)", "term(alpha=0.1) from propfair(M=3.0)"),
        ("fedavg", "afl from fedavg"),
        ("fedavg", "term(alpha=0.1) from fedavg"),
    ]
    before = {path: content(path) for one in tuned if (path := one.end.folder)}
    times = {path: (path / "status.json").stat().st_mtime_ns for path in before}
    again = finetune(starts, both, overrides={"schedule.rounds": 1}, out=tmp_path / "ft", show_run=quiet)
    assert {one.end.folder for one in again} == before.keys()
    assert {path: content(path) for path in before} == before
    assert {path: (path / "status.json").stat().st_mtime_ns for path in before} == times


def test_starts_must_share_their_clients_and_be_finished(start: Path, tmp_path: Path) -> None:
    run(tiny("data.num_clients=5", rounds=1), tmp_path / "other")
    with pytest.raises(DataError, match="do not have the same clients"):
        finetune([start, tmp_path / "other"], Contestant.parse_all(["afl"]), out=tmp_path / "ft", show_run=quiet)
    run(tiny(rounds=3), tmp_path / "cut", after_round=lambda now: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(ConfigError, match=r"not finished.*propfair resume"):
        finetune([tmp_path / "cut"], Contestant.parse_all(["afl"]), out=tmp_path / "ft", show_run=quiet)


def test_ensure_run_refuses_a_folder_with_other_settings(start: Path) -> None:
    config = tiny("algorithm=propfair", "algorithm.M=4", rounds=4)
    with pytest.raises(ConfigError, match="other settings"):
        ensure_run(config, start, name="x", federation=lambda: pytest.fail("loads data in vain"))
