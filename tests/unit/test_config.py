"""TOML, overrides and the errors that come before any work."""

import tomllib
from pathlib import Path

import pytest

from propfair.algorithms.propfair import PropFair
from propfair.core.client import LocalTraining
from propfair.errors import ConfigError
from propfair.registry import fields_of
from propfair.runs.config import load_config, make_config, parse_override
from propfair.runs.settings import all_settings


def test_the_default_config_is_valid_and_survives_a_round_trip(tmp_path: Path) -> None:
    config = make_config({})
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml())
    again = load_config(path)
    assert again.to_toml() == config.to_toml()
    assert again.parts.algorithm == config.parts.algorithm
    assert again.parts.partitioner == config.parts.partitioner
    assert again.parts.splitter == config.parts.splitter


def test_everything_is_spelled_out() -> None:
    written = tomllib.loads(make_config({}, ["algorithm=propfair", "data=digits"]).to_toml())
    assert written["algorithm"] == {"name": "propfair", **fields_of(PropFair())}
    assert written["data"]["partition"]["name"] == "dirichlet"
    assert written["data"]["num_clients"] == 10
    assert written["model"]["name"] == "mlp"
    assert written["local"]["batch_size"] == 64


def test_overrides_win_over_the_file_and_a_section_is_replaced_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('seed = 3\n[algorithm]\nname = "propfair"\nM = 3\n[local]\nlr = 0.5\n')
    config = load_config(path, ["algorithm.epsilon=0.1", "local.batch_size=8", "data.num_clients=20"])
    assert config.parts.algorithm == PropFair(M=3.0, epsilon=0.1)
    assert (config.seed, config.local.lr, config.local.batch_size, config.parts.num_clients) == (3, 0.5, 8, 20)
    assert str(load_config(path, ["algorithm=fedavg"]).parts.algorithm) == "fedavg(weighting=samples)"


def test_options_of_the_partition_change_the_protocol_of_the_data_set() -> None:
    changed = make_config({}, ["data.partition.beta=0.1"]).parts.partitioner
    usual = make_config({}).parts.partitioner
    assert changed.name == usual.name == "dirichlet"
    assert changed != usual
    assert make_config({}, ["data.partition=iid"]).parts.partitioner.name == "iid"
    assert make_config({}, ["data.split.validation=0.1"]).parts.splitter.validation == 0.1


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("a.b=5", "a.b", 5),
        ("a=5e-3", "a", 0.005),
        ("a=true", "a", True),
        ("a=[1, 2]", "a", [1, 2]),
        ("a=cifar10", "a", "cifar10"),
        ("a=x=y", "a", "x=y"),
        ("a= ", "a", ""),
    ],
)
def test_an_override_is_toml_where_it_is_toml_and_text_otherwise(text: str, key: str, value: object) -> None:
    assert parse_override(text) == (key, value)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["algorithm.m=5"], r"unknown option of algorithm 'propfair': 'm'\. Did you mean 'M'\?"),
        (["algorithm=propfare"], r"unknown algorithm 'propfare'\. Did you mean 'propfair'"),
        (["algorithm.M=-1"], "M must be a positive number, above the losses you expect; got M=-1.0"),
        (["algorithm.M=0"], "M must be a positive number"),
        (["algorithm.M=1", "algorithm.epsilon=2"], r"0 < epsilon <= M; got epsilon=2.0, M=1.0"),
        (["algorithm.M=high"], "M must be"),
        (["algorithm.variant=soft"], "'practical' | 'huber'"),
        (["data=digitz"], "unknown data set 'digitz'. Did you mean 'digits'"),
        (["data.num_clients=-3"], "data.num_clients: .* greater than or equal to 1; got -3"),
        (["data.num_client=3"], "num_client"),
        (["data.split.tset=0.2"], "Did you mean 'test'"),
        (["data.split.test=1.5"], "test must be"),
        (["data.partition=dirichlett"], "unknown partitioner 'dirichlett'. Did you mean 'dirichlet'"),
        (["model=mlpp"], "unknown model 'mlpp'. Did you mean 'mlp'"),
        (["engine=inproces"], "unknown engine 'inproces'. Did you mean 'inprocess'"),
        (["lr=0.1"], "Did you mean 'local.lr'"),
        (["rounds=3"], "Did you mean 'schedule.rounds'"),
        (["local.learning_rate=0.1"], "unknown config key in"),
        (["schedule.rounds=0"], "rounds must be at least 1 and at most 2147483647; got rounds=0"),
        (["server.participation=0"], "participation must be"),
        (["seed=-1"], "seed"),
        (["whatever=1"], "unknown config key 'whatever'"),
        (["algorithm"], "key=value"),
    ],
)
def test_wrong_settings_name_what_is_wrong_and_the_way_out(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_config({}, overrides)


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read the config"):
        load_config(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("key", "right"),
    [
        ("schedule.participation", "server.participation"),
        ("M", "algorithm.M"),
        ("local.rounds", "schedule.rounds"),
        ("num_clients", "data.num_clients"),
        ("local.seed", "data.seed"),
    ],
)
def test_a_key_in_the_wrong_section_is_told_its_right_one(key: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean '{right}'"):
        make_config({}, {key: 3})


def test_optimizers_are_known_in_any_case() -> None:
    assert make_config({}, {"local.optimizer": "adam"}).local.optimizer == "Adam"
    assert make_config({}, {"local.optimizer": "Sgd"}).local.optimizer == "sgd"


def test_every_setting_has_a_meaning_and_its_default() -> None:
    settings = {setting.key: setting for setting in all_settings()}
    assert [key for key, setting in settings.items() if not setting.meaning] == []
    assert settings["local.lr"].default == LocalTraining().lr
    assert settings["schedule.rounds"].type == "int"
    assert "server.participation" in settings
