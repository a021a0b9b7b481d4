"""What other tools get to see of a run."""

import csv
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from propfair.errors import ConfigError, MissingExtraError, PropFairWarning
from propfair.runs.config import make_config
from propfair.runs.folder import RunFolder
from propfair.runs.launch import resume, run
from propfair.runs.loggers import LOGGERS, About, CsvSink, Sink, Sinks
from propfair.runs.progress import Progress
from tests.runs.killed import tiny


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def stop(now: Progress) -> None:
    if now.round == 3:
        os.kill(os.getpid(), signal.SIGTERM)


def test_every_run_has_a_csv_file_of_its_curves(tmp_path: Path) -> None:
    result = run(tiny("algorithm=propfair", rounds=4), tmp_path / "run")
    found = {(int(row["round"]), row["name"]): float(row["value"]) for row in rows(tmp_path / "run")}
    assert found[4, "test/accuracy/mean"] == result.summary().mean
    assert found[4, "test/accuracy/worst10"] == result.summary().worst10
    assert (3, "test/loss/mean") in found
    assert (2, "test/loss/mean") not in found  # evaluated every three rounds, and at the end
    assert {number for number, name in found if name == "round/M"} == {1, 2, 3, 4}


def test_the_csv_file_forgets_rounds_that_are_run_again(tmp_path: Path) -> None:
    sink = CsvSink(tmp_path)
    sink.begin(0)
    for number in (1, 2, 3):
        sink.log(number, {"a": number / 10})
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("4,a")  # cut off
    CsvSink(tmp_path).begin(2)
    assert (tmp_path / "metrics.csv").read_text() == "round,name,value\n1,a,0.1\n2,a,0.2\n"


def test_tensorboard(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    config = tiny('log=["tensorboard"]', rounds=5)
    run(config, tmp_path / "run", after_round=stop)
    resume(tmp_path / "run")
    found = events.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    assert [event.step for event in found.Scalars("round/weight_sum")] == [1, 2, 3, 4, 5]
    expected = {
        int(row["round"]): float(row["value"]) for row in rows(tmp_path / "run") if row["name"] == "test/loss/mean"
    }
    assert {event.step: event.value for event in found.Scalars("test/loss/mean")} == pytest.approx(expected)


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run(tiny('log=["mlflow:experiment=mine"]', rounds=5), tmp_path / "run", after_round=stop)
    resume(tmp_path / "run")
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["data.name"] == "synthetic"
    steps = {metric.step for metric in client.get_metric_history(found.info.run_id, "round/weight_sum")}
    assert steps == {1, 2, 3, 4, 5}


def test_wandb_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    config = tiny('log=["wandb:project=mine"]', rounds=2)
    run(config, tmp_path / "run")
    (stored,) = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    assert stored.stat().st_size > 0
    assert b"round/weight_sum" in stored.read_bytes()


def test_a_log_that_breaks_does_not_stop_the_run(tmp_path: Path) -> None:
    class Broken(Sink):
        def log(self, round_: int, values: Mapping[str, float]) -> None:
            raise ConnectionError("no network")

    sinks = Sinks({"broken": Broken(), "csv": CsvSink(tmp_path)})
    sinks.begin(0)
    with pytest.warns(PropFairWarning, match=r"'broken' broke and gets no more values: ConnectionError: no network"):
        sinks.log(1, {"a": 1.0})
    sinks.log(2, {"a": 2.0})
    assert [row["round"] for row in rows(tmp_path)] == ["1", "2"]


def test_wrong_names_and_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown logger 'tensorbord'\. Did you mean 'tensorboard'"):
        make_config({}, ['log=["tensorbord"]'])
    with pytest.raises(ConfigError, match="unknown option of logger 'mlflow'"):
        make_config({}, ['log=["mlflow:name=x"]'])
    with pytest.raises(ConfigError, match="mode must be"):
        make_config({}, ['log=["wandb:mode=shouting"]'])


@pytest.mark.parametrize(("name", "module"), [("wandb", "wandb"), ("mlflow", "mlflow.tracking"),
                                              ("tensorboard", "torch.utils.tensorboard")])  # fmt: skip
def test_a_missing_extra_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'propfair\[{name}\]'"):
        run(tiny(f'log=["{name}"]', rounds=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(MissingExtraError):
        LOGGERS.make(name).open(About("x", tmp_path, {}))


def test_logs_survive_the_config_round_trip(tmp_path: Path) -> None:
    config = make_config({}, ['log=["mlflow:experiment=a b", "wandb"]'])
    run(tiny(rounds=1), tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").config_text.count("log = []") == 1
    assert make_config({"log": list(config.log)}).parts.loggers == config.parts.loggers


def test_a_log_that_leads_elsewhere_is_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    outside = tmp_path / "outside"
    outside.mkdir()
    run(tiny('log=["tensorboard"]', rounds=5), tmp_path / "run", after_round=stop)
    shutil.rmtree(tmp_path / "run" / "tensorboard")
    (tmp_path / "run" / "tensorboard").symlink_to(outside)
    with pytest.warns(PropFairWarning, match=r"the log 'tensorboard' broke.*tensorboard is a link"):
        assert resume(tmp_path / "run").state == "finished"
    assert not list(outside.iterdir())
