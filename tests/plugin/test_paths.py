"""Algorithm, data and metric by path, in settings, sweeps and comparisons; never without the user's word."""

import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import propfair
from propfair.algorithms import ALGORITHMS
from propfair.errors import ConfigError
from propfair.runs.building import build_federation
from propfair.runs.config import load_config, make_config
from propfair.runs.contestant import Contestant
from propfair.runs.grouping import group_runs
from propfair.runs.launch import resume, run
from propfair.runs.reading import read_run
from tests.plugin.mine import Halved, clients

MINE = "tests.plugin.mine"
SETTINGS = [f"data={MINE}:clients", f"algorithm={MINE}:Halved", f"metrics={MINE}:share_of_zero", "model=logistic"]
SETTINGS += ["schedule.rounds=2", "schedule.eval_every=1", "engine=inprocess", "engine.threads=1"]


@pytest.fixture(autouse=True)
def _nothing_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("propfair.runs.trust._AGREED", set())


def test_a_run_of_nothing_but_own_parts(tmp_path: Path) -> None:
    config = make_config({}, [*SETTINGS, "algorithm.part=0.25", "data.num_clients=4"])
    assert config.parts.algorithm == Halved(part=0.25)
    assert make_config(tomllib.loads(config.to_toml())).to_toml() == config.to_toml()
    result = run(config, tmp_path / "run")
    assert result.state == "finished"
    assert list(result.clients) == ["client 0", "client 1", "client 2"]
    assert "share_of_zero" in result.evaluation("test").metrics
    called = propfair.train(
        result.model, clients(), Halved(part=0.25), rounds=1, metrics=[f"{MINE}:share_of_zero"]
    )  # fmt: skip
    assert called.state == "finished"
    assert read_run(tmp_path / "run").label.startswith(f"{MINE}:Halved")


def test_what_a_data_function_may_give() -> None:
    from_clients = build_federation(make_config({}, [f"data={MINE}:clients", "data.size=10", "data.split.test=0.5"]))
    assert from_clients.test.lengths.tolist() == [5, 5, 5]
    whole = build_federation(make_config({}, [f"data={MINE}:federation"]))
    assert whole.num_clients == 3


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (f"data={MINE}:NOT_A_FUNCTION", "must be a function that gives the clients; it is a int and was not called"),
        ("data=os:system", "it is a builtin_function_or_method and was not called"),
        (f"algorithm={MINE}:clients", r"must be a class derived from propfair\.algorithms\.Algorithm"),
        (f"algorithm={MINE}:Halfed", "can't be imported .*Halfed.*run where Python finds the package"),
        (f"model={MINE}:Halved", r"must be a class derived from torch\.nn\.Module; it is the class"),
    ],
)
def test_paths_that_lead_nowhere(setting: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run(make_config({}, [setting, "schedule.rounds=1"]))


def test_an_option_that_a_function_does_not_take() -> None:
    with pytest.raises(ConfigError, match=r"can't be called with \{'sise': 3\}: TypeError"):
        build_federation(make_config({}, [f"data={MINE}:clients", "data.sise=3"]))


def test_a_folder_from_elsewhere_imports_nothing_unsaid(tmp_path: Path) -> None:
    run(make_config({}, SETTINGS), tmp_path / "run")
    resume(tmp_path / "run", rounds=3)  # started here by this user
    shutil.copytree(tmp_path / "run", tmp_path / "sent")
    (group,) = group_runs([read_run(tmp_path / "sent")])  # opened and grouped without a word
    assert MINE in group.label
    with pytest.raises(ConfigError, match=rf"import '{MINE}:clients'.* import '{MINE}:Halved'.*--trust"):
        resume(tmp_path / "sent", rounds=4)
    assert resume(tmp_path / "sent", rounds=4, trust=True).rounds == 4
    (tmp_path / "file.toml").write_text(f'algorithm = "{MINE}:Halved"\n')
    with pytest.raises(ConfigError, match="--trust"):
        load_config(tmp_path / "file.toml")
    assert load_config(tmp_path / "file.toml", [f"algorithm={MINE}:Halved"]).parts.algorithm == Halved()


def test_contestants_and_wrappers_by_path() -> None:
    one, other = Contestant.parse_all([f"{MINE}:Halved:part=0.25,local.lr=1", "fedavg"])
    assert one.settings == {"algorithm": f"{MINE}:Halved", "algorithm.part": 0.25, "local.lr": 1}
    assert other.label == "fedavg"
    nested = make_config({}, ["algorithm=fedprox", f"algorithm.over={MINE}:Halved", "algorithm.options.part=0.1"])
    assert nested.parts.algorithm.inner == Halved(part=0.1)  # type: ignore[attr-defined]


def test_a_message_can_not_ask_for_an_import() -> None:
    """A Flower client makes what its server names by the registry: nothing is imported, not even inside wrappers."""
    path = "this:s"  # prints a poem when it is imported
    for name, options in ((path, {}), ("fedprox", {"over": path}), ("ditto", {"options": {"over": path}})):
        with pytest.raises(ConfigError):
            ALGORITHMS.make(name, options)
    assert "this" not in sys.modules


def test_a_sweep_of_own_rules(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    from propfair.tuning.search import load_sweep
    from propfair.tuning.studies import Home
    from propfair.tuning.sweep import run_sweep

    path = tmp_path / "sweep.toml"
    path.write_text(
        f'seeds = [0]\n[run]\ndata = "{MINE}:clients"\nmodel = "logistic"\nschedule = {{rounds = 1}}\n'
        f'[algorithms.halved]\nname = "{MINE}:Halved"\npart = [0.1, 0.9]\n[algorithms.fedavg]\n'
    )
    with pytest.raises(ConfigError, match="--trust"):
        load_sweep(path)
    sweep = load_sweep(path, trust=True)
    (halved, _) = run_sweep(sweep, Home.at(tmp_path / "out"), workers=0).tested()
    assert halved.group.finished
    assert halved.winner.point["algorithm.part"] in (0.1, 0.9)


def test_own_rules_in_worker_processes() -> None:
    config = make_config({}, [*SETTINGS[:-2], "engine=processes", "engine.workers=2"])
    alone = make_config({}, SETTINGS)
    first, second = run(config), run(alone)
    for ours, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
