"""A stranger's file or folder runs no code and connects nowhere, unless the user says so."""

import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import propfair
from propfair.errors import ConfigError
from propfair.runs.config import load_config, make_config
from propfair.runs.folder import RunFolder
from propfair.runs.launch import ensure_run, resume, run, saved_config
from propfair.runs.toml import write_toml
from propfair.runs.trust import check_trust, state_folder, wishes
from propfair.tuning.search import load_sweep
from tests.cli.inside import call
from tests.sealing import reseal

CALLS: list[str] = []
OWN = f"{__name__}:Own"
TINY = ["data.num_clients=3", "schedule.rounds=1", "algorithm=fedavg"]


class Own(nn.Sequential):
    """A model of the user, which tells when it is built."""

    def __init__(self, num_classes: int, width: int = 4) -> None:
        CALLS.append("built")
        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, num_classes))


@pytest.fixture(autouse=True)
def _nothing_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("propfair.runs.trust._AGREED", set())
    CALLS.clear()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, []),
        ({"device": "cuda:1", "data": {"folder": "C:/data", "saved": "a:b"}, "start": "x:y"}, []),
        ({"log": ["tensorboard", "mlflow", "mlflow:experiment=mine", "wandb:project=x"]}, []),
        ({"contestants": ["fedavg", "propfair:M=5,local.lr=0.5"]}, []),
        ({"engine": {"name": "ray", "address": ""}}, []),
        ({"model": "os:system"}, ["import 'os:system'"]),
        ({"metrics": ["mean", "a.b:c"]}, ["import 'a.b:c'"]),
        ({"algorithm": {"name": "a:b"}, "data": {"partition": {"name": "c:d"}}}, ["import 'a:b'", "import 'c:d'"]),
        ({"algorithms": {"a:b": {"M": [1, 2]}}}, ["import 'a:b'"]),
        ({"grid": {"model": {"name": ["mlp", "a:b"]}}}, ["import 'a:b'"]),
        ({"log": ["mlflow:uri=http://x"]}, ["log to 'mlflow:uri=http://x'"]),
        ({"log": ["mlflow: uri = http://x"]}, ["log to 'mlflow: uri = http://x'"]),
        ({"log": ['wandb:mode="online"']}, ["log to 'wandb:mode=\"online\"'"]),
        ({"log": ["carrier-pigeon"]}, ["log to 'carrier-pigeon'"]),
        ({"engine": {"address": "there:6379"}}, ["join the cluster at 'there:6379'"]),
        ({"contestants": ["fedavg:model=os:system"]}, ["use 'fedavg:model=os:system'"]),
        ({"contestants": ["os:system"]}, ["use 'os:system'"]),
    ],
)
def test_what_settings_ask_for(content: dict[str, Any], expected: list[str]) -> None:
    assert [wish.what for wish in wishes(content)] == expected


def test_a_file_is_asked_about_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'seed = 1\n[model]\nname = "{OWN}"\nwidth = 5\n')
    with pytest.raises(ConfigError, match=rf"mine\.toml asks propfair to import '{OWN}' \(model\.name with .*--trust"):
        load_config(path)
    assert load_config(path, [f"model={OWN}"]).parts.model_name == OWN, "said on the command line"
    assert load_config(path, ["model=mlp"], trust=False).parts.model_name == "mlp", "and not asked for any more"
    assert load_config(path, trust=True).parts.model_name == OWN
    path.write_text(path.read_text().replace("seed = 1", "seed = 2"))
    assert load_config(path).seed == 2, "it asks for nothing new"
    path.write_text(path.read_text().replace("width = 5", "width = 6"))
    with pytest.raises(ConfigError, match="--trust"):
        load_config(path)
    (note,) = (state_folder() / "trusted").iterdir()
    assert json.loads(note.read_text())["origin"] == str(path)


def test_ones_own_run_goes_on_and_a_copy_of_it_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    config = make_config({}, [*TINY, f"model={OWN}"])
    run(config, folder)
    assert resume(folder).state == "finished"
    shutil.copytree(folder, tmp_path / "sent")
    CALLS.clear()
    with pytest.raises(ConfigError, match=r"sent asks propfair to import .* has not started it here"):
        resume(tmp_path / "sent")
    with pytest.raises(ConfigError, match="--trust"):
        propfair.load(tmp_path / "sent")
    assert not CALLS
    ended = ensure_run(config, tmp_path / "sent", name="x", federation=lambda: pytest.fail("not needed"))
    assert ended.status.state == "finished", "read, and nothing more"
    assert resume(tmp_path / "sent", trust=True).state == "finished"
    assert propfair.load(tmp_path / "sent").state == "finished", "said once"


