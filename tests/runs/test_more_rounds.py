"""More rounds for a run, finished or not: as if they had been asked for at once."""

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import propfair
from propfair.engines.inprocess import InProcess
from propfair.errors import ConfigError
from propfair.runs.folder import RunFolder
from propfair.runs.launch import resume, run
from propfair.runs.reading import read_run
from tests.runs.killed import content, start, tiny
from tests.runs.test_python_runs import clients, model, train


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("algorithm=scaffold", "server.participation=0.5", "server.optimizer=adam"),
        ("algorithm=ditto",),
        ("algorithm=afl", "algorithm.average_iterates=true", "server.lr_schedule=cosine(9)"),
        ("schedule.final_splits=[\"test\"]", "schedule.eval_splits=[\"train\"]"),
        ("early_stopping.patience=90",),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("first", [4, 6])  # 6 is evaluated in any case
def test_a_finished_run_takes_more_rounds(tmp_path: Path, settings: tuple[str, ...], first: int) -> None:
    run(tiny(*settings, rounds=9), tmp_path / "whole", name="tiny")
    run(tiny(*settings, rounds=first), tmp_path / "longer", name="tiny")
    result = resume(tmp_path / "longer", rounds=9)
    assert (result.state, result.rounds) == ("finished", 9)
    assert content(tmp_path / "longer") == content(tmp_path / "whole")
    assert (tmp_path / "longer" / "config.toml").read_text() == (tmp_path / "whole" / "config.toml").read_text()
    assert read_run(tmp_path / "longer").total_rounds == 9


def reopen(folder: Path) -> None:
    RunFolder.open(folder).reopen()


def test_killed_before_the_first_of_the_rounds(tmp_path: Path) -> None:
    """All that a process that died right after it had reopened the run leaves behind."""
    run(tiny(rounds=9), tmp_path / "whole", name="tiny")
    run(tiny(rounds=6), tmp_path / "longer", name="tiny")
    reopen(tmp_path / "longer")
    assert RunFolder.open(tmp_path / "longer").status["state"] == "interrupted"
    resume(tmp_path / "longer", rounds=9)
    assert content(tmp_path / "longer") == content(tmp_path / "whole")


def test_reopened_and_given_no_rounds(tmp_path: Path) -> None:
    final = 'schedule.final_splits=["test"]'
    run(tiny(final, rounds=5), tmp_path / "run", name="tiny")
    expected = content(tmp_path / "run")
    reopen(tmp_path / "run")
    assert resume(tmp_path / "run").state == "finished"
    assert content(tmp_path / "run") == expected


def test_killed_while_the_config_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tiny(rounds=2), tmp_path / "run")
    folder = RunFolder.open(tmp_path / "run")
    reopen(tmp_path / "run")
    old = folder.config_text
    for number in range(4):
        left = [number]

        def dying(path: Path, target: Path, left: list[int] = left, replace: Any = Path.replace) -> Path:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            found: Path = replace(path, target)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", dying)
            with contextlib.suppress(KeyboardInterrupt):
                folder.save_config(f"{old}# {number}\n")
        assert RunFolder.open(tmp_path / "run").config_text in (old, f"{old}# {number}\n")
        folder.save_config(old)


def test_a_run_that_goes_on_may_be_read(tmp_path: Path) -> None:
    run(tiny(rounds=6), tmp_path / "run", name="tiny")
    before = read_run(tmp_path / "run")
    reopen(tmp_path / "run")
    assert read_run(tmp_path / "run").records.num_rows < before.records.num_rows  # the last evaluation is to come


def test_runs_that_take_no_more_rounds(tmp_path: Path) -> None:
    run(tiny(rounds=2), tmp_path / "old")
    shutil.rmtree(tmp_path / "old" / "checkpoints")
    with pytest.raises(ConfigError, match="what more rounds need is not there"):
        resume(tmp_path / "old", rounds=4)
    stopping = ("early_stopping.patience=1", "early_stopping.min_delta=9", "schedule.eval_every=1")
    stopped = run(tiny(*stopping, rounds=9), tmp_path / "stopped")
    assert stopped.rounds == 2
    assert resume(tmp_path / "stopped").rounds == 2  # nothing is left to do
    with pytest.raises(ConfigError, match="ended by itself and takes no more rounds: stopped early after round 2"):
        resume(tmp_path / "stopped", rounds=12)


