"""The numbers and the words of a report, against the functions of the theory and by hand."""

import base64
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import propfair
from propfair.errors import ConfigError, DataError
from propfair.fairness.certificate import certificate
from propfair.fairness.statistics import summarize
from propfair.report.curves import relative_weights, statistics_over_rounds
from propfair.report.document import make_document
from propfair.report.figures import FIGURES, draw_figure
from propfair.report.page import embed, render
from propfair.report.verdicts import Verdicts, judge
from propfair.report.words import headline
from propfair.runs.grouping import Comparison, by_clients
from propfair.runs.measures import ACCURACY, Measure
from propfair.runs.reading import read_run, read_runs
from propfair.runs.records import CLIENT_SCHEMA
from tests.report.builders import write_run
from tests.sealing import reseal


def comparison_of(folder: Path) -> Comparison:
    runs, problems = read_runs([folder])
    assert not problems
    (comparison,) = by_clients(runs)
    return comparison


def test_statistics_are_those_of_the_theory(tmp_path: Path) -> None:
    values = [0.2, 0.4, 0.9, 0.9]
    write_run(tmp_path / "r", num_clients=4, accuracy=values)
    runs, _ = read_runs([tmp_path])
    trial = make_document(runs, [])["trials"][0]
    expected = summarize(values, weights=trial["sizes"]["train"]).as_dict()
    for name, (mean, std) in trial["groups"][0]["statistics"]["test/accuracy"].items():
        assert mean == pytest.approx(expected[name], rel=1e-5)
        assert std == 0
    assert trial["runs"][0]["statistics"]["test/accuracy"]["worst"] == 0.2
    assert trial["runs"][0]["statistics"]["test/loss"]["worst"] == pytest.approx(1.8)
    packed = base64.b64decode(trial["runs"][0]["clients"]["test/accuracy"]["values"])
    np.testing.assert_allclose(np.frombuffer(packed, "<f4").reshape(-1, 4)[-1], values, rtol=1e-6)


def test_the_page_says_what_is_not_settled(tmp_path: Path) -> None:
    write_run(tmp_path / "one", state="failed")
    runs, _ = read_runs([tmp_path])
    (trial,) = make_document(runs, [])["trials"]
    assert trial["cautions"] == [
        "Fewer than 3 seeds: fedavg (1); differences may be chance.",
        "Not at their ends: fedavg (1 of 1 runs: failed); their numbers are those of the last evaluation.",
    ]


def test_curves_are_statistics_of_each_round(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "r", num_clients=20, rounds=4, eval_every=2))
    for measure in run.measures:
        series, values = run.measured(measure), run.served(measure)
        assert series is not None
        assert values is not None
        found = statistics_over_rounds(values, measure)
        for position, row in enumerate(series.values):
            expected = summarize(row, higher_is_better=measure.metric == "accuracy")
            for name, line in found.items():
                assert line[position] == pytest.approx(getattr(expected, name))


def test_the_verdict_is_the_certificate(tmp_path: Path) -> None:
    write_run(tmp_path / "a", name="even", algorithm="even", num_clients=3, accuracy=[0.5, 0.5, 0.5])
    write_run(tmp_path / "b", name="steep", algorithm="steep", num_clients=3, accuracy=[0.9, 0.3, 0.3])
    comparison = comparison_of(tmp_path)
    found = judge(comparison, ACCURACY)
    assert isinstance(found, Verdicts)
    expected = certificate([[0.9, 0.3, 0.3]], [0.5, 0.5, 0.5], comparison.clients.sizes["train"])
    assert found.values[0, 1] == pytest.approx(expected.values[0])
    assert found.best == 0
    assert found.words[1].startswith(
        "undecided: nothing is known of chance for even: how often models are right on the"
    )
    assert np.isnan(found.low[1, 0])
    assert found.over[1][0] == ""
    assert np.isnan(found.values[0, 0])


def test_over_seeds_the_verdict_is_a_mean_of_pairs(tmp_path: Path) -> None:
    for seed, (a, b) in enumerate([([0.5, 0.5], [0.6, 0.5]), ([0.4, 0.5], [0.5, 0.5])]):
        write_run(tmp_path / f"a{seed}", name="a", algorithm="a", seed=seed, num_clients=2, accuracy=a)
        write_run(tmp_path / f"b{seed}", name="b", algorithm="b", seed=seed, num_clients=2, accuracy=b)
    comparison = comparison_of(tmp_path)
    found = judge(comparison, ACCURACY)
    assert isinstance(found, Verdicts)
    share = comparison.clients.sizes["train"][0] / sum(comparison.clients.sizes["train"])
    assert found.values[0, 1] == pytest.approx(share * (0.1 / 0.5 + 0.1 / 0.4) / 2)
    assert found.over[0][1] == "seeds"


def test_a_client_at_zero_leaves_the_verdict_undefined(tmp_path: Path) -> None:
    write_run(tmp_path / "a", name="a", algorithm="a", num_clients=2, accuracy=[0.0, 0.9], clients=("Ann", "Bob"))
    write_run(tmp_path / "b", name="b", algorithm="b", num_clients=2, accuracy=[0.4, 0.4], clients=("Ann", "Bob"))
    found = judge(comparison_of(tmp_path), ACCURACY)
    assert isinstance(found, Verdicts)
    assert found.words[0] == "undefined: a leaves client Ann at 0, and a relative change from 0 has no value"
    assert found.best == 1


