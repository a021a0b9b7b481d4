"""One number, one sentence: what is said of the same runs is the same wherever it is said."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from propfair.fairness import certificate_evidence, decide
from propfair.fairness.statistics import summarize
from propfair.report.document import make_document
from propfair.report.figures import draw_figure
from propfair.report.group_table import group_table
from propfair.report.table_files import write_tables
from propfair.report.verdicts import Verdicts, judge
from propfair.report.words import headline
from propfair.runs.certificate import certify
from propfair.runs.grouping import by_clients
from propfair.runs.measures import ACCURACY
from propfair.runs.reading import read_run, read_runs
from tests.report.builders import write_run
from tests.report.typed import typed

WEIGHTED = ("weighted_mean", "weighted_std", "weighted_nash_welfare")


def write_seeds(folder: Path, skills: dict[str, float], seeds: int = 3) -> None:
    for name, skill in skills.items():
        for seed in range(seeds):
            write_run(folder / f"{name}-{seed}", name=f"{name}, seed {seed}", algorithm=name, seed=seed, skill=skill)


def test_weighted_statistics_are_the_same_everywhere(tmp_path: Path) -> None:
    """`Result.summary().weighted_mean` and `--format json` were unweighted where the saved run was not."""
    write_seeds(tmp_path / "runs", {"fedavg": 0.7, "propfair": 0.6}, seeds=1)
    runs, _ = read_runs([tmp_path / "runs"])
    (comparison,) = by_clients(runs)
    table = group_table(comparison, WEIGHTED)
    write_tables([table], tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["algorithm"]: row for row in csv.DictReader(file)}
    document = make_document(runs, [])["trials"][0]
    for run, group, cells in zip(runs, comparison.groups, table.cells, strict=True):
        expected = summarize(run.values(), weights=run.clients.sizes["train"]).as_dict()
        assert expected["weighted_mean"] != pytest.approx(expected["mean"], abs=1e-6)
        shown = document["groups"][comparison.groups.index(group)]["statistics"]["test/accuracy"]["weighted_mean"][0]
        assert shown == pytest.approx(expected["weighted_mean"], rel=1e-5)
        for name, cell in zip(WEIGHTED, cells, strict=True):
            assert run.summary().as_dict()[name] == group.statistics()[name].mean == cell.mean
            assert cell.mean == pytest.approx(expected[name], rel=1e-12)
            assert float(rows[group.label][f"{name}_mean"]) == cell.mean


def test_report_certify_and_library_say_the_same_words(tmp_path: Path) -> None:
    write_seeds(tmp_path / "runs", {"fedavg": 0.7, "propfair": 0.72, "afl": 0.5})
    runs, _ = read_runs([tmp_path / "runs"])
    (comparison,) = by_clients(runs)
    judged = judge(comparison, ACCURACY)
    assert isinstance(judged, Verdicts)
    reference = next(k for k, group in enumerate(comparison.groups) if group.label == "propfair")
    own = comparison.groups[reference]
    rest = [group for group in comparison.groups if group is not own]
    certified = certify(own.runs, [run for group in rest for run in group.runs])
    sizes = own.runs[0].clients.sizes
    library = decide(
        {
            group.label: certificate_evidence(group.values(), own.values(), sizes["train"], total=sizes["test"])
            for group in rest
        }
    )
    assert judged.words[reference] == certified.verdict.words == library.words
    folders = [str(run.folder) for group in (own, *rest) for run in group.runs]
    assert f"propfair: {library.words}" in typed("certify", *folders, "-o", str(tmp_path / "c.svg"))


def test_copies_of_the_reference_and_of_models_change_nothing(tmp_path: Path) -> None:
    """A duplicate of the reference turned "undecided" into "fair"."""
    write_seeds(tmp_path / "runs", {"fedavg": 0.7, "propfair": 0.7})
    shutil.copytree(tmp_path / "runs", tmp_path / "copies")
    copies = read_runs([tmp_path / "copies"])[0]
    own = [read_run(tmp_path / "runs" / f"propfair-{seed}") for seed in range(3)]
    others = [read_run(tmp_path / "runs" / f"fedavg-{seed}") for seed in range(3)]
    before, after = certify(own, others), certify(own, [*others, *copies])
    assert len(after.others) == 3
    assert after.verdict.words.replace("fedavg (runs)", "fedavg") == before.verdict.words
    assert before.verdict.kind == "undecided"


def test_seeds_that_differ_in_the_engine_are_one_group_for_all(tmp_path: Path) -> None:
    for seed, engine in enumerate(("inprocess", "processes")):
        for name in ("fedavg", "propfair"):
            path = tmp_path / f"{name}{seed}"
            write_run(path, name=f"{name}, seed {seed}", algorithm=name, seed=seed, engine=engine)
    runs, _ = read_runs([tmp_path])
    (comparison,) = by_clients(runs)
    assert [len(group.runs) for group in comparison.groups] == [2, 2]
    found = certify([run for run in runs if run.label == "propfair"], [run for run in runs if run.label == "fedavg"])
    assert len(found.others) == 1
    assert found.verdict.intervals["fedavg"] is not None
    assert found.verdict.intervals["fedavg"].num_seeds == 2


def test_fine_tuned_seeds_are_one_group(tmp_path: Path) -> None:
    for seed in (0, 1):
        start = {
            "run": f"runs/before-{seed}",
            "label": "propfair",
            "rounds": 5,
            "fingerprint": "f",
            "same_clients": True,
        }
        write_run(tmp_path / f"r{seed}", name=f"fedavg, seed {seed}", seed=seed, start=start)
    (comparison,) = by_clients(read_runs([tmp_path])[0])
    (group,) = comparison.groups
    assert (group.label, len(group.runs)) == ("fedavg from propfair", 2)


def test_a_sweeps_trials_are_apart_from_its_winners(tmp_path: Path) -> None:
    write_seeds(tmp_path / "final", {"fedavg": 0.7, "propfair": 0.72}, seeds=2)
    for number in range(3):
        write_run(tmp_path / "trials" / f"t{number}", algorithm="propfair", settings=f"M = {number + 2}")
    winners, tried = make_document(read_runs([tmp_path])[0], [])["trials"]
    assert [group["label"] for group in winners["groups"]] == ["fedavg", "propfair"]
    assert tried["title"] == "digits, 10 clients: what was tried for the sweep"
    assert len(tried["groups"]) == 3
    (alone,) = make_document(read_runs([tmp_path / "trials"])[0], [])["trials"]
    assert len(alone["groups"]) == 3
    typed("table", str(tmp_path), "-o", str(tmp_path / "t.json"))
    (table,) = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["tables"]
    assert [row["algorithm"] for row in table["algorithms"]] == ["fedavg", "propfair"]


def test_the_headline_claims_what_the_interval_supports(tmp_path: Path) -> None:
    write_seeds(tmp_path / "runs", {"fedavg": 0.7, "propfair": 0.705, "afl": 0.4})
    (comparison,) = by_clients(read_runs([tmp_path / "runs"])[0])
    first, second = headline(comparison, ACCURACY)
    assert "which may be chance: the difference is" in first
    assert "which may be chance: the difference is" in second
    write_seeds(tmp_path / "apart", {"fedavg": 0.7, "afl": 0.4})
    (comparison,) = by_clients(read_runs([tmp_path / "apart"])[0])
    assert "beyond chance: the difference is" in headline(comparison, ACCURACY)[0]


def test_one_heavy_client_does_not_take_the_colours_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zero has a colour of its own, and a client that was absent has none."""
    from matplotlib.axes import Axes

    write_run(tmp_path / "r", num_clients=50, rounds=20, odd_weights=True)
    drawn = []
    plain = Axes.pcolormesh

    def watched(axes: Axes, *place: Any, **look: Any) -> Any:
        if look.get("rasterized"):  # no colour bar
            drawn.append((place[-1], look))
        return plain(axes, *place, **look)

    monkeypatch.setattr(Axes, "pcolormesh", watched)
    draw_figure("weights", read_runs([tmp_path])[0], tmp_path / "weights.png")
    (powers, look), (zeros, _) = drawn
    assert np.nanmax(np.abs(powers)) > 5
    assert look["vmax"] == -look["vmin"] < 1.5
    assert np.argwhere(np.isfinite(zeros))[:, 0].tolist() == [1] * 20
    assert np.isnan(powers[49, 0])
    assert np.isnan(zeros[49, 0])
