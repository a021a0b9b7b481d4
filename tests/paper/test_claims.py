"""The claims of the paper: what records must say for a claim to hold, to fail, or to stay open."""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("optuna")

from propfair.errors import ConfigError, DataError
from propfair.paper import catalogue
from propfair.paper import claims as judging
from propfair.paper.catalogue import Experiment, load_experiment, load_preset
from propfair.paper.claims import Judged, claims_table, judge
from propfair.paper.onrecord import on_record, read_records
from propfair.paper.reproduce import Silent, reproduce
from propfair.paper.reproduced import Reproduced
from propfair.paper.settings import Settings
from propfair.runs.keeping import keep_runs
from propfair.runs.records import CLIENT_SCHEMA, ROUND_SCHEMA
from propfair.runs.run import Clients, Environment, Run, RunState, Start, Status
from propfair.tuning.search import Sweep
from tests.report.builders import write_run

TITLE = "CIFAR-10"


@functools.cache
def planned(experiment: str, label: str) -> tuple[Experiment, Sweep]:
    plan = load_experiment(experiment)
    return plan, plan.sweep("x", "small", only=[label])


def made(
    label: str, accuracies: Sequence[float], seed: int = 0, *, train: float | None = None, then: str = "",
    experiment: str = "cifar10", dropped: int = 0, changes: Mapping[str, object] = MappingProxyType({}),
    state: RunState = "finished",
) -> Run:  # fmt: skip
    """A run of an experiment at scale small with these test accuracies, as `reproduce` would have left it."""
    plan, sweep = planned(experiment, label)
    contestant = sweep.contestants[0]
    config = sweep.final_config(contestant, {**sweep.example(contestant), **changes}, seed)
    rounds = config.schedule.rounds
    if then:
        rounds = plan.rounds_to_finetune("small")
        config = config.changed(schedule=dataclasses.replace(config.schedule, rounds=rounds))
    splits = {"test": list(accuracies)} | ({} if train is None else {"train": [train] * len(accuracies)})
    rows = [
        (rounds, client, split, "accuracy", value)
        for split, values in splits.items()
        for client, value in enumerate(values)
    ]
    name = f"{label}, seed {seed}" + (f" then {then}" if then else "")
    columns = list(zip(*rows, strict=True))
    records = pa.table([pa.array([name] * len(rows)), *map(pa.array, columns)], names=CLIENT_SCHEMA.names)
    diagnostics = pa.table(
        [pa.array([name]), pa.array([1]), pa.array(["num_dropped"]), pa.array([float(dropped)])],
        names=ROUND_SCHEMA.names,
    )
    sizes = (200,) * len(accuracies)
    start = Start(run=f"/somewhere/{label}", label=label, rounds=1) if then else None
    return Run(
        None, config.to_toml(), Status(name=name, state=state, rounds=rounds),
        Environment(seed=seed, start=start),
        Clients(fingerprint=experiment, names=tuple("abcdefghij"), sizes={"train": sizes, "test": sizes}),
        records.cast(CLIENT_SCHEMA), diagnostics.cast(ROUND_SCHEMA),
    )  # fmt: skip


def seeds(label: str, level: float, *, spread: float = 0.002, **options: object) -> list[Run]:
    """Five seeds of ten clients around a level; the worst client is ten points below."""
    rng = np.random.default_rng([round(1000 * level), *label.encode()])
    return [
        made(label, np.r_[level - 0.1, np.full(9, level)] + rng.normal(0, spread, 10), seed, **options)  # type: ignore[arg-type]
        for seed in range(5)
    ]


def found(runs: list[Run], kind: str) -> Judged:
    preset = load_preset("claims")
    assert isinstance(preset, catalogue.Claims)
    judged, _ = judge(preset, runs)
    return next(one for one in judged if one.claim.kind == kind)


ALL = ("fedavg", "q-ffl", "afl", "term", "gifair", "fedmgda+")


def test_without_records_nothing_is_measured() -> None:
    preset = load_preset("claims")
    assert isinstance(preset, catalogue.Claims)
    judged, notes = judge(preset, [])
    assert {one.finding for one in judged} == {"not measured"}
    assert notes == []
    assert len(claims_table(preset, judged, notes).rows) == len(preset.claims), "a line for each claim"


