"""Natural clients under several conditions: trained, and made again from records."""

import dataclasses
from pathlib import Path

import pytest
import torch

from propfair.errors import ConfigError, DataError
from propfair.paper.catalogue import Natural, load_preset
from propfair.paper.reproduce import left_to_run, reproduce
from propfair.paper.reproduced import Reproduced
from propfair.paper.settings import Settings
from propfair.paper.tables import table_of
from propfair.runs.contestant import Contestant
from propfair.runs.keeping import keep_runs
from propfair.runs.reading import read_run, read_runs
from propfair.runs.toml import flat
from propfair.tuning.estimate import Pace
from tests.paper.test_reproduce import Screen

pytest.importorskip("faker")

ROOT = Path(__file__).parents[2]


def redo(out: Path, **changes: object) -> Reproduced:
    (table,) = reproduce("natural", Settings(scale="smoke", out=out, **changes), Screen())  # type: ignore[arg-type]
    return table


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reproduced, Path]:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("natural")
    return redo(out, only=("propfair",)), out


def test_conditions_cover_participation_and_epochs() -> None:
    preset = load_preset("natural")
    assert isinstance(preset, Natural)
    settings = [flat(one) for one in preset.conditions.values()]
    assert {one["server.participation"] for one in settings} == {1.0, 0.3}
    assert {one["local.epochs"] for one in settings} == {1, 2, 5}
    assert {"form-fields", "shakespeare"} == preset.at("small").data.keys()
    assert preset.reference in [one.label for one in Contestant.parse_all(preset.contestants)]


def test_every_condition_has_its_runs_and_its_differences(trained: tuple[Reproduced, Path]) -> None:
    table, _ = trained
    runs, problems = read_runs(table.runs)
    assert not problems
    told = {(run.config["server"]["participation"], run.config["local"]["epochs"]) for run in runs}
    assert len(told) == 6
    assert len(runs) == 6 * 2 * 2
    held = [number for number in table.numbers if number.column == "mean - fedavg"]
    assert [number.row.partition(": ")[2] for number in held] == ["propfair"] * 6
    by_name = {(one.row, one.column): one.ours for one in table.numbers}
    row = "all clients, 1 epoch: propfair"
    averaging = by_name["all clients, 1 epoch: fedavg", "mean"]
    assert by_name[row, "mean - fedavg"] == pytest.approx(by_name[row, "mean"] - averaging)
    assert any("Fewer than 3 seeds" in note for note in table.notes)


def test_what_is_left_is_counted_and_grows_with_the_work(
    trained: tuple[Reproduced, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, out = trained
    (left,) = left_to_run("natural", Settings(scale="smoke", out=out, only=("propfair",)))
    assert left.estimate.nothing
    monkeypatch.setattr("propfair.paper.natural.measure_pace", lambda *_: Pace(2.0, 0.0))
    (left,) = left_to_run("natural", Settings(scale="smoke", out=out, only=("propfair", "afl")))
    assert left.labels == ("fedavg", "afl", "propfair")
    assert left.estimate.num_finals == 6 * 2  # AFL's
    of_all = (1 + 2 + 5) * (1 + 0.3)  # epochs, and shares of the clients
    assert left.estimate.seconds == pytest.approx(2 * 2.0 * of_all)
    monkeypatch.setattr("propfair.paper.natural.measure_pace", lambda *_: Pace(0.0, 3.0))
    sizes = read_run(table.runs[0]).clients.sizes
    (left,) = left_to_run("natural", Settings(scale="smoke", out=out, only=("afl",)))
    evaluated = sum(sizes["validation"]) + sum(sizes["test"])
    assert left.estimate.seconds == pytest.approx(6 * 2 * 3.0 * evaluated)
    (left,) = left_to_run("natural", Settings(scale="smoke", out=tmp_path / "nothing"))
    assert left.estimate.num_finals == 6 * 4 * 2
    assert not (tmp_path / "nothing").exists()


def test_records_give_the_same_table_without_training(trained: tuple[Reproduced, Path], tmp_path: Path) -> None:
    table, _ = trained
    runs, _ = read_runs(table.runs)
    kept = tmp_path / "kept.parquet"
    keep_runs(runs, kept)
    again = redo(tmp_path / "nothing", records=(kept,))
    assert table_of(again) == table_of(table)
    assert not (tmp_path / "nothing").exists()
    failed = [
        dataclasses.replace(run, status=run.status.model_copy(update={"state": "failed"}))
        for run in runs if run.plain_name == "propfair"
    ]  # fmt: skip
    keep_runs([*failed, *(run for run in runs if run.plain_name == "fedavg")], kept)
    left = redo(tmp_path / "nothing", records=(kept,))
    assert all(number.row.endswith(": fedavg") for number in left.numbers)
    assert (
        sum("Runs that failed and have no part in the numbers: propfair (2 of 2)" in note for note in left.notes) == 6
    )


def test_what_can_not_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no published values"):
        redo(tmp_path, published=True)
    with pytest.raises(ConfigError, match=r"--seeds or --published would change them"):
        redo(tmp_path, records=(ROOT / "results" / "natural-form-fields.parquet",), seeds=(7,))
    with pytest.raises(ConfigError, match="fedavgg"):
        redo(tmp_path, only=("fedavgg",))
    with pytest.raises(DataError, match="no runs of Natural clients"):
        redo(tmp_path, records=(ROOT / "results" / "untuned-digits.parquet",))
