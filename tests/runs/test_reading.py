"""From run folders to groups: what is found, what is refused, and with what words."""

import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from propfair.errors import DataError
from propfair.runs.grouping import by_clients
from propfair.runs.measures import ACCURACY, Measure, Values
from propfair.runs.reading import find_runs, read_run, read_runs
from tests.report.builders import write_run
from tests.sealing import reseal


def test_runs_are_found_below_any_folder(tmp_path: Path) -> None:
    inner = write_run(tmp_path / "sweep" / "deep" / "b")
    outer = write_run(tmp_path / "sweep" / "a")
    (tmp_path / "sweep" / "pictures").mkdir()
    found, problems = find_runs([tmp_path / "sweep", outer])
    assert found == [outer, inner]
    assert not problems


def test_what_is_not_a_run_is_said(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good")
    half = tmp_path / "half"
    shutil.copytree(good, half)
    (half / "status.json").unlink()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    runs, problems = read_runs([good, half, tmp_path / "empty", tmp_path / "file", tmp_path / "missing"])
    assert [run.folder for run in runs] == [good]
    said = {problem.path.name: str(problem) for problem in problems}
    assert "no status.json" in said["half"]
    assert "not a run folder" in said["empty"]
    assert "this is a file" in said["file"]
    assert "no such folder" in said["missing"]


def _drop_sizes(run: Path) -> None:
    content = json.loads((run / "clients.json").read_text())
    (run / "clients.json").write_text(json.dumps({**content, "sizes": {"train": [1]}}))


def _stranger(run: Path) -> None:
    table = pq.read_table(run / "records.parquet").slice(0, 1)
    client = pa.array([99], pa.int32())
    pq.write_table(table.set_column(2, "client", client), run / "records.parquet")


def _set(**settings: object) -> Callable[[Path], None]:
    """Change the settings of a run from Python."""

    def change(run: Path) -> None:
        content = json.loads((run / "environment.json").read_text())
        (run / "environment.json").write_text(json.dumps({**content, "settings": settings}))

    return change


def _nested(depth: int) -> dict[str, object]:
    return {"a": _nested(depth - 1)} if depth else {}


def _rename_metric(name: str) -> Callable[[Path], None]:
    def rename(run: Path) -> None:
        table = pq.read_table(run / "records.parquet")
        pq.write_table(table.set_column(4, "metric", pa.array([name] * len(table))), run / "records.parquet")

    return rename


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: (run / "records.parquet").write_bytes(b"PAR1 half"), "records.parquet can't be read"),
        (lambda run: (run / "status.json").write_text('{"format": 1, "name": "x", "rounds": "many"}'), "status.json"),
        (lambda run: (run / "status.json").write_text('{"format": 99}'), "format 99"),
        (lambda run: (run / "status.json").write_text('{"state"'), "not valid JSON"),
        (lambda run: (run / "clients.json").write_text("{}"), "clients.json: fingerprint"),
        (lambda run: (run / "clients.json").unlink(), "it has no clients.json"),
        (lambda run: (run / "config.toml").write_text("= 1"), "not valid TOML"),
        (lambda run: (run / "config.toml").write_bytes(b"\xff\xfe"), "config.toml"),
        (_drop_sizes, "sizes.train has 1 entries for 10 clients"),
        (_stranger, "client 99"),
        (_rename_metric("\x1b[31m"), "the name of no split and no metric"),
        (_rename_metric("long" * 10**6), "the name of no split and no metric"),
        (_set(server=5), "server must be a table of settings"),
        (_set(local=_nested(500)), "settings are nested at most"),
        (lambda run: (run / "config.toml").write_text("data = 'digits'"), "config.toml: data must be a table"),
        (lambda run: (run / "config.toml").write_text("seed = 2020-01-01"), "config.toml: settings can't be dates"),
        (lambda run: (run / "config.toml").write_text(f"a{'.a' * 3000} = 1"), "config.toml: settings are nested"),
    ],
)
def test_a_spoilt_folder_is_a_problem_and_the_others_are_read(tmp_path: Path, spoil: object, said: str) -> None:
    bad, good = write_run(tmp_path / "bad"), write_run(tmp_path / "good")
    assert callable(spoil)
    spoil(bad)
    _, (found,) = read_runs([bad])
    assert "bad" in str(found), "what is sealed and damaged is named"
    if "status.json" not in said and "format" not in said and "JSON" not in said:
        reseal(bad)
    runs, problems = read_runs([tmp_path])
    assert [run.folder for run in runs] == [good]
    assert len(problems) == 1
    assert said in str(problems[0])
    assert "bad" in str(problems[0])