def test_clients_without_test_data_are_left_out_and_counted(tmp_path: Path) -> None:
    for name in "ab":
        write_run(tmp_path / name, name=name, algorithm=name, num_clients=3, accuracy=[0.5, 0.6, np.nan])
    found = judge(comparison_of(tmp_path), ACCURACY)
    assert isinstance(found, Verdicts)
    assert found.left_out == 1


@pytest.mark.parametrize(
    ("runs", "measure", "reason"),
    [
        (["a"], ACCURACY, "needs a second run"),
        (["a", "b"], Measure("test", "loss"), "needs utilities"),
        (["a", "b"], Measure("train"), "no train accuracy yet"),
    ],
)
def test_no_certificate_without_a_reason(tmp_path: Path, runs: list[str], measure: Measure, reason: str) -> None:
    for name in runs:
        write_run(tmp_path / name, name=name, algorithm=name)
    found = judge(comparison_of(tmp_path), measure)
    assert isinstance(found, str)
    assert reason in found


def test_relative_weights_are_one_where_data_decides(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "r", num_clients=5))
    found = relative_weights(run)
    assert found is not None
    share = np.array(run.clients.sizes["train"]) / sum(run.clients.sizes["train"])
    weight = run.series("round", "weight")
    assert weight is not None
    np.testing.assert_allclose(found.values * share, weight.values)


def test_where_nobody_weighs_anything_another_run_is_drawn(tmp_path: Path) -> None:
    x, y = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    for rule in ("fedavg", "local-only"):
        clients = {"ann": (x, y), "bob": (x, 1 - y)}
        propfair.train(torch.nn.Linear(4, 2), clients, rule, rounds=2, out=tmp_path / rule)
    runs, _ = read_runs([tmp_path])
    (trial,) = make_document(runs, [])["trials"]
    assert ["relative_weight" in run["heat"] for run in trial["runs"]] == [True, False]
    draw_figure("weights", runs, tmp_path / "w.svg")
    draw_figure("weights", runs, tmp_path / "f.svg", reference="fedavg")
    assert (tmp_path / "w.svg").read_bytes() == (tmp_path / "f.svg").read_bytes()
    with pytest.raises(DataError, match="no weights; choose another run with --reference"):
        draw_figure("weights", runs, tmp_path / "l.svg", reference="local-only")


def test_the_headline_names_the_gain_and_the_cost(tmp_path: Path) -> None:
    write_run(tmp_path / "a", name="fair", algorithm="fair", num_clients=10, accuracy=[0.6] * 10)
    write_run(tmp_path / "b", name="steep", algorithm="steep", num_clients=10, accuracy=[0.3] + [0.8] * 9)
    first, second = headline(comparison_of(tmp_path), ACCURACY)
    assert first == (
        "fair serves the worst 10 % of clients best: 60.0 % accuracy, against 30.0 % under steep, which has the best "
        "mean (which may be chance: nothing is known of that)."
    )
    assert second.startswith("What it costs: 15.0 points of the mean, 60.0 % instead of 75.0 %")


def test_of_those_who_serve_the_worst_off_alike_none_is_called_the_best(tmp_path: Path) -> None:
    for name, others in (("a", 0.2), ("b", 0.6), ("c", 0.4)):
        write_run(tmp_path / name, name=name, algorithm=name, num_clients=4, accuracy=[0.0, *[others] * 3])
    first, second = headline(comparison_of(tmp_path), ACCURACY)
    assert first == "a, b and c serve the worst 10 % of clients alike, and none better: 0.0 % accuracy."
    assert second.startswith("b serves the average client best: 45.0 %, against 30.0 % under c, the next best (")
    write_run(tmp_path / "d", name="d", algorithm="d", num_clients=4, accuracy=[0.1, 0.1, 0.1, 0.1])
    write_run(tmp_path / "e", name="e", algorithm="e", num_clients=4, accuracy=[0.1, 0.3, 0.3, 0.3])
    first, second = headline(comparison_of(tmp_path), ACCURACY)
    assert first.startswith(
        "e serves the worst 10 % of clients best: 10.0 % accuracy, against 0.0 % under b, which has"
    )
    assert second.startswith("What it costs: 20.0 points of the mean, 25.0 % instead of 45.0 %")


def test_a_difference_that_may_be_chance_is_called_so(tmp_path: Path) -> None:
    for seed, shift in enumerate((0.0, 0.1)):
        write_run(tmp_path / f"a{seed}", name="a", algorithm="a", seed=seed, num_clients=2, accuracy=[0.5 + shift] * 2)
        write_run(tmp_path / f"b{seed}", name="b", algorithm="b", seed=seed, num_clients=2, accuracy=[0.51 + shift] * 2)
    first, second = headline(comparison_of(tmp_path), ACCURACY)
    assert "the next best (which may be chance: the difference is -0.3 to 2.3, 95 % over 2 seeds)" in first
    assert "is the best too (beyond chance: the difference is 0.4 to 1.6, 95 % over 2 seeds)" in second


