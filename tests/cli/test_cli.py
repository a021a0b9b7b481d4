"""The command as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from propfair.algorithms.propfair import PropFair
from propfair.registry import fields_of
from propfair.runs.folder import RunFolder
from propfair.runs.measures import Measure
from propfair.runs.reading import read_run
from tests.cli.inside import call

TINY = ["data.num_clients=4", "schedule.rounds=2", "schedule.eval_every=1", "model=logistic"]


def propfair(*arguments: str, cwd: Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "propfair", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def said(*arguments: str, cwd: Path) -> Any:
    return json.loads(propfair(*arguments, "--format", "json", cwd=cwd).stdout)


def test_help_names_every_command_and_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['propfair', '--help']\n"
        "from propfair.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print('torch' in sys.modules, 'pyarrow' in sys.modules)"],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    for command in ("run", "compare", "list"):
        assert f" {command} " in done.stdout
    assert done.stdout.endswith("False False\n")


def test_run_writes_a_folder_and_says_where(tmp_path: Path) -> None:
    done = propfair("run", *TINY, "algorithm=fedavg", cwd=tmp_path)
    assert "written to runs/digits-fedavg-seed0" in done.stdout
    assert "round 2/2" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr  # no terminal, no colours
    propfair("run", *TINY, "algorithm=fedavg", "-q", cwd=tmp_path)
    assert (tmp_path / "runs" / "digits-fedavg-seed0-2").is_dir()
    assert RunFolder.open(tmp_path / "runs" / "digits-fedavg-seed0").status["state"] == "finished"


def test_run_from_a_file_as_json(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[algorithm]\nname = "propfair"\nM = 3\n')
    result = said("run", "--config", "run.toml", *TINY, "--seed", "7", "-o", "here", cwd=tmp_path)
    assert result["algorithm"] == str(PropFair(M=3.0))
    assert result["folder"] == "here"
    assert len(result["accuracy"]["test"]) == 4
    assert RunFolder.open(tmp_path / "here").environment["seed"] == 7


def test_resume_gives_a_run_more_rounds(tmp_path: Path) -> None:
    assert call("run", *TINY, "-q", "-o", "here", cwd=tmp_path).code == 0
    done = call("resume", "here", "schedule.rounds=4", "--format", "json", cwd=tmp_path)
    assert json.loads(done.stdout)["rounds"] == 4
    for setting, reason in (
        ("local.lr=1", "resume takes schedule.rounds=N and no local.lr"),
        ("schedule.rounds=many", "must be a number of rounds; got 'many'"),
        ("schedule.rounds=3", "has done 4 rounds already"),
    ):
        assert reason in call("resume", "here", setting, cwd=tmp_path).stderr.replace("\n", " ")


def test_compare_trains_on_the_same_clients_and_draws_a_picture(tmp_path: Path) -> None:
    result = said("compare", "fedavg", "propfair:M=3,local.lr=0.5", *TINY, "--seeds", "0,1", "-o", "c", cwd=tmp_path)
    assert [one["label"] for one in result["contestants"]] == ["fedavg [lr 0.1]", "propfair [lr 0.5]"]
    assert [one["settings"] for one in result["contestants"]] == ["", "M=3, local.lr=0.5"]
    assert all(len(one["runs"]) == 2 for one in result["contestants"])
    picture = (tmp_path / result["pictures"][0]).read_bytes()
    assert picture.startswith(b"\x89PNG")
    prints = {RunFolder.open(path).clients["fingerprint"] for path in (tmp_path / "c").iterdir() if path.is_dir()}
    assert len(prints) == 1
    text = propfair("compare", *TINY, "-o", "d", cwd=tmp_path).stdout
    assert "Who is served how well" in text
    assert "worst10" in text
    assert "nothing was tuned" in text


def test_compare_takes_the_seed_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("seed = 5\n")
    said("compare", "fedavg", "afl", *TINY, "seed=3", "-o", "c", cwd=tmp_path)
    said("compare", "fedavg", "afl", *TINY, "--config", "run.toml", "-o", "c", cwd=tmp_path)
    seeds = [RunFolder.open(path).environment["seed"] for path in sorted((tmp_path / "c").iterdir()) if path.is_dir()]
    assert sorted(seeds) == [3, 3, 5, 5]


def test_the_same_comparison_again_trains_nothing_and_more_of_it_only_what_is_new(tmp_path: Path) -> None:
    first = said("compare", "fedavg", "afl", *TINY, cwd=tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    written = {path.name: (path / "status.json").stat().st_mtime_ns for path in folder.iterdir() if path.is_dir()}
    assert len(written) == 2
    assert said("compare", "fedavg", "afl", *TINY, cwd=tmp_path) == first
    said("compare", "fedavg", "afl", "term", *TINY, "--seeds", "0,1", cwd=tmp_path)
    now = {path.name: (path / "status.json").stat().st_mtime_ns for path in folder.iterdir() if path.is_dir()}
    assert len(now) == 6
    assert {name: now[name] for name in written} == written


def test_a_stopped_comparison_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    command = ["compare", "fedavg", "afl", *TINY, "schedule.rounds=300", "schedule.checkpoint_every=1", "-o", "c"]
    running = subprocess.Popen(
        [sys.executable, "-m", "propfair", *command], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and not any(
        json.loads(status.read_text())["rounds"] > 2 for status in (tmp_path / "c").glob("*/status.json")
    ):
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Go on with: propfair compare fedavg afl" in stderr
    (kept,) = (tmp_path / "c").glob("*/status.json")
    assert json.loads(kept.read_text())["state"] == "interrupted"
    ended = said(*command, cwd=tmp_path)
    assert [one["runs"][0]["rounds"] for one in ended["contestants"]] == [300, 300]


def test_tuning_gives_every_contestant_as_many_trials_and_looks_at_the_test_split_once(tmp_path: Path) -> None:
    result = said("compare", "fedavg", "term", *TINY, "--tune", "--trials", "3", "-w", "0", "-o", "t", cwd=tmp_path)
    assert [one["label"] for one in result["contestants"]] == ["fedavg", "term"]
    assert all("lr=" in one["settings"] for one in result["contestants"])
    trials = [path.name for path in (tmp_path / "t" / "trials").iterdir()]
    assert sum(name.startswith("fedavg") for name in trials) == sum(name.startswith("term") for name in trials) == 3
    for trial in (tmp_path / "t" / "trials").iterdir():
        assert set(read_run(trial).global_evaluations()) == {"validation"}


def test_list_shows_options_and_who_sees_what(tmp_path: Path) -> None:
    listed = said("list", cwd=tmp_path)
    algorithms = {one["name"]: one for one in listed["algorithms"]}
    assert algorithms["propfair"]["options"] == fields_of(PropFair())
    assert algorithms["propfair"]["privacy"] == "losses"
    assert {"digits", "synthetic"} <= {one["name"] for one in listed["data"]}
    assert {"logistic", "mlp", "cnn"} <= {one["name"] for one in listed["models"]}
    assert "inprocess" in {one["name"] for one in listed["engines"]}
    assert "fedavg" in propfair("list", "algorithms", cwd=tmp_path).stdout


def test_a_long_list_says_what_each_algorithm_is_for(tmp_path: Path) -> None:
    long = said("list", "algorithms", "--long", cwd=tmp_path)["algorithms"]
    assert all(one[field] for one in long for field in ("optimises", "sees", "cost", "tune", "epochs", "reference"))
    text = propfair("list", "--long", cwd=tmp_path).stdout
    assert "many local steps" in text
    assert "Agnostic Federated Learning" in text
    assert "--long is about algorithms" in propfair("list", "data", "--long", cwd=tmp_path, expect=2).stderr


def regression(folder: Path) -> list[str]:
    """Settings of a tiny run on a table of prices, of two clients."""
    rows = "\n".join(f"{k % 7},{'ab'[k % 2]},{k % 7 * 2 + k % 2 + 0.5}" for k in range(40))
    (folder / "prices.csv").write_text(f"size,site,price\n{rows}\n")
    return ["data=own", "data.path=prices.csv", "data.target=price", "data.client=site", *TINY[1:3], "local.lr=0.001"]


def test_errors_instead_of_accuracies_are_told_and_tuned_by(tmp_path: Path) -> None:
    own = regression(tmp_path)
    run = said("run", *own, "-o", "r", cwd=tmp_path)
    assert run["measure"] == {"test": "test/mae"}
    assert run["statistics"]["test"]["worst"] == max(run["values"]["test/mae"])
    assert run["statistics"]["test"]["mean"] > 0
    text = propfair("compare", "fedavg", "propfair", *own, "-q", "-o", "c", cwd=tmp_path).stdout
    assert "nothing was tuned" in text
    assert "Nash" not in (tmp_path / "c" / "table.md").read_text(), "a product of errors is no welfare"
    tune = ["--tune", "--trials", "2", "-w", "0", "-q", "-o", "t", "schedule.rounds=20"]
    tuned = said("compare", "fedavg", "fedavg:weighting=uniform", *own, *tune, cwd=tmp_path)
    trials = [read_run(path) for path in (tmp_path / "t" / "trials").glob("fedavg-lr*")]
    errors = {run.config["local"]["lr"]: run.summary(Measure("validation", "mae")) for run in trials}
    best = min(errors, key=lambda rate: errors[rate].mean + errors[rate].worst10)
    assert len({found.mean for found in errors.values()}) == 2
    assert tuned["contestants"][0]["settings"].endswith(f"lr={best}")
    assert (
        "--criterion mean is what --tune chooses by"
        in propfair("compare", "fedavg", "--criterion", "mean", cwd=tmp_path, expect=2).stderr
    )


def test_fine_tuning_a_regression_asks_for_a_baseline_before_it_trains(tmp_path: Path) -> None:
    own = regression(tmp_path)
    propfair("run", *own, "-q", "-o", "r", cwd=tmp_path)
    on = ["finetune", "r", "--with", "fedavg", "schedule.rounds=1", "-q", "-o", "f"]
    stopped = propfair(*on, cwd=tmp_path, expect=2).stderr
    assert "no client has a test accuracy under every run" in stopped
    assert "--M" in stopped
    assert not (tmp_path / "f").exists()
    assert "1000 - test loss" in propfair(*on, "--M", "1000", cwd=tmp_path).stdout


def test_a_dry_run_says_what_would_be_run_and_leaves_no_folder(tmp_path: Path) -> None:
    pytest.importorskip("faker")
    text = propfair("reproduce", "natural", "--scale", "smoke", "--dry-run", cwd=tmp_path).stdout
    assert "fedavg, fedavg:weighting=uniform, afl, propfair" in text
    assert "left: 48 runs of 1 rounds for the results" in text
    assert "on 1 process" in text
    text = propfair("reproduce", "table6-cifar10", "--scale", "smoke", "--dry-run", cwd=tmp_path).stdout
    assert "left: 7 runs of 2 rounds for the results" in text
    assert "no estimate" in propfair("reproduce", "figure1", "--dry-run", cwd=tmp_path).stdout
    assert not list(tmp_path.iterdir())


def test_keys_of_settings_stay_in_one_piece_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("propfair.cli.display._console", lambda: Console(width=80))
    keys = [one["key"] for one in json.loads(call("list", "settings", "--format", "json").stdout)["settings"]]
    lines = call("list", "settings").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    first = {line.split()[1] for line in lines if line.startswith("│")}
    assert first >= set(keys)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("figure", "trade, clients, relative, certificate, curves,"),
        ("list", "Only these: algorithms, data, models, partitions,"),
        ("sweep", "Settings that win over [run] in it."),
    ],
)
def test_help_says_what_arguments_are(command: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert text in call(command, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "algorithm=fedagv"], "error: unknown algorithm 'fedagv'. Did you mean 'fedavg'"),
        (["run", "algorithm.M=-2"], "M must be a positive number"),
        (["compare", "fedavg"], "at least two different algorithms"),
        (["compare", "--seeds", "a,b"], "--seeds takes whole numbers"),
        (["compare", "--seeds", "0,1,0"], "--seeds takes different numbers, such as 0,1,2; got --seeds 0,1,0"),
        (["compare", "--seeds", "0,1", "seed=3"], "both say which seeds to run: leave seed=3 out"),
        (["run", "--config", "nowhere.toml"], "can't read the config nowhere.toml"),
    ],
)
def test_errors_are_one_line_and_leave_nothing_behind(arguments: list[str], text: str, tmp_path: Path) -> None:
    done = propfair(*arguments, cwd=tmp_path, expect=2)
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_stops_cleanly_and_leaves_a_readable_record(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [
            sys.executable, "-m", "propfair", "run", *TINY,
            "schedule.rounds=100000", "schedule.checkpoint_every=1", "-o", "long",
        ],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 100
    status = tmp_path / "long" / "status.json"
    while time.monotonic() < deadline and not (status.exists() and json.loads(status.read_text())["rounds"] > 2):
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, out + err
    assert "interrupted after" in out
    stored = RunFolder.open(tmp_path / "long")
    assert stored.status["state"] == "interrupted"
    rounds = stored.tables().clients["round"].to_pylist()
    assert max(rounds) == stored.status["rounds"]
    assert stored.model()