def test_without_a_home_trust_lasts_as_long_as_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    check_trust({"model": "a:b"}, tmp_path, trust=True)
    check_trust({"model": "a:b"}, tmp_path)
    with pytest.raises(ConfigError, match="import 'a:c'"):
        check_trust({"model": "a:c"}, tmp_path)


@pytest.fixture
def listener() -> Iterator[tuple[str, list[bool]]]:
    """An address, and whether anybody came."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        met: list[bool] = []

        def wait() -> None:
            try:
                while True:
                    server.accept()[0].close()
                    met.append(True)
            except OSError:
                return

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", met
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def hostile_settings(address: str, marker: Path) -> list[dict[str, Any]]:
    return [
        {"model": {"name": "os:system", "command": f"touch {marker}"}},
        {"model": {"name": "subprocess:Popen", "args": ["touch", str(marker)]}},
        {"model": {"name": OWN}},
        {"metrics": ["os:abort"]},
        {"log": [f"mlflow:uri=http://{address}"]},
        {"engine": {"name": "ray", "address": address}},
    ]


def commands(folder: Path, other: Path, file: Path, sweep: Path) -> list[list[str]]:
    """Every way to open what somebody sent; all but the last six only look at it."""
    out = str(folder.parent / "out")
    return [
        ["report", str(folder), "-o", f"{out}.html"],
        ["figure", "scatter", str(folder), "-o", f"{out}.png"],
        ["certify", str(folder), str(other), "-o", f"{out}.png"],
        ["resume", str(folder)],
        ["certify", "--paired", str(folder), str(other), "-o", f"{out}.png"],
        ["finetune", str(folder), "--with", "fedavg", "-o", out],
        ["run", "--from", str(folder), "-o", out],
        ["run", "-c", str(file), "-o", out],
        ["compare", "-c", str(file), "-o", out],
        ["sweep", str(sweep), "-o", out],
    ]


@pytest.mark.parametrize("number", range(6))
def test_nothing_is_run_and_nothing_connected(tmp_path: Path, number: int, listener: tuple[str, list[bool]]) -> None:
    address, met = listener
    marker = tmp_path / "executed"
    settings = hostile_settings(address, marker)[number]
    folder = tmp_path / "sent"
    run(make_config({}, TINY), folder)
    run(make_config({}, [*TINY, "seed=1"]), tmp_path / "other")
    (folder / "config.toml").write_text(write_toml({**make_config({}, TINY).model_dump(mode="json"), **settings}))
    reseal(folder)
    file, sweep = tmp_path / "sent.toml", tmp_path / "sweep.toml"
    file.write_text(write_toml(settings))
    sweep.write_text(write_toml({"run": settings, "algorithms": {"fedavg": {}}}))
    CALLS.clear()
    for position, command in enumerate(commands(folder, tmp_path / "other", file, sweep)):
        done = call(*command, cwd=tmp_path)
        assert done.is_clean, (command, done)
        if position < 3:
            assert "--trust" not in done.stderr, command
        else:
            assert done.code == 2, (command, done)
            assert "--trust" in done.stderr, (command, done)
    assert not marker.exists()
    assert not met
    assert not CALLS


def test_a_python_run_does_not_join_a_strangers_cluster(tmp_path: Path) -> None:
    clients = [(torch.randn(20, 3), torch.arange(20) % 2)]
    propfair.train(nn.Linear(3, 2), clients, rounds=1, out=tmp_path / "mine")
    path = tmp_path / "mine" / "environment.json"
    content = json.loads(path.read_text())
    content["settings"]["engine"] = {"name": "ray", "address": "127.0.0.1:9"}
    path.write_text(json.dumps(content))
    reseal(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"join the cluster at '127\.0\.0\.1:9'"):
        propfair.resume(tmp_path / "mine", nn.Linear(3, 2), clients)


def test_a_sweep_may_name_what_the_command_line_names(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(f'[run]\nmodel = "{OWN}"\n[algorithms.fedavg]\n')
    with pytest.raises(ConfigError, match="--trust"):
        load_sweep(path)
    assert load_sweep(path, {"model": OWN}).run["model"]["name"] == OWN
    assert load_sweep(path, trust=True) == load_sweep(path)


def test_only_the_seal_keeps_an_edited_config_from_being_believed(tmp_path: Path) -> None:
    run(make_config({}, TINY), tmp_path / "one")
    path = tmp_path / "one" / "config.toml"
    path.write_text(path.read_text().replace("lr = 0.1", "lr = 0.9"))
    reseal(tmp_path / "one")
    assert saved_config(RunFolder.open(tmp_path / "one")).local.lr == 0.9
