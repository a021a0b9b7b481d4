"""The field: ranks by hand, and all rules at smoke scale."""

import csv
from pathlib import Path

import pytest
import torch

pytest.importorskip("optuna")
pytest.importorskip("matplotlib")

from propfair.algorithms import ALGORITHMS
from propfair.algorithms.guide import entries
from propfair.errors import ConfigError
from propfair.paper.catalogue import Ranking, load_preset
from propfair.paper.ranking import overall, ranking_sweep, ranks_by_seed
from propfair.paper.reproduce import left_to_run, reproduce
from propfair.paper.settings import Settings
from propfair.paper.tables import table_of, write_reproduction
from propfair.runs.contestant import Contestant
from propfair.runs.grouping import Group
from propfair.runs.reading import read_run
from propfair.tuning.criteria import Criterion
from tests.paper.test_reproduce import Screen
from tests.report.builders import write_run


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def field() -> Ranking:
    preset = load_preset("field")
    assert isinstance(preset, Ranking)
    return preset


def test_every_rule_is_in_the_field() -> None:
    named = {one.settings["algorithm"] for one in Contestant.parse_all(field().contestants)}
    assert {entry.name for entry in entries()} == named
    assert named <= set(ALGORITHMS.names())
    assert {"form-fields", "synthetic", "digits", "cifar10"} == field().at("small").data.keys()


def test_all_contestants_have_as_many_trials(tmp_path: Path) -> None:
    sweep, _ = ranking_sweep(field(), "digits", Settings(scale="small", out=tmp_path))
    assert {sweep.num_trials(one) for one in sweep.contestants} == {9}
    assert len(sweep.contestants) == len(field().contestants)


def made_group(path: Path, label: str, by_seed: dict[int, list[float]]) -> Group:
    """A group whose clients end at these accuracies."""
    folders = [
        write_run(path / f"{label}{seed}", name=label, seed=seed, num_clients=len(accuracy), accuracy=accuracy)
        for seed, accuracy in by_seed.items()
    ]
    return Group(label, tuple(read_run(folder) for folder in folders), {})


def test_ranks_by_hand(tmp_path: Path) -> None:
    groups = [
        made_group(tmp_path, "a", {0: [0.5, 0.5], 1: [0.9, 0.1]}),
        made_group(tmp_path, "b", {0: [0.7, 0.3], 1: [0.5, 0.5]}),
        made_group(tmp_path, "c", {0: [0.9, 0.9], 1: [0.1, 0.9]}),
        made_group(tmp_path, "failed", {0: [1.0, 1.0]}),
    ]
    by_mean = ranks_by_seed(groups, Criterion.parse("mean"))
    assert {label: ranks.tolist() for label, ranks in by_mean.items()} == {"a": [2.5, 2], "b": [2.5, 2], "c": [1, 2]}
    by_worst = ranks_by_seed(groups, Criterion.parse("worst"))
    assert {label: ranks.tolist() for label, ranks in by_worst.items()} == {"a": [2, 2.5], "b": [3, 1], "c": [1, 2.5]}
    table = overall("field", field(), {"one": by_mean, "other": by_worst})
    assert [number.row for number in table.numbers if number.column == "mean rank"] == ["c", "b", "a"]
    found = next(number for number in table.numbers if number.column == "mean rank")
    assert (found.ours, found.low, found.high) == (1.625, 1.0, 3.0)  # 1 and 2.25; ranks go from 1 to 3
    fewer = overall("field", field(), {"one": by_mean, "other": {label: rank[:1] for label, rank in by_worst.items()}})
    assert {number.ours for number in fewer.numbers if number.row == "a" and number.column == "mean rank"} == {
        (by_mean["a"][0] + by_worst["a"][0]) / 2
    }


@pytest.mark.slow
def test_the_whole_field_at_smoke_scale(tmp_path: Path) -> None:
    settings = Settings(scale="smoke", out=tmp_path)
    tables = reproduce("field", settings, Screen())
    assert [table.name for table in tables] == ["field-synthetic", "field-digits", "field"]
    labels = {one.label for one in Contestant.parse_all(field().contestants)}
    for table in tables[:2]:
        numbers = {(number.row, number.column): number for number in table.numbers}
        assert {number.row for number in table.numbers} == labels == table.chosen.keys()
        assert all(f"{label}, {{" not in note for label in labels for note in table.notes)  # nothing failed
        ahead = numbers["term", "worst10 - fedavg"]
        assert ahead.ours == pytest.approx(numbers["term", "worst10"].ours - numbers["fedavg", "worst10"].ours)
        assert ahead.low <= ahead.ours <= ahead.high  # of one seed: over examples
        ranks = [number.ours for number in table.numbers if number.column == "rank"]
        assert ranks == sorted(ranks)
        assert sum(ranks) == pytest.approx(len(labels) * (len(labels) + 1) / 2)
    assert len(table_of(tables[2]).rows) == len(labels)
    assert all(left.estimate.nothing for left in left_to_run("field", settings))


def test_a_few_of_the_field(tmp_path: Path) -> None:
    settings = Settings(scale="smoke", out=tmp_path, only=("term",), experiments=("digits",), seeds=(3, 4))
    (table,) = reproduce("field", settings, Screen())
    assert {number.row for number in table.numbers} == {"term", "fedavg"}
    assert "±" in str(table_of(table).rows)
    written = write_reproduction(table, tmp_path)
    with (tmp_path / "field-digits.csv").open() as file:
        assert {"rank", "mean", "worst10 - fedavg"} <= {row["column"] for row in csv.DictReader(file)}
    assert {path.suffix for path in written} == {".md", ".tex", ".csv", ".json"}


def test_what_the_field_refuses(tmp_path: Path) -> None:
    for changes, said in (
        ({"scale": "paper"}, "no scale 'paper'; it has: small, smoke"),
        ({"published": True}, "leave --published out"),
        ({"experiments": ("mnist",)}, "has no experiment 'mnist'"),
        ({"only": ("fedavgg",)}, "unknown contestant 'fedavgg'. Did you mean 'fedavg'"),
    ):
        with pytest.raises(ConfigError, match=said):
            reproduce("field", Settings(**{"scale": "smoke", "out": tmp_path, **changes}), Screen())  # type: ignore[arg-type]


def test_where_runs_are_dear_trials_are_short_and_seeds_few(tmp_path: Path) -> None:
    sweep, _ = ranking_sweep(field(), "cifar10", Settings(scale="small", out=tmp_path))
    one = sweep.contestants[0]
    point = sweep.example(one)
    assert sweep.trial_config(one, point).schedule.rounds == 10 < sweep.final_config(one, point, 0).schedule.rounds
    assert sweep.seeds == (0, 1, 2)
    usual, _ = ranking_sweep(field(), "digits", Settings(scale="small", out=tmp_path))
    assert usual.seeds == (0, 1, 2, 3, 4)
    assert usual.search.rounds is None