@pytest.mark.parametrize(("level", "finding"), [(0.9, "holds"), (0.5, "undecided"), (0.3, "does not hold")])
def test_the_best_is_ahead_of_all_beyond_chance(level: float, finding: str) -> None:
    rivals = [run for label in ALL for run in seeds(label, 0.5, spread=0.02)]
    one = found([*seeds("propfair", level, spread=0.02), *rivals], "best")
    assert (one.finding, one.data, one.scale, one.seeds) == (finding, TITLE, "small", 5)
    assert {number.row for number in one.numbers} == {"propfair", *ALL}
    ours = next(number for number in one.numbers if number.row == "propfair")
    assert ours.ours == pytest.approx(100 * (level - 0.1), abs=3)
    assert ours.paper == 58.14


def test_a_claim_about_all_does_not_hold_on_a_part() -> None:
    one = found([*seeds("propfair", 0.9), *seeds("fedavg", 0.5)], "best")
    assert one.finding == "undecided"
    assert "not run: q-ffl, afl, term, gifair, fedmgda+" in one.said
    assert found([*seeds("propfair", 0.3), *seeds("fedavg", 0.5)], "best").finding == "does not hold"


def test_relative_changes_and_their_sign() -> None:
    rivals = ("fedavg", "afl", "q-ffl", "term")
    worse = [run for label in rivals for run in seeds(label, 0.5)]
    assert found([*seeds("propfair", 0.7), *worse], "relative").finding == "holds"
    one = found([*seeds("propfair", 0.4), *worse], "relative")
    assert one.finding == "does not hold"
    assert all(number.low < number.ours < number.high and number.low > 0 for number in one.numbers)
    assert {number.row: number.paper for number in one.numbers}["q-ffl"] == -12.95


def test_the_order_of_means() -> None:
    order = ["propfair", "afl", "term", "gifair", "fedavg", "fedmgda+", "q-ffl"]

    def ordered(labels: Sequence[str]) -> Judged:
        return found([run for place, one in enumerate(labels) for run in seeds(one, 0.9 - 0.05 * place)], "order")

    assert ordered(order).finding == "holds"
    backwards = ordered(order[::-1])
    assert backwards.finding == "does not hold"
    assert "of 17 pairs that the paper's standard deviations tell apart 0 surely in its order, 17" in backwards.said


def test_training_on() -> None:
    starts = seeds("propfair", 0.5, experiment="cifar100") + seeds("fedavg", 0.5, experiment="cifar100")
    same = [run for label in ("fedavg", "afl", "q-ffl", "term")
            for run in seeds("propfair", 0.4, experiment="cifar100", then=label)]  # fmt: skip
    assert found([*starts, *same], "finetuned").finding == "holds"
    better = seeds("propfair", 0.6, experiment="cifar100", then="fedavg")
    assert found([*starts, *better], "finetuned").finding == "does not hold"


def test_the_generalisation_gap_needs_training_accuracies() -> None:
    def runs(train: float | None) -> list[Run]:
        return seeds("afl", 0.5, train=train) + seeds("propfair", 0.5, train=0.7)

    assert found(runs(0.9), "gap").finding == "holds"
    assert found(runs(0.6), "gap").finding == "does not hold"
    assert found(runs(None), "gap").said == "no training accuracies on record"
    assert "mean training accuracy 90.0 under afl, 70.0 under propfair" in found(runs(0.9), "gap").said


def test_the_generalisation_gap_of_what_still_moves_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = seeds("afl", 0.5, train=0.9) + seeds("propfair", 0.5, train=0.7)
    monkeypatch.setattr(judging, "not_at_rest", lambda _: ["Not at rest at the end: propfair."])
    one = found(runs, "gap")
    assert one.finding == "undecided"
    assert "not all are at rest" in one.said


def test_what_diverges_is_counted() -> None:
    def runs(diverged: int, whole: int) -> list[Run]:
        counts = [1] * diverged + [0] * whole
        return [
            made("q-ffl", [0.5] * 10, seed, dropped=count, changes={"algorithm.q": 5.0})
            for seed, count in enumerate(counts)
        ]

    assert found(runs(4, 0), "diverges").finding == "holds"
    one = found(runs(2, 2), "diverges")
    assert one.finding == "undecided", "of four runs"
    assert one.said.startswith("2 of 4 runs diverged")
    assert found(runs(0, 9), "diverges").finding == "undecided", "nine runs leave room for one in four"
    assert found(runs(0, 20), "diverges").finding == "does not hold"
    assert found(runs(1, 0), "diverges").finding == "undecided", "one seed decides nothing"
    assert found(seeds("q-ffl", 0.5), "diverges").finding == "not measured", "q is 0.1"


