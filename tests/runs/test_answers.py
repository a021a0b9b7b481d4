"""Which test examples models get right, in the records of a run: kept, found again, and compared by."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from propfair.runs.answers import pack, unpack
from propfair.runs.grouping import group_runs
from propfair.runs.keeping import keep_runs, read_kept
from propfair.runs.launch import resume, run
from propfair.runs.reading import read_run
from propfair.runs.run import Run
from propfair.runs.standing import differences, gains, group_evidence
from tests.runs.killed import tiny


def words(right: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    found = []
    for clients, values in pack(right, sizes):
        found.append(np.full(sizes.size, np.nan))
        found[-1][clients] = values
    return found


@given(st.lists(st.sampled_from([0, 1, 7, 51, 52, 53, 104, 130]), min_size=1, max_size=6), st.integers(0, 99))
def test_packed_answers_come_back(sizes: list[int], seed: int) -> None:
    counts = np.array(sizes)
    right = np.random.default_rng(seed).random(counts.sum()) < 0.5
    found = unpack(words(right, counts), counts)
    assert found is not None
    assert np.array_equal(found, right)


@pytest.mark.parametrize("strange", [np.nan, np.inf, -1.0, 0.5, 2.0**52])
def test_what_is_no_answer_is_no_answer(strange: float) -> None:
    sizes = np.array([3, 60])
    packed = words(np.full(63, True), sizes)
    assert unpack(packed[:1], sizes) is None
    packed[0][1] = strange
    assert unpack(packed, sizes) is None


def digits(*overrides: str, rounds: int = 2) -> object:
    return tiny("data=digits", "data.partition=iid", "local.lr=0.5", *overrides, rounds=rounds)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    home = tmp_path_factory.mktemp("answers")
    for algorithm in ("fedavg", "propfair", "local-only", "ditto"):
        run(digits(f"algorithm={algorithm}"), home / algorithm)  # type: ignore[arg-type]
    return {path.name: read_run(path) for path in home.iterdir()}


@pytest.mark.parametrize("name", ["fedavg", "local-only", "ditto"])  # the last two serve clients by models of their own
def test_they_are_those_of_the_models_that_clients_are_served_by(runs: dict[str, Run], name: str) -> None:
    right = runs[name].answers()
    assert right is not None
    sizes = np.array(runs[name].clients.sizes["test"])
    owner = np.repeat(np.arange(sizes.size), sizes)
    assert np.bincount(owner, right, sizes.size) / sizes == pytest.approx(runs[name].values())


def test_they_are_no_measure_of_their_own(runs: dict[str, Run]) -> None:
    assert {measure.split for measure in runs["fedavg"].measures} <= {"train", "validation", "test"}
    assert "test/0" not in runs["fedavg"].round_metrics


def test_kept_runs_have_them(runs: dict[str, Run], tmp_path: Path) -> None:
    keep_runs([runs["fedavg"]], tmp_path / "kept.parquet")
    (kept,) = read_kept(tmp_path / "kept.parquet")
    assert np.array_equal(kept.answers(), runs["fedavg"].answers())  # type: ignore[arg-type]


def test_more_rounds_have_answers_of_their_own(tmp_path: Path) -> None:
    run(digits(), tmp_path / "longer")  # type: ignore[arg-type]
    first = read_run(tmp_path / "longer").answers()
    resume(tmp_path / "longer", rounds=6)
    last = read_run(tmp_path / "longer")
    run(digits(rounds=6), tmp_path / "whole")  # type: ignore[arg-type]
    assert np.array_equal(last.answers(), read_run(tmp_path / "whole").answers())  # type: ignore[arg-type]
    assert not np.array_equal(last.answers(), first)  # type: ignore[arg-type]


def test_answers_of_an_earlier_model_do_not_count(runs: dict[str, Run]) -> None:
    records = runs["fedavg"].records
    later = records.filter(pc.field("split") == "test")
    later = later.set_column(1, "round", pa.array([9] * len(later), pa.int32()))
    assert dataclasses.replace(runs["fedavg"], records=pa.concat_tables([records, later])).answers() is None


def test_one_seed_each_is_compared_example_by_example(runs: dict[str, Run]) -> None:
    groups = group_runs([runs["fedavg"], runs["propfair"]])
    found = differences(groups, "mean")
    assert found.over[0][1] == "examples"
    assert np.isfinite(found.low[0, 1])
    others = pc.field("split") != "answers"
    old = [dataclasses.replace(one, records=one.records.filter(others)) for one in runs.values()]
    assert all(one.answers() is None for one in old)
    assert differences(group_runs(old), "mean").over[0][1] == ""


def test_who_gains_by_joining_is_known_from_one_seed(runs: dict[str, Run]) -> None:
    group, alone = group_runs([runs["fedavg"], runs["local-only"]])
    found = gains(group, alone)
    assert np.isfinite(found.low).all()
    assert found.mean is not None
    assert found.mean.over == "examples"


def test_a_group_of_seeds_has_an_interval_over_both(tmp_path: Path) -> None:
    for seed in (0, 1):
        run(digits(f"seed={seed}"), tmp_path / str(seed))  # type: ignore[arg-type]
    (group,) = group_runs([read_run(tmp_path / str(seed)) for seed in (0, 1)])
    assert group_evidence(group, "mean").interval("both").leaves_out == ""