def test_from_python(tmp_path: Path) -> None:
    whole, longer = tmp_path / "whole" / "mine", tmp_path / "longer" / "mine"
    train(whole, rounds=9)
    train(longer, rounds=5)
    assert propfair.resume(longer, model(), clients(), rounds=7).rounds == 7
    assert train(longer, rounds=9, resume=True).rounds == 9
    assert content(longer) == content(whole)
    with pytest.raises(ConfigError, match="has done 9 rounds already"):
        train(longer, rounds=8, resume=True)


def halving(round_: int) -> float:
    return 0.5**round_


def doubled(output: Tensor, target: Tensor) -> Tensor:
    return 2 * nn.functional.cross_entropy(output, target, reduction="none")


WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    ("began", "changed", "said"),
    [
        ({}, {"lr": 0.2}, "began with local.lr 0.3, and can't go on with 0.2"),
        ({}, {"batch_size": 9}, "began with local.batch_size 8"),
        ({}, {"participation": 0.5}, "began with server.participation 1.0"),
        ({}, {"eval_every": 3}, "began with schedule.eval_every 2"),
        ({}, {"loss": doubled}, "began with loss .*cross_entropy, and can't go on with .*doubled"),
        ({"loss": doubled}, {"loss": None}, "began with loss .*doubled"),
        ({"loss": WEIGHTED}, {"loss": nn.CrossEntropyLoss(weight=torch.ones(3))}, "began with loss CrossEntropyLoss"),
        ({"metrics": ["f1"]}, {"metrics": []}, "began with metrics accuracy, f1, and can't go on with accuracy"),
        ({"server": propfair.Rounds(lr_schedule=halving)}, {"server": None}, "began with lr_function .*halving"),
    ],
)
def test_a_resume_notices_what_has_changed(
    tmp_path: Path, began: dict[str, Any], changed: dict[str, Any], said: str
) -> None:
    train(tmp_path / "mine", rounds=1, **began)
    assert train(tmp_path / "mine", rounds=2, resume=True, **began).rounds == 2
    with pytest.raises(ConfigError, match=said):
        train(tmp_path / "mine", rounds=3, resume=True, **{**began, **changed})


def test_a_function_for_the_learning_rate_in_a_run_folder(tmp_path: Path) -> None:
    server = propfair.Rounds(lr_schedule=halving)
    whole = train(tmp_path / "whole" / "mine", rounds=4, server=server)
    train(tmp_path / "mine", rounds=2, server=server)
    with pytest.raises(ConfigError, match=r"lr_schedule the function .*halving: pass it to resume"):
        propfair.resume(tmp_path / "mine", model(), clients(), rounds=4)
    resumed = propfair.resume(tmp_path / "mine", model(), clients(), rounds=4, lr_schedule=halving)
    assert torch.equal(resumed.model.get_parameter("weight"), whole.model.get_parameter("weight"))
    train(tmp_path / "plain", rounds=2)
    with pytest.raises(ConfigError, match="leave lr_schedule= out"):
        propfair.resume(tmp_path / "plain", model(), clients(), rounds=4, lr_schedule=halving)


def die_after_the_stop(folder: Path) -> None:
    import os
    import signal

    torch.set_num_threads(1)
    RunFolder.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    stop_early(folder)


def stop_early(folder: Path) -> propfair.Result:
    stopping = propfair.EarlyStopping("worst", "loss", patience=2, min_delta=9)
    return propfair.train(
        model(), clients(), "fedavg", rounds=9, eval_every=1, callbacks=[stopping], out=folder, resume=True,
        engine=InProcess(threads=1),
    )  # fmt: skip


def test_killed_between_an_early_stop_and_the_end(tmp_path: Path) -> None:
    whole = stop_early(tmp_path / "whole" / "mine")
    assert whole.rounds == 3
    child = start(die_after_the_stop, tmp_path / "killed" / "mine")
    child.join()
    assert child.exitcode == -9
    assert stop_early(tmp_path / "killed" / "mine").rounds == 3
    assert content(tmp_path / "killed" / "mine") == content(tmp_path / "whole" / "mine")