def test_a_run_that_failed_counts_as_diverged_and_gives_no_numbers(tmp_path: Path) -> None:
    failed = made("q-ffl", [0.1] * 10, state="failed", changes={"algorithm.q": 5.0})
    runs = [*seeds("propfair", 0.9), *seeds("fedavg", 0.5), failed]
    keep_runs(runs, tmp_path / "all.parquet")
    kept = read_records([tmp_path])
    assert found(kept, "diverges").said.startswith("1 of 1 runs diverged")
    assert {number.row for number in found(kept, "best").numbers} == {"propfair", "fedavg"}
    starts = seeds("propfair", 0.5, experiment="cifar100")
    then = [made("propfair", [0.9] * 10, seed, experiment="cifar100", then="fedavg", state="failed") for seed in (0, 1)]
    assert found([*starts, *then], "finetuned").finding == "not measured"


def test_runs_of_other_settings_are_no_runs_of_the_experiment() -> None:
    assert on_record([made("fedavg", [0.5] * 10, changes={"schedule.rounds": 7})], "cifar10") == []
    assert on_record(seeds("fedavg", 0.5), "cifar100") == []
    (records,) = on_record(
        [made("fedavg", [0.5] * 10), made("fedavg", [0.6] * 10, 1, changes={"local.lr": 7.0})], "cifar10"
    )
    with pytest.raises(DataError, match="2 different settings"):
        records.group("fedavg")


def test_records_that_were_kept_say_the_same_and_know_no_paths(tmp_path: Path) -> None:
    runs = [*seeds("propfair", 0.9), *seeds("fedavg", 0.5), made("q-ffl", [0.5] * 10, dropped=3)]
    runs.append(made("propfair", [0.5] * 10, experiment="cifar100", then="fedavg"))
    keep_runs(runs, tmp_path / "all.parquet")
    again = read_records([tmp_path])
    assert found(again, "best") == found(runs, "best")
    assert [run.num_dropped for run in again] == [run.num_dropped for run in runs]
    assert again[-1].environment.start is not None
    assert again[-1].environment.start.run == "propfair", "no folder of the machine"


def test_claims_are_not_trained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trains nothing"):
        reproduce("claims", Settings(scale="smoke", out=tmp_path), None)  # type: ignore[arg-type]


def test_the_numbers_are_json() -> None:
    one = found([*seeds("propfair", 0.9), *seeds("fedavg", 0.5)], "best")
    assert json.loads(json.dumps([number.as_dict() for number in one.numbers]))[0]["paper"] == 58.14


def test_a_table_of_the_paper_from_records(tmp_path: Path) -> None:
    file = tmp_path / "kept.parquet"
    keep_runs([*seeds("propfair", 0.6), *seeds("fedavg", 0.5)], file)
    (table,) = reproduce("table6-cifar10", Settings(scale="small", out=tmp_path, records=(file,)), Silent())
    assert list(dict.fromkeys(number.row for number in table.numbers)) == ["fedavg", "propfair"], "the paper's order"
    mean = next(number for number in table.numbers if (number.row, number.column) == ("propfair", "mean"))
    assert mean.ours == pytest.approx(59, abs=0.2)
    assert (mean.paper, mean.paper_std) == (64.75, 0.10)
    said = " ".join(table.notes)
    assert "no runs on record: q-ffl, afl, term, gifair, fedmgda+" in said
    assert "fedavg lr=0.05, seeds 0, 1, 2, 3, 4" in said
    with pytest.raises(DataError, match=r"at scale paper.*runs of: small"):
        reproduce("table6-cifar10", Settings(scale="paper", out=tmp_path, records=(file,)), Silent())
    changed = Settings(scale="small", out=tmp_path, records=(file,), overrides={"local.lr": 1.0})
    with pytest.raises(ConfigError, match=r"local.lr would change them"):
        reproduce("table6-cifar10", changed, Silent())
    with pytest.raises(ConfigError, match=r"unknown algorithm of table6-cifar10 'propfair-default'"):
        reproduce("table6-cifar10", Settings(scale="small", out=tmp_path, only=("propfair-default",)), Silent())


