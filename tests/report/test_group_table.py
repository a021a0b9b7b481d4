"""Tables for papers and for programs."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import propfair
from propfair.errors import ConfigError
from propfair.fairness.statistics import summarize
from propfair.report.group_table import GroupTable, group_table
from propfair.report.table_files import Layout, write_tables
from propfair.runs.grouping import by_clients
from propfair.runs.measures import ACCURACY, Measure
from propfair.runs.reading import read_runs
from propfair.runs.standing import differences
from tests.report.builders import write_run
from tests.report.typed import refused, typed

NAMES = ("fedavg", "propfair", "sæt & <b>_%$</b> 中文")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three seeds: two algorithms that can't be told apart, and one that is far behind."""
    for seed in range(3):
        for name, skill in zip(NAMES, (0.80, 0.81, 0.4), strict=True):
            write_run(tmp_path / f"{NAMES.index(name)}-{seed}", name=name, algorithm=name, seed=seed, skill=skill)
    return tmp_path


def table_of(folder: Path, *statistics: str, measure: Measure = ACCURACY) -> GroupTable:
    (comparison,) = by_clients(read_runs([folder])[0])
    return group_table(comparison, statistics or ("mean", "worst10", "std", "jain"), measure)


def test_numbers_are_those_of_the_groups(folder: Path) -> None:
    table = table_of(folder, "mean", "weighted_mean", "worst10", "gini")
    (comparison,) = by_clients(read_runs([folder])[0])
    for group, row in zip(comparison.groups, table.cells, strict=True):
        by_seed = [summarize(run.values(), weights=run.shares) for run in group.runs]
        for name, cell in zip(table.statistics, row, strict=True):
            values = [getattr(one, name) for one in by_seed]
            assert cell.mean == pytest.approx(np.mean(values))
            assert cell.population_std == pytest.approx(np.std(values))
            assert cell.sample_std == pytest.approx(np.std(values, ddof=1))
            assert cell.low < cell.mean < cell.high
            assert cell.best == (group.label in differences(comparison.groups, name).best)
    best = [row[0].best for row in table.cells]
    assert best == [True, True, False]


def test_latex(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "table.tex"
    write_tables([table_of(folder)], path, Layout(caption="All & sundry", label="tab:all"))
    text = path.read_text(encoding="utf-8")
    assert r"\caption{All \& sundry}" in text
    assert r"\label{tab:all}" in text
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"std $\downarrow$"))
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(lines) == 4
    assert all(line.count("&") - line.count(r"\&") == 4 for line in lines)
    assert re.search(r"fedavg & \$\\mathbf\{\d\d\.\d\} \\pm \d\.\d\$ &", text)
    assert r"sæt \& \textless{}b\textgreater{}\_\%\$\textless{}/b\textgreater{} 中文" in text
    assert text.count(r"\mathbf") == sum(cell.best for row in table_of(folder).cells for cell in row)


def test_algorithms_as_columns_and_intervals(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    write_tables([table_of(folder)], path, Layout(spread="interval", columns="algorithms", digits=2))
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[2] == r"|  | fedavg | propfair | sæt &amp; &lt;b>\_%$&lt;/b> 中文 |"
    assert re.fullmatch(r"\| mean \| \*\*\d\d\.\d\d\*\* \[\d\d\.\d\d, \d\d\.\d\d\] \| .*", lines[4])
    assert "95 % intervals over seeds" in lines[-1]
    assert "Bold: not distinguishable from the best (Holm, 5 %)." in lines[-1]


def test_csv_and_json_have_every_number_in_a_place_of_its_own(folder: Path, tmp_path: Path) -> None:
    table = table_of(folder, "mean", "worst10")
    for ending in (".csv", ".json", ".html"):
        write_tables([table], tmp_path / f"table{ending}")
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["algorithm"] for row in rows] == list(NAMES)
    for row, cells in zip(rows, table.cells, strict=True):
        assert float(row["worst10_mean"]) == cells[1].mean
        assert float(row["worst10_sample_std"]) == cells[1].sample_std
        assert row["mean_best"] == str(cells[0].best).lower()
        assert not any("±" in value for value in row.values())
    (content,) = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))["tables"]
    assert content["algorithms"][2]["statistics"]["mean"]["mean"] == table.cells[2][0].mean
    page = (tmp_path / "table.html").read_text(encoding="utf-8")
    assert "sæt &amp; &lt;b&gt;_%$&lt;/b&gt; 中文" in page
    write_tables([table], tmp_path / "long.csv", Layout(columns="algorithms"))
    assert len((tmp_path / "long.csv").read_text(encoding="utf-8").splitlines()) == 1 + 2 * 3


def test_losses_are_better_when_lower(folder: Path, tmp_path: Path) -> None:
    table = table_of(folder, "mean", "worst10", measure=Measure("test", "loss"))
    assert [row[0].best for row in table.cells] == [True, True, False]
    write_tables([table], tmp_path / "table.md")
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "mean ↓ | worst 10 % ↓" in text
    assert ", %" not in text.splitlines()[-1]


