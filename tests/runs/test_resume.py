"""A run that was stopped, killed or damaged ends with the same bits as one that was not."""

import errno
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from propfair.algorithms import ALGORITHMS
from propfair.errors import ConfigError, DataError, PropFairWarning
from propfair.report.write import write_report
from propfair.runs.folder import RunFolder
from propfair.runs.launch import resume, run
from propfair.runs.progress import Progress
from propfair.runs.reading import read_run
from tests.runs.killed import content, run_or_resume, start, tiny, train, train_and_die
from tests.sealing import reseal


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _stop_at(number: int, signal_: signal.Signals = signal.SIGTERM) -> Callable[[Progress], None]:
    def watch(now: Progress) -> None:
        if now.round == number:
            os.kill(os.getpid(), signal_)

    return watch


@pytest.mark.parametrize("signal_", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_after_the_round_and_resume_goes_on(tmp_path: Path, signal_: signal.Signals) -> None:
    config, handler = tiny(rounds=9), signal.getsignal(signal_)
    whole = run(config, tmp_path / "whole", name="tiny")
    stopped = run(config, tmp_path / "stopped", name="tiny", after_round=_stop_at(5, signal_))
    assert stopped.state == "interrupted"
    assert stopped.rounds == 5
    assert signal_.name in stopped.reason
    assert RunFolder.open(tmp_path / "stopped").status["state"] == "interrupted"
    seen: list[int] = []
    resumed = resume(tmp_path / "stopped", after_round=lambda now: seen.append(now.round))
    assert seen == [6, 7, 8, 9]
    assert resumed.state == "finished"
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")
    assert torch.equal(resumed.accuracy, whole.accuracy)
    assert signal.getsignal(signal_) == handler
    names = sorted(path.name for path in (tmp_path / "stopped" / "checkpoints").iterdir())
    assert names == ["checkpoint-00000009.json", "journal-00000000", "state-00000009.safetensors"]


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_every_algorithm_resumes(tmp_path: Path, name: str) -> None:
    options = [f"algorithm={name}", "server.participation=0.5", *(["algorithm.coeff=0.5"] if name == "gifair" else [])]
    config = tiny(*options, rounds=4)
    run(config, tmp_path / "whole", name="tiny")
    run(config, tmp_path / "stopped", name="tiny", after_round=_stop_at(2))
    resume(tmp_path / "stopped")
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


NEW = ["aaggff", "adafed", "drfl", "feddg-ga", "fedmdfg", "feddyn", "fedprox", "nash-mtl", "scaff-pd", "upgrad"]


@pytest.mark.parametrize(
    "settings",
    [
        ["algorithm=scaffold", "algorithm.over=propfair", "server.optimizer=adam"],
        ["algorithm=aaggff", "algorithm.setting=device"],
        *(pytest.param([f"algorithm={name}"], marks=pytest.mark.slow) for name in NEW),
        *(pytest.param([f"server.optimizer={n}"], marks=pytest.mark.slow) for n in ("momentum", "yogi", "adagrad")),
        pytest.param(["algorithm=fednova", "algorithm.over=scaffold"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_killed_with_a_state(tmp_path: Path, settings: list[str]) -> None:
    """kill -9 between two checkpoints: what rules, drift corrections and server optimisers keep goes on as well."""
    config = tiny(*settings, "server.participation=0.5", rounds=5)
    run(config, tmp_path / "whole", name="tiny")
    child = start(train_and_die, config, tmp_path / "killed", 12)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert 0 < RunFolder.open(tmp_path / "killed").status["rounds"] < 5
    resume(tmp_path / "killed")
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def test_how_often_a_checkpoint_is_written_leaves_no_trace(tmp_path: Path) -> None:
    run(tiny(rounds=7), tmp_path / "often", name="tiny")
    run(tiny("schedule.checkpoint_every=5", rounds=7), tmp_path / "seldom", name="tiny")
    assert content(tmp_path / "often") == content(tmp_path / "seldom")


def test_evaluations_and_dropped_clients_survive(tmp_path: Path) -> None:
    config = tiny("local.lr=1e30", "algorithm=fedavg", rounds=4)
    whole = run(config, tmp_path / "whole")
    assert whole.state == "failed"
    config = tiny(rounds=8)
    stopped = run(config, tmp_path / "stopped", after_round=_stop_at(7))
    folder = RunFolder.open(tmp_path / "stopped")
    assert folder.status["rounds"] == 7
    again = resume(tmp_path / "stopped", after_round=_stop_at(8))
    assert again.state == "finished"
    assert again.evaluations["test"].accuracy.isfinite().all()
    assert stopped.evaluations["test"].loss.isfinite().all()
    later = resume(tmp_path / "stopped")
    for split, evaluation in again.evaluations.items():
        assert torch.equal(evaluation.loss, later.evaluations[split].loss)
        assert torch.equal(evaluation.num_examples, later.evaluations[split].num_examples)
    assert later.seconds == pytest.approx(again.seconds, abs=1e-3)


@pytest.mark.slow
def test_killed_at_every_change_of_a_file(tmp_path: Path) -> None:
    config = tiny("schedule.checkpoint_every=1", rounds=3)  # 3: the first checkpoint is pruned
    run(config, tmp_path / "whole", name="tiny")
    expected = content(tmp_path / "whole")
    deaths = 0
    for operation in range(60):
        folder = tmp_path / f"killed-{operation}"
        child = start(train_and_die, config, folder, operation)
        child.join()
        deaths += child.exitcode == -signal.SIGKILL
        result = run_or_resume(config, folder)
        assert result.state == "finished"
        assert content(folder) == expected, f"died before change {operation}"
        if child.exitcode == 0:
            break
    assert deaths >= 20
    assert child.exitcode == 0


def test_killed_at_20_random_instants(tmp_path: Path) -> None:
    config = tiny("schedule.checkpoint_every=1", rounds=12)
    began = time.monotonic()
    run(config, tmp_path / "whole", name="tiny")
    duration = time.monotonic() - began
    expected = content(tmp_path / "whole")
    instants = random.Random(0)
    unfinished = 0
    for number in range(20):
        folder = tmp_path / f"killed-{number}"
        child = start(train, config, folder)
        time.sleep(instants.uniform(0, duration))
        child.kill()
        child.join()
        unfinished += not folder.exists() or RunFolder.open(folder).status["state"] != "finished"
        assert run_or_resume(config, folder).state == "finished"
        assert content(folder) == expected
    assert unfinished


def _interrupted(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    config = tiny(rounds=8)
    run(config, tmp_path / "whole", name="tiny")
    run(config, tmp_path / "stopped", name="tiny", after_round=_stop_at(6))
    return tmp_path / "stopped", content(tmp_path / "whole")


def _damage(path: Path, damage: str) -> None:
    whole = path.read_bytes()
    middle = len(whole) // 2
    if damage == "gone":
        path.unlink()
    else:
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        path.write_bytes({"flip": flipped, "cut": whole[:middle], "empty": b""}[damage])


@pytest.mark.parametrize("name", ["state-00000006.safetensors", "checkpoint-00000006.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, name: str, damage: str) -> None:
    folder, expected = _interrupted(tmp_path)
    _damage(folder / "checkpoints" / name, damage)
    seen: list[int] = []
    with pytest.warns(PropFairWarning, match=name.replace("state", "checkpoint").split(".")[0]):
        resume(folder, after_round=lambda now: seen.append(now.round))
    assert seen[0] == 5
    assert content(folder) == expected


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "gone"])
def test_a_damaged_journal_costs_its_rows_and_no_state(tmp_path: Path, damage: str) -> None:
    folder, expected = _interrupted(tmp_path)
    _damage(folder / "checkpoints" / "journal-00000000", damage)
    with pytest.raises(DataError, match="journal-00000000"):
        read_run(folder)
    seen: list[int] = []
    with pytest.warns(PropFairWarning, match=r"journal-00000000.*; the records of rounds .* are lost"):
        result = resume(folder, after_round=lambda now: seen.append(now.round))
    assert seen[0] == 7
    lost = {"flip": {3, 4}, "cut": {3, 4, 5, 6}, "empty": {1, 2, 3, 4, 5, 6}, "gone": {1, 2, 3, 4, 5, 6}}[damage]
    assert set(range(1, 9)) - set(result.records["round"].to_pylist()) == lost
    assert "were damaged and are left out" in read_run(folder).status.reason
    (problem,), _ = write_report([folder], tmp_path / "page.html")
    assert "were damaged and are left out" in str(problem)
    whole, found = pq.read_table(tmp_path / "whole" / "records.parquet"), pq.read_table(folder / "records.parquet")
    kept = whole.filter(pc.invert(pc.is_in(whole["round"], pa.array(sorted(lost), pa.int32()))))
    assert found.to_pylist() == kept.to_pylist()
    assert content(folder)["model.safetensors"] == expected["model.safetensors"]


def test_all_checkpoints_damaged_starts_from_the_beginning(tmp_path: Path) -> None:
    folder, expected = _interrupted(tmp_path)
    for path in (folder / "checkpoints").glob("state-*"):
        path.write_bytes(b"")
    with pytest.warns(PropFairWarning) as warned:
        resume(folder)
    assert "starting from the beginning" in str(warned[-1].message)
    assert content(folder) == expected


@pytest.mark.parametrize("name", ["state-00000006.safetensors", "checkpoint-00000006.json"])
def test_a_file_that_can_not_be_read_now_is_kept(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, expected = _interrupted(tmp_path)
    unreadable, real_open = folder / "checkpoints" / name, Path.open

    def failing(path: Path, *rest: Any, **more: Any) -> Any:
        if path == unreadable and "w" not in rest:
            raise OSError(errno.EIO, "Input/output error")
        return real_open(path, *rest, **more)

    before = {path.name: path.read_bytes() for path in (folder / "checkpoints").iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", failing)
        with pytest.warns(PropFairWarning, match="Input/output error; going back to the one before it"):
            stopped = resume(folder, after_round=_stop_at(5))
    assert stopped.rounds == 5
    after = {path.name: path.read_bytes() for path in (folder / "checkpoints").iterdir()}
    assert {name: after[name] for name in before if "00000004" not in name} == {
        name: content for name, content in before.items() if "00000004" not in name
    }, "nothing that a later resume could need is gone"
    seen: list[int] = []
    resume(folder, after_round=lambda now: seen.append(now.round))
    assert seen[0] == 6, "after the checkpoint that the last session wrote"
    assert content(folder) == expected


def test_a_journal_that_can_not_be_read_now_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, expected = _interrupted(tmp_path)
    real_open = Path.open

    def failing(path: Path, *rest: Any, **more: Any) -> Any:
        if path.name.startswith("journal"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_open(path, *rest, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", failing)
        with pytest.raises(DataError, match=r"journal-00000000 can't be read: Permission denied\. Make it readable"):
            resume(folder)
    resume(folder)
    assert content(folder) == expected


def test_files_of_others_in_the_folder_of_checkpoints_are_left_alone(tmp_path: Path) -> None:
    folder, expected = _interrupted(tmp_path)
    mine = [folder / "checkpoints" / name for name in ("thesis.tex", "checkpoint-final.json", "state-of-the-art.txt")]
    for path in mine:
        path.write_text("years of work")
    read_run(folder)
    resume(folder)
    assert content(folder) == expected
    assert set((folder / "checkpoints").iterdir()) >= set(mine)


def test_an_edited_config_is_not_resumed(tmp_path: Path) -> None:
    folder, _ = _interrupted(tmp_path)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("lr = 0.1", "lr = 0.9"))
    with pytest.raises(DataError, match=r"config\.toml is damaged or was edited: .* propfair run --config"):
        resume(folder)


def test_older_checkpoints_are_pruned(tmp_path: Path) -> None:
    folder, _ = _interrupted(tmp_path)
    names = sorted(path.name for path in (folder / "checkpoints").glob("state-*"))
    assert names == ["state-00000004.safetensors", "state-00000006.safetensors"]


def test_a_folder_of_another_version_is_refused(tmp_path: Path) -> None:
    folder, _ = _interrupted(tmp_path)
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "format": 99}))
    with pytest.raises(DataError, match="has format 99; this version of propfair reads format"):
        resume(folder)


def test_a_run_without_config_can_not_be_resumed(tmp_path: Path) -> None:
    folder, _ = _interrupted(tmp_path)
    (folder / "config.toml").write_text("")
    reseal(folder)
    with pytest.raises(ConfigError, match="started from Python"):
        resume(folder)


def test_changed_data_are_refused(tmp_path: Path) -> None:
    folder, _ = _interrupted(tmp_path)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("num_clients = 4", "num_clients = 5"))
    reseal(folder)
    with pytest.raises(DataError, match="have changed"):
        resume(folder)


def test_a_failed_run_is_not_resumed(tmp_path: Path) -> None:
    run(tiny("local.lr=1e30", "algorithm=fedavg", rounds=4), tmp_path / "run")
    with pytest.raises(ConfigError, match="would fail again"):
        resume(tmp_path / "run")


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a run folder"):
        resume(tmp_path)


def test_two_processes_on_one_run(tmp_path: Path) -> None:
    folder, _ = _interrupted(tmp_path)
    with RunFolder.open(folder).in_use(), pytest.raises(ConfigError, match="is in use"):
        resume(folder)


def test_force_replaces_a_run_folder_and_nothing_else(tmp_path: Path) -> None:
    folder, expected = _interrupted(tmp_path)
    with pytest.raises(ConfigError, match="exists already"):
        run(tiny(rounds=8), folder)
    run(tiny(rounds=8), folder, name="tiny", force=True)
    assert content(folder) == expected
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("ten years of work")
    with pytest.raises(ConfigError, match="not a run folder"):
        run(tiny(rounds=8), tmp_path / "mine", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "stopped", "whole"]


@pytest.mark.parametrize("behind", [False, True], ids=["what counts", "what does not"])
def test_damaged_numbers_of_the_log_are_never_gone_on_with(tmp_path: Path, behind: bool) -> None:
    config = tiny("algorithm=fedavg", rounds=6)
    run(config, tmp_path / "whole", name="tiny")
    folder = tmp_path / "run"
    run(config, folder, name="tiny", after_round=_stop_at(4))
    log = folder / "metrics.csv"
    expected = (tmp_path / "whole" / "metrics.csv").read_text()
    if behind:  # a row of a round that the checkpoint does not know, damaged to look like one that it knows
        log.write_text(log.read_text() + "2,round/weight_sum,7\n\ufffd")
        resume(folder)
        assert log.read_text() == expected
        return
    log.write_text(log.read_text().replace("0.", "7.", 1))
    with pytest.warns(PropFairWarning, match=r"metrics\.csv is damaged.* rounds up to 4 are left out"):
        resume(folder)
    head, *rows = expected.splitlines()
    assert log.read_text().splitlines() == [head, *(row for row in rows if int(row.partition(",")[0]) > 4)]
    assert (folder / "metrics.csv.damaged").exists(), "nothing is deleted"