def test_figures_of_the_paper_from_records(tmp_path: Path) -> None:
    file = tmp_path / "kept.parquet"

    def redo(name: str, **changes: object) -> Reproduced:
        settings = Settings(scale="small", out=tmp_path, records=(file,), **changes)  # type: ignore[arg-type]
        (figure,) = reproduce(name, settings, Silent())
        return figure

    keep_runs([*seeds("propfair", 0.6), *seeds("fedavg", 0.5), *seeds("afl", 0.7)], file)
    figure = redo("figure2")
    changes = {number.row: number.ours for number in figure.numbers}
    assert list(changes) == ["fedavg", "afl"]
    assert changes["fedavg"] < -15 < 15 < changes["afl"]
    assert any(note.startswith("propfair: refuted by afl") for note in figure.notes)
    assert "no runs on record: q-ffl, term" in figure.notes
    assert [number.row for number in redo("figure2", only=("afl",)).numbers] == ["afl"]
    assert {number.row for number in redo("figure5", experiments=("cifar10",)).numbers} == {
        f"cifar10: {label}" for label in ("fedavg", "afl", "propfair")
    }
    assert "no runs on record: CIFAR-100, TinyImageNet, Shakespeare" in redo("figure5").notes
    assert [number.row for number in redo("table6").numbers if number.column == "mean"] == ["fedavg", "afl", "propfair"]
    with pytest.raises(DataError, match=r"CIFAR-100.*scales that there are runs of: none"):
        redo("figure3")
    for name in ("field", "table4-hyperparameters", "figure1"):
        with pytest.raises(ConfigError, match=f"{name} does not. Leave it out"):
            redo(name)

    starts = seeds("propfair", 0.5, experiment="cifar100") + seeds("fedavg", 0.4, experiment="cifar100")
    keep_runs([*starts, *seeds("fedavg", 0.6, experiment="cifar100", then="propfair")], file)
    figure = redo("figure4")
    assert [(number.row, number.paper) for number in figure.numbers] == [("fedavg", 10.88)]
    assert figure.numbers[0].ours == pytest.approx(50, abs=8), "from 0.4 to 0.6"
    assert len(figure.certified) == 1
    with pytest.raises(DataError, match=r"too few runs for Figure 3.*there is: propfair, fedavg, fedavg then propfair"):
        redo("figure3")


def test_a_run_folder_itself_is_a_place_of_records(tmp_path: Path) -> None:
    """Its tables were taken for files of kept runs."""
    write_run(tmp_path / "one", name="one")
    assert [run.name for run in read_records([tmp_path / "one"])] == ["one"]
    assert [run.name for run in read_records([tmp_path])] == ["one"]
    with pytest.raises(DataError, match="there is no such folder"):
        read_records([tmp_path / "nothing"])
    keep_runs([made("fedavg", [0.5] * 10)], tmp_path / "kept.parquet")
    assert [run.name for run in read_records([tmp_path])] == ["fedavg, seed 0", "one"], "files and folders side by side"


def test_a_run_that_is_found_twice_is_no_second_seed(tmp_path: Path) -> None:
    """Means and spreads counted it twice."""
    runs = [*seeds("propfair", 0.9), *seeds("fedavg", 0.5)]
    for name in ("one", "copy"):
        keep_runs(runs, tmp_path / f"{name}.parquet")
    assert found(read_records([tmp_path]), "best") == found(runs, "best")
    other = dataclasses.replace(runs[0], environment=runs[0].environment.model_copy(update={"started": "later"}))
    (records,) = on_record([*runs, other], "cifar10")
    with pytest.raises(DataError, match="two runs of propfair on CIFAR-10 at scale small with seed 0"):
        records.group("propfair")


def test_one_seed_decides_nothing() -> None:
    runs = [
        one for label, level in (("propfair", 0.9), *((rival, 0.5) for rival in ALL)) for one in seeds(label, level)
    ]
    one = found([run for run in runs if run.seed == 0], "best")
    assert (one.finding, one.seeds) == ("undecided", 1)
    assert "one seed: intervals are over test examples" in one.said
    assert found(runs, "best").finding == "holds"