def test_a_metric_of_ones_own_is_the_right_way_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    wrong = propfair.Metric("harm", lambda output, target: (output.argmax(-1) != target).float().mean(), False)
    clients = {"ann": (x, y), "bob": (x + 2, y)}
    run = propfair.train(torch.nn.Linear(4, 3), clients, rounds=1, metrics=[wrong], out=tmp_path / "run")
    harm = run.evaluation("test").metrics["harm"].double()
    assert harm.min() < harm.max()
    monkeypatch.chdir(tmp_path)
    typed("table", "run", "--measure", "test/harm", "--statistics", "worst", "-o", "t.json", "-o", "t.md")
    (table,) = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["tables"]
    assert not table["higher_is_better"]
    assert table["algorithms"][0]["statistics"]["worst"]["mean"] == pytest.approx(float(harm.max()))
    assert "worst ↓" in (tmp_path / "t.md").read_text(encoding="utf-8")


def test_a_measure_that_runs_on_some_clients_do_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "labels", num_clients=4)
    rows = {f"site {k}": (torch.randn(20, 2), torch.randn(20)) for k in range(2)}
    propfair.train(torch.nn.Linear(2, 1), rows, "fedavg", task="regression", rounds=1, out=tmp_path / "numbers")
    monkeypatch.chdir(tmp_path)
    said = refused("table", "labels", "numbers")
    assert "no run on own data, 2 clients has a test accuracy; there is: test/mae, test/loss." in said
    assert "has a foo; there is: test/accuracy" in refused("table", "labels", "--measure", "foo")


def test_one_seed_says_what_it_leaves_out(tmp_path: Path) -> None:
    for name, skill in (("a", 0.8), ("b", 0.4)):
        write_run(tmp_path / name, name=name, algorithm=name, skill=skill)
    table = table_of(tmp_path)
    assert all(cell.over == "examples" for row in table.cells for cell in row)
    assert not any(cell.best for row in table.cells for cell in row)  # nothing is known of other seeds
    write_tables([table], tmp_path / "table.json")
    text = (tmp_path / "table.json").read_text(encoding="utf-8")
    pairs = json.loads(text, parse_constant=pytest.fail)["tables"][0]["differences"][0]["pairs"]
    assert [pair["p_value"] for pair in pairs] == [None]
    write_tables([table], tmp_path / "table.md")
    assert "One seed each: nothing is known of other seeds." in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_what_is_not_settled_stands_below_the_table(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", name="a", algorithm="a", seed=seed, state="failed" if seed else "finished")
        write_run(tmp_path / f"b{seed}", name="b", algorithm="b", seed=seed)
    table = table_of(tmp_path)
    assert any("a (2 of 3 runs: failed)" in said for said in table.cautions)
    for ending in ("md", "html", "json"):
        write_tables([table], tmp_path / f"table.{ending}")
        assert "2 of 3 runs: failed" in (tmp_path / f"table.{ending}").read_text(encoding="utf-8")


def test_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    paths = [f"out/t{ending}" for ending in (".tex", ".md", ".csv", ".json", ".html")]
    options = [word for path in paths for word in ("-o", path)]
    said = typed("table", ".", *options, "--statistics", "mean,nash_welfare", "--spread", "interval")
    assert said.splitlines() == [f"table: {path}" for path in paths]
    assert all((folder / path).exists() for path in paths)
    for wrong, words in (
        (["-o", "t.doc"], "its ending must be one of .tex, .md, .html, .csv, .json"),
        (["--measure", "test/f1"], "there is: test/accuracy, test/loss"),
    ):
        assert words in refused("table", ".", *wrong)


def test_unknown_endings_are_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its ending must be"):
        write_tables([table_of(folder)], tmp_path / "table.xlsx")
    with pytest.raises(ConfigError, match="there is no statistic 'middle'"):
        table_of(folder, "middle")


def test_texts_of_strangers_stay_texts(tmp_path: Path) -> None:
    for place, name in enumerate(("=HYPERLINK(1)", "-1+A1", "@sum\\\\input{x}")):
        write_run(tmp_path / f"\x1b[31m{place}", name=name, algorithm=name)
        write_run(tmp_path / f"again {place}", name=name, algorithm=name)
    for ending in (".csv", ".tex", ".md", ".html"):
        write_tables([table_of(tmp_path)], tmp_path / f"t{ending}")
        assert "\x1b" not in (tmp_path / f"t{ending}").read_text()
    with (tmp_path / "t.csv").open() as file:
        assert {row["algorithm"][:2] for row in csv.DictReader(file)} == {"'=", "'-", "'@"}
    assert r"\textbackslash{}input\{x\}" in (tmp_path / "t.tex").read_text()
