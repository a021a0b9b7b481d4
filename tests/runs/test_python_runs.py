"""Runs from Python: resumed after a kill, loaded, evaluated, and equal to those of the command line."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import propfair
from propfair.engines.inprocess import InProcess
from propfair.errors import ConfigError, DataError
from propfair.runs.building import build_federation, build_model
from propfair.runs.certificate import certify
from propfair.runs.grouping import by_clients, group_runs
from propfair.runs.launch import run
from propfair.runs.progress import Progress
from propfair.runs.reading import read_run
from tests.builders import seeded
from tests.runs.killed import content, start, tiny
from tests.sealing import reseal


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def clients() -> dict[str, tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(0)
    data = {}
    for name in ("ann", "bob", "cid"):
        x = torch.randn(30, 4, generator=rng)
        data[name] = (x, x[:, :3].argmax(1))
    return data


def model() -> nn.Module:
    return seeded(lambda: nn.Linear(4, 3))


def train(out: Path | None = None, *, rounds: int = 6, **options: Any) -> propfair.Result:
    settings: dict[str, Any] = {"lr": 0.3, "batch_size": 8, "eval_every": 2, "engine": InProcess(threads=1), **options}
    return propfair.train(model(), clients(), "afl", rounds=rounds, out=out, **settings)


def die_in_round_four(folder: Path) -> None:
    torch.set_num_threads(1)

    def die(now: Progress) -> None:
        if now.round == 4:
            os.kill(os.getpid(), signal.SIGKILL)

    from propfair.runs import training

    training._CHECKPOINT_SECONDS = 0.0  # a checkpoint in every round
    train(folder, after_round=die)


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole" / "mine", tmp_path / "killed" / "mine"
    train(whole)
    child = start(die_in_round_four, killed)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    seen: list[int] = []
    resumed = propfair.resume(killed, nn.Linear(4, 3), clients(), after_round=lambda now: seen.append(now.round))
    assert resumed.state == "finished"
    assert seen in ([4, 5, 6], [5, 6])
    assert content(killed) == content(whole)


def stopped(folder: Path, at: int = 3) -> None:
    def stop(now: Progress) -> None:
        if now.round == at:
            os.kill(os.getpid(), signal.SIGTERM)

    assert train(folder, after_round=stop).state == "interrupted"


def test_train_with_resume_goes_on_also_for_more_rounds(tmp_path: Path) -> None:
    whole, longer = tmp_path / "whole" / "mine", tmp_path / "longer" / "mine"
    train(whole, rounds=9)
    stopped(longer)
    assert train(longer, rounds=9, resume=True).rounds == 9
    assert content(longer) == content(whole)
    assert train(longer, rounds=9, resume=True).state == "finished"  # nothing left to do
    assert train(tmp_path / "new", resume=True).rounds == 6  # nothing there yet


def test_what_a_resume_refuses(tmp_path: Path) -> None:
    stopped(tmp_path / "mine")
    with pytest.raises(ConfigError, match="began with seed 0, and can't go on with 1"):
        train(tmp_path / "mine", resume=True, seed=1)
    other = {name: (x + 1, y) for name, (x, y) in clients().items()}
    with pytest.raises(DataError, match=r"the data of .* have changed"):
        propfair.resume(tmp_path / "mine", model(), other)
    with pytest.raises(ConfigError, match="needs out"):
        train(resume=True)


def test_a_device_that_is_not_here_is_named(tmp_path: Path) -> None:
    stopped(tmp_path / "one")
    path = tmp_path / "one" / "environment.json"
    path.write_text(path.read_text().replace('"device": "cpu"', '"device": "nowhere"'))
    reseal(tmp_path / "one")
    with pytest.raises(ConfigError, match="device 'nowhere' can't be used here"):
        propfair.resume(tmp_path / "one", model(), clients())


def test_python_and_the_command_line_give_the_same_bits(tmp_path: Path) -> None:
    config = tiny("engine=inprocess", "engine.threads=1", "algorithm=propfair", rounds=4)
    commanded = run(config, tmp_path / "commanded", name="tiny")
    federation = build_federation(config)
    called = propfair.train(
        build_model(config, federation), federation, config.parts.algorithm, local=config.local, server=config.server,
        rounds=4, eval_every=3, seed=config.seed, engine=config.parts.engine, out=tmp_path / "called" / "tiny",
    )  # fmt: skip
    assert called.run.fingerprint == commanded.run.fingerprint
    assert content(tmp_path / "called" / "tiny") == content(tmp_path / "commanded")


def test_load_gives_a_result_with_its_model(tmp_path: Path) -> None:
    trained = train(tmp_path / "mine")
    loaded = propfair.load(tmp_path / "mine", model())
    assert torch.equal(loaded.accuracy, trained.accuracy)
    assert torch.equal(loaded.model.get_parameter("weight"), trained.model.get_parameter("weight"))
    with pytest.raises(ConfigError, match="was started from Python: pass the model"):
        propfair.load(tmp_path / "mine")
    with pytest.raises(ConfigError, match="does not fit"):
        propfair.load(tmp_path / "mine", nn.Linear(5, 3))
    run(tiny(rounds=1), tmp_path / "commanded")
    assert isinstance(propfair.load(tmp_path / "commanded").model, nn.Module)


def test_evaluate_gives_what_the_run_recorded_and_takes_new_clients(tmp_path: Path) -> None:
    data = propfair.from_datasets(clients())
    result = propfair.train(model(), data, "fedavg", rounds=2)
    again = propfair.evaluate(result, data, split="test", metrics=["f1"])
    torch.testing.assert_close(again.accuracy, result.accuracy)
    torch.testing.assert_close(again.loss, result.evaluation("test").loss)
    assert again.metrics["f1"].shape == (3,)
    everything = propfair.evaluate(result.model, {"dee": clients()["ann"]})
    assert everything.num_examples.tolist() == [30]
    with pytest.raises(DataError, match="no client has examples for 'validation'"):
        propfair.evaluate(result, data, split="validation")


def test_seeds_share_their_data() -> None:
    def fingerprint(**seeds: Any) -> str:
        return train(rounds=1, **seeds).run.fingerprint

    assert fingerprint(seed=0) == fingerprint(seed=1)
    assert fingerprint(data_seed=0) != fingerprint(data_seed=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lr": 0.1, "local": propfair.LocalTraining()}, "lr= and local= were both given"),
        ({"epochs": 1, "local": propfair.LocalTraining()}, "epochs= and local= were both given"),
        ({"participation": 0.5, "server": propfair.Rounds()}, "participation= and server= were both given"),
    ],
)
def test_settings_that_would_be_ignored_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        propfair.train(model(), clients(), rounds=1, **options)


def test_seeds_are_seeds_of_one_setting_whatever_their_folders_are_called(tmp_path: Path) -> None:
    """They were known by their names, so that first-0 and first-1 were two algorithms with the same settings."""
    runs = [train(tmp_path / f"first-{seed}", rounds=1, seed=seed).run for seed in (0, 1)]
    runs += [train(rounds=1, seed=2).run, train(tmp_path / "slow", rounds=1, lr=0.1).run]
    (comparison,) = by_clients(runs)
    assert [[run.seed for run in group.runs] for group in comparison.groups] == [[0, 1, 2], [0]]
    assert [group.label for group in comparison.groups] == ["afl [lr 0.3]", "slow [lr 0.1]"]
    assert comparison.differing == ["local.lr"]
    assert read_run(tmp_path / "slow").settings["local"]["lr"] == 0.1


def test_another_network_is_no_further_seed() -> None:
    deep = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))
    shared: dict[str, Any] = {"lr": 0.3, "batch_size": 8, "eval_every": 2, "engine": InProcess(threads=1)}
    other = propfair.train(deep, clients(), "afl", rounds=1, seed=1, **shared)
    groups = group_runs([train(rounds=1).run, other.run])
    assert [len(group.runs) for group in groups] == [1, 1]


def test_a_certificate_without_an_accuracy_names_the_way_out() -> None:
    x = torch.linspace(-1, 1, 20)[:, None]
    two = {"ann": (x, 2 * x), "bob": (x, -x)}
    one, other = (
        propfair.train(nn.Linear(1, 1), two, name, rounds=1, loss=nn.MSELoss()).run for name in ("fedavg", "afl")
    )
    with pytest.raises(DataError, match=r"there is: test/mae, test/loss.*--M"):
        certify([one], [other])


def test_a_finished_run_is_not_given_for_other_settings_or_another_model(tmp_path: Path) -> None:
    train(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"began with local.lr 0.3, and can't go on with 0.5"):
        train(tmp_path / "mine", resume=True, lr=0.5)
    assert train(tmp_path / "mine", resume=True).rounds == 6
    for rounds in (6, 8):  # as many as were asked for, and more
        with pytest.raises(ConfigError, match="does not fit"):
            propfair.resume(tmp_path / "mine", nn.Sequential(model()), clients(), rounds=rounds)
    assert train(tmp_path / "mine", resume=True).state == "finished"


def test_runs_are_read_from_paths_as_text(tmp_path: Path) -> None:
    train(tmp_path / "mine")
    place = str(tmp_path)
    assert propfair.read_run(f"{place}/mine").folder == tmp_path / "mine"
    for places in (place, tmp_path, [place]):
        runs, problems = propfair.read_runs(places)
        assert (len(runs), problems) == (1, [])


def test_a_split_that_there_is_not_is_told_by_name() -> None:
    with pytest.raises(ConfigError, match=r"split must be one of train, validation, test.*got split='tst'"):
        propfair.evaluate(model(), clients(), split="tst")  # type: ignore[arg-type]