def test_a_gap_needs_a_seed_that_both_have() -> None:
    runs = [made("afl", [0.5] * 10, 0, train=0.9), made("propfair", [0.5] * 10, 1, train=0.6)]
    one = found(runs, "gap")
    assert one.finding == "not measured"
    assert "no seed that both afl and propfair were run with" in one.said


def test_runs_that_differ_in_a_setting_alone_are_two(tmp_path: Path) -> None:
    one, other = (made("fedavg", [0.5] * 10, changes={"local.lr": rate}) for rate in (0.1, 0.2))
    keep_runs([one, other], tmp_path / "kept.parquet")
    found = read_records([tmp_path / "kept.parquet", tmp_path])
    assert [run.config["local"]["lr"] for run in found] == [0.1, 0.2], "each of them once"


def test_runs_whose_clients_start_apart_are_another_experiment() -> None:
    """The notes below a table say that all clients start from one model."""
    (record,) = on_record(
        [made("fedavg", [0.5] * 10), made("propfair", [0.5] * 10, changes={"init": "independent"})], "cifar10"
    )
    assert list(record.runs) == ["fedavg"]


def test_runs_that_failed_are_told() -> None:
    whole = [run for label in ALL for run in seeds(label, 0.5)]
    best = seeds("propfair", 0.9)
    failed = [made("propfair", [0.9] * 10, seed, state="failed") for seed in (3, 4)]
    one = found([*whole, *best[:3], *failed], "best")
    assert one.finding == "undecided", "all that ended is ahead, but two of five did not"
    assert "runs that failed and have no part in the numbers: propfair (2 of 5)" in one.said
    assert found([*whole, *best], "best").finding == "holds"


def test_seeds_are_those_that_a_comparison_has() -> None:
    rivals = [run for label in ("fedavg", "afl", "q-ffl", "term") for run in seeds(label, 0.5)[1:]]
    one = found([*seeds("propfair", 0.4)[:2], *rivals], "relative")
    assert (one.seeds, one.finding) == (1, "undecided"), "they share seed 1"
    assert "one seed: intervals are over test examples" in one.said
    one = found([*seeds("propfair", 0.4)[:1], *rivals], "relative")
    assert (one.finding, one.missing) == ("not measured", ("fedavg", "afl", "q-ffl", "term")), "no seed in common"
    behind = [*seeds("propfair", 0.4), *seeds("fedavg", 0.5), *seeds("term", 0.6)[:1]]
    one = found(behind, "best")
    assert one.finding == "does not hold"
    assert "surely behind fedavg;" in one.said, "term has one seed"
    assert "comparisons with one seed decide nothing" in one.said


def test_what_is_no_better_need_not_be_worse() -> None:
    starts = seeds("propfair", 0.5, experiment="cifar100")
    same = [
        dataclasses.replace(
            run, status=run.status.model_copy(update={"name": f"propfair, seed {run.seed} then {label}"})
        )
        for label in ("fedavg", "afl", "q-ffl", "term")
        for run in seeds("propfair", 0.5, experiment="cifar100", then=label)
    ]
    assert found([*starts, *same], "finetuned").finding == "holds"


def test_a_run_with_other_values_is_another_experiment() -> None:
    other = made("propfair", [0.9] * 10, changes={"algorithm.M": 2.0})
    (records,) = on_record([other, made("fedavg", [0.5] * 10)], "cifar10")
    assert list(records.runs) == ["fedavg"], "M is 5 there"
    assert records.others == [other]


def test_the_papers_own_table_may_say_otherwise() -> None:
    runs = [
        made(label, [0.5] * 10, seed, experiment="shakespeare") for label in ("propfair", "afl") for seed in range(2)
    ]
    preset = load_preset("claims")
    assert isinstance(preset, catalogue.Claims)
    judged, _ = judge(preset, runs)
    one = next(one for one in judged if one.claim.kind == "best" and one.data == "Shakespeare" and one.seeds)
    assert "in the paper's own table afl has more" in one.said


def test_an_order_that_the_paper_does_not_tell_is_not_measured() -> None:
    one = found([*seeds("term", 0.6), *seeds("gifair", 0.5)], "order")
    assert (one.finding, one.data) == ("not measured", TITLE)
    assert "do not tell term and gifair apart" in one.said
