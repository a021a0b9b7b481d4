"""Disagreement points of PropFair from local-only models, and the comparison that trains them."""

import contextlib
from pathlib import Path

import pytest

from propfair.algorithms.propfair import PropFair
from propfair.errors import ConfigError
from propfair.runs.compare import Contest
from propfair.runs.config import make_config
from propfair.runs.contestant import Contestant
from propfair.runs.disagreement import disagreement_points
from propfair.runs.grouping import group_runs
from propfair.runs.reading import read_run
from propfair.runs.standing import alone_among, gains
from tests.report.builders import write_run

TINY = {"data.num_clients": 4, "schedule.rounds": 2, "model": "logistic", "data.split.validation": 0.2}


def test_points_are_the_losses_of_the_clients_own_models(tmp_path: Path) -> None:
    path = write_run(
        tmp_path / "alone", name="alone", algorithm="local-only", num_clients=3, accuracy=[0.5, 0.75, 1.0],
        personal=True, splits=("validation", "test"),
    )  # fmt: skip
    assert disagreement_points(read_run(path)) == (1.5, 1.25, 1.0)
    config = make_config({"data": {"num_clients": 3}}, {"algorithm": "propfair", "algorithm.M": str(path)})
    assert isinstance(config.parts.algorithm, PropFair)
    assert config.parts.algorithm.M == (1.5, 1.25, 1.0)
    assert str(path) not in config.to_toml()  # a run says itself what it was made with


def test_training_and_test_losses_are_no_points(tmp_path: Path) -> None:
    path = write_run(tmp_path / "alone", algorithm="local-only", personal=True)
    with pytest.raises(ConfigError, match=r"data\.split\.validation=0\.1"):
        make_config({}, {"algorithm": "propfair", "algorithm.M": str(path)})


@pytest.mark.parametrize(
    ("contestants", "overrides", "tuning", "said"),
    [
        (["fedavg", "propfair:M=local-only"], TINY, "", "add --with-local"),
        (["local-only", "propfair:M=local-only"], {}, "", r"data\.split\.validation=0\.1"),
        (["local-only", "propfair:M=local-only"], TINY, "12", "leave --tune out"),
    ],
)
def test_what_it_needs_is_said_before_anything_is_trained(
    contestants: list[str], overrides: dict[str, object], tuning: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Contest.of({}, Contestant.parse_all(contestants), overrides=overrides, tuning=tuning)


def test_a_comparison_with_points_from_its_own_local_only_run(tmp_path: Path) -> None:
    contestants = Contestant.parse_all(["propfair:M=local-only", "fedavg", "local-only"])
    contest = Contest.of({}, contestants, overrides=TINY, out=tmp_path)
    bargained, fedavg, local = contest.train((0, 1), show_run=lambda *_: contextlib.nullcontext(lambda _: None))
    points = disagreement_points(local.runs[0])
    assert len(points) == 4
    for run in bargained.runs:  # one setting for all seeds, so that they can be pooled
        assert run.config["algorithm"]["M"] == pytest.approx(points)
    groups = group_runs([*bargained.runs, *fedavg.runs, *local.runs])
    assert [len(group.runs) for group in groups] == [2, 2, 2]
    alone = alone_among(groups)
    assert alone is groups[2]
    found = gains(groups[1], alone)
    expected = fedavg.group.values() - local.group.values()
    assert found.gaps == pytest.approx(expected.mean(axis=0))
    assert found.names == fedavg.runs[0].clients.names