@given(st.text())
def test_embedded_text_can_not_leave_its_element(text: str) -> None:
    packed = embed({"name": text})
    assert not set(packed) & set("<>&\u2028\u2029")
    assert json.loads(packed) == {"name": text}


def test_hostile_names_are_escaped_everywhere_on_the_page(tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script>"
    write_run(tmp_path / "r", name=hostile, note=hostile, clients=tuple(f"{hostile}{k}" for k in range(10)))
    runs, problems = read_runs([tmp_path])
    page = render(make_document(runs, problems, title=hostile))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page  # the title
    assert page.count("</script>") == 3  # data, library, program


def test_the_page_is_the_same_for_the_same_document(tmp_path: Path) -> None:
    write_run(tmp_path / "r")
    runs, problems = read_runs([tmp_path])
    document = make_document(runs, problems)
    assert render(document) == render(document)
    assert "connect-src 'none'" in render(document)
    assert "connect-src 'self'" in render(document, live_interval=1)


def test_large_reports_keep_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("propfair.report.document.MAX_VALUES", 2000)
    for seed in range(4):
        write_run(tmp_path / str(seed), seed=seed, num_clients=20, rounds=60, eval_every=2)
    runs, _ = read_runs([tmp_path])
    (trial,) = make_document(runs, [])["trials"]
    for run in trial["runs"]:
        assert run["heat"]["weight"]["thinned"]
        assert run["clients"]["test/accuracy"]["thinned"]
        assert run["clients"]["test/accuracy"]["rounds"][-1] == 60
        assert len(run["curves"]["test/accuracy"]["rounds"]) == 30  # statistics stay whole


@pytest.mark.parametrize("kind", FIGURES)
def test_figures_are_drawn(tmp_path: Path, kind: str) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", name="a", algorithm="a $x$", seed=seed)
        write_run(tmp_path / f"b{seed}", name="b", algorithm="b", seed=seed, skill=0.6)
    runs, _ = read_runs([tmp_path])
    for ending, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")):
        path = tmp_path / f"{kind}{ending}"
        draw_figure(kind, runs, path)
        first = path.read_bytes()
        assert first.startswith(start)
        draw_figure(kind, runs, path)
        assert path.read_bytes() == first  # no dates, no random names


def test_the_reference_of_a_figure_is_known_by_its_label_and_by_its_name(tmp_path: Path) -> None:
    write_run(tmp_path / "a", name="mine, seed 0", algorithm="propfair", settings="M = 3.0")
    write_run(tmp_path / "b", name="fedavg, seed 0")
    runs, _ = read_runs([tmp_path])
    for called in ("propfair(M=3.0)", "mine"):
        draw_figure("certificate", runs, tmp_path / f"{called}.svg", reference=called)
    assert (tmp_path / "mine.svg").read_bytes() == (tmp_path / "propfair(M=3.0).svg").read_bytes()


def test_a_figure_says_what_it_can_not_draw(tmp_path: Path) -> None:
    write_run(tmp_path / "a", name="a", algorithm="a")
    runs, _ = read_runs([tmp_path])
    with pytest.raises(ConfigError, match=r"unknown figure 'trde'\. Did you mean 'trade'"):
        draw_figure("trde", runs, tmp_path / "x.png")
    with pytest.raises(ConfigError, match=r"ends in \.png, \.pdf, \.svg"):
        draw_figure("trade", runs, tmp_path / "x.jpg")
    with pytest.raises(ConfigError, match="unknown measure"):
        draw_figure("trade", runs, tmp_path / "x.png", measure="test/luck")
    with pytest.raises(ConfigError, match="unknown run 'b'"):
        draw_figure("trade", runs, tmp_path / "x.png", reference="b")
    with pytest.raises(DataError, match="needs a second run"):
        draw_figure("certificate", runs, tmp_path / "x.png")
    write_run(tmp_path / "b", name="b", num_clients=3)
    with pytest.raises(DataError, match="2 sets of clients"):
        draw_figure("trade", read_runs([tmp_path])[0], tmp_path / "x.png")


@pytest.mark.parametrize("scale", [1e26, 1e39, 1e307, 1e-310])
def test_losses_of_any_size_are_shown(tmp_path: Path, scale: float) -> None:
    for name in ("a", "b"):
        folder = write_run(tmp_path / name, name=name, algorithm=name)
        records = pq.read_table(folder / "records.parquet").to_pandas()
        records.loc[records["metric"] == "loss", "value"] *= scale
        pq.write_table(
            pa.Table.from_pandas(records, schema=CLIENT_SCHEMA, preserve_index=False), folder / "records.parquet"
        )
        reseal(folder)
    runs, problems = read_runs([tmp_path])
    document = make_document(runs, problems)
    assert not problems
    json.dumps(document, allow_nan=False)
    loss = next(one for one in document["trials"][0]["measures"] if one["key"] == "test/loss")
    assert loss["headline"]