def test_a_run_is_read_as_it_was_recorded(tmp_path: Path) -> None:
    values = [0.1, 0.5, 0.9]
    run = read_run(write_run(tmp_path / "r", name="x, seed 3", seed=3, num_clients=3, rounds=4, eval_every=2,
                             accuracy=values))  # fmt: skip
    assert (run.label, run.name, run.seed, run.total_rounds, run.personal) == ("fedavg", "x, seed 3", 3, 4, False)
    accuracy, loss = run.measured(ACCURACY), run.measured(Measure("test", "loss"))
    weight = run.series("round", "weight")
    assert accuracy is not None
    assert loss is not None
    assert weight is not None
    assert accuracy.rounds.tolist() == [2, 4]
    np.testing.assert_allclose(accuracy.last, values)
    np.testing.assert_array_equal(run.values(), accuracy.last)
    np.testing.assert_allclose(loss.values[0], 2 - np.array(values) / 2)
    assert weight.values.shape == (4, 3)
    np.testing.assert_allclose(weight.values.sum(axis=1), 1)
    assert run.series("round", "weight") is weight  # made once
    assert run.series("test", "luck") is None


def test_personal_models_take_the_place_of_the_global_one(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "r", personal=True))
    assert run.personal
    assert run.measures == (Measure("test", "accuracy"), Measure("test", "loss"))


def test_a_run_that_goes_on_is_read(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "r", state="running", rounds=10, eval_every=1))
    assert run.status.state == "running"
    accuracy = run.measured(ACCURACY)
    assert accuracy is not None
    assert accuracy.rounds.tolist() == [1, 2, 3, 4, 5]


def _values(table: npt.ArrayLike, first: int = 0) -> Values:
    """What is not NaN in a table [T, n], recorded from round `first` on."""
    dense = np.asarray(table, dtype=np.float64)
    place, client = np.nonzero(~np.isnan(dense))
    columns = (place + first).astype(np.int32), client.astype(np.int32), dense[place, client]
    return Values.of(*columns, num_clients=dense.shape[1])


def test_values_are_thinned_without_losing_their_end() -> None:
    values = _values(np.arange(200.0).reshape(100, 2), 1)
    picked = values.picked(7)
    assert picked.thinned
    assert len(picked.rounds) == 7
    assert picked.rounds[-1] == 100
    averaged = values.averaged(10)
    assert averaged.rounds.tolist() == list(range(1, 101, 10))
    np.testing.assert_allclose(averaged.values.mean(axis=0), values.whole().values.mean(axis=0))
    assert not values.picked(100).thinned
    np.testing.assert_array_equal(values.last().values, [[198.0, 199.0]])
    assert [len(piece.rounds) for piece in values.pieces(60)] == [30, 30, 30, 10]
    absent = _values([[0.0, np.nan], [np.nan, 1.0], [2.0, np.nan], [3.0, np.nan]]).averaged(2)
    np.testing.assert_array_equal(absent.values, [[0.0, 1.0], [2.5, np.nan]])


def test_many_clients_over_many_rounds_are_not_a_table() -> None:
    n, rounds, cohort = 20_000, 20_000, 10
    rng = np.random.default_rng(0)
    number = np.repeat(np.arange(1, rounds + 1, dtype=np.int32), cohort)
    client = rng.integers(0, n, rounds * cohort).astype(np.int32)
    values = Values.of(number, client, np.ones(rounds * cohort), n)
    tracemalloc.start()
    averaged = values.averaged(150)
    assert tracemalloc.get_traced_memory()[1] < 200e6  # a table of all takes 3.2 GB
    tracemalloc.stop()
    assert averaged.values.shape == (150, n)
    assert np.nanmean(averaged.values) == 1


def test_seeds_of_one_setting_are_one_group(tmp_path: Path) -> None:
    for seed in (1, 0):
        write_run(tmp_path / f"p{seed}", name=f"propfair, seed {seed}", algorithm="propfair", seed=seed)
    write_run(tmp_path / "f", name="fedavg", started="2025-01-01T00:00:00+00:00")
    write_run(tmp_path / "other", name="fedavg", num_clients=5)
    runs, _ = read_runs([tmp_path])
    first, second = by_clients(runs)
    assert [group.label for group in first.groups] == ["fedavg", "propfair"]  # by start
    assert [run.seed for run in first.groups[1].runs] == [0, 1]
    assert first.differing == ["algorithm.name"]
    assert len(second.clients.names) == 5


def test_the_same_seed_twice_is_no_second_seed(tmp_path: Path) -> None:
    write_run(tmp_path / "monday" / "r")
    write_run(tmp_path / "friday" / "r")
    runs, _ = read_runs([tmp_path])
    (comparison,) = by_clients(runs)
    assert sorted(group.label for group in comparison.groups) == ["fedavg (friday)", "fedavg (monday)"]


def test_labels_tell_settings_apart(tmp_path: Path) -> None:
    for number, M in enumerate((2, 3, 3)):
        write_run(tmp_path / f"r{number}", name="propfair", algorithm="propfair", settings=f"M = {M}")
    runs, _ = read_runs([tmp_path])
    labels = [group.label for group in by_clients(runs)[0].groups]
    assert labels[0] == "propfair(M=2)"
    assert len(set(labels)) == 3


def test_a_run_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r")
    (run / "status.json").write_text('{"format": 3}')
    with pytest.raises(DataError, match="format 3"):
        read_run(run)
