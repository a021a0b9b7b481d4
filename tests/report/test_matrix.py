"""Every command over few and many clients, with names of all kinds: nothing breaks, and everybody is named rightly."""

import csv
import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import pytest
from playwright.sync_api import Browser

from propfair.report.figures import FIGURES
from propfair.report.live import LiveDocument
from propfair.runs.compare import Contest
from propfair.runs.contestant import Contestant
from propfair.runs.names import short_hash, slug
from propfair.runs.reading import read_run
from propfair.runs.result import Result
from tests.report.builders import write_run
from tests.report.test_browser import open_page
from tests.report.typed import typed

NAMES: dict[str, Callable[[int], str]] = {
    "short": str,
    "long": lambda k: f"the regional hospital of the northern district, ward {k}",
    "alike": lambda k: f"hospital-a-{k:05d}",  # equal up to the tenth letter
    "cyrillic": lambda k: f"больница №{k}",
    "chinese": lambda k: f"第{k}医院",
    "markup": lambda k: rf"<b>$\frac{{{k}}}$ & _*`|</b>[red]",
}
CASES = [(2, "long"), (2, "markup"), *((41, name) for name in NAMES), (500, "cyrillic"), (5000, "alike")]
ALGORITHMS = ("fedavg", "propfair", "local-only")


def write_contest(folder: Path, num_clients: int, name: Callable[[int], str]) -> None:
    """Finished runs where `propfair compare fedavg propfair --with-local --seeds 0,1` looks for them."""
    contestants = Contestant.parse_all(ALGORITHMS)
    contest = Contest.of({}, contestants, overrides={"schedule.rounds": 2}, out=folder)
    names = tuple(map(name, range(num_clients)))
    for place, (contestant, config) in enumerate(zip(contest.contestants, contest.configs, strict=True)):
        for seed in (0, 1):
            one = config.changed(seed=seed)
            path = folder / slug(f"{contestant.label}-seed{seed}-{short_hash(one.to_toml())}")
            write_run(
                path, name=f"{contestant.label}, seed {seed}", seed=seed, num_clients=num_clients, rounds=2,
                eval_every=1, skill=0.7 - 0.1 * place, clients=names, config=one.to_toml(), odd_weights=True,
                personal=contestant.label == "local-only", answers=True,
            )  # fmt: skip


@pytest.mark.parametrize(("num_clients", "kind"), CASES)
def test_every_command(
    num_clients: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PROPFAIR_DATA", raising=False)  # a setting, and runs are found by their settings
    name = NAMES[kind]
    write_contest(tmp_path / "all", num_clients, name)
    said = typed(
        "compare", "fedavg", "propfair", "--with-local", "--seeds", "0,1", "schedule.rounds=2", "-q", "-o", "all"
    )
    assert "Who is ahead of whom" in said
    assert re.search(r"fedavg against local-only: (no client of|\d+ of) ", said)
    if num_clients <= 20:
        assert all(name(k) in said for k in range(num_clients))
    with Path("all/table.csv").open(encoding="utf-8", newline="") as file:
        assert [row["algorithm"] for row in csv.DictReader(file)] == list(ALGORITHMS)

    runs = sorted(str(path.parent.relative_to(tmp_path)) for path in Path("all").absolute().glob("*/status.json"))
    reference, others = [run for run in runs if "/propfair" in run], [run for run in runs if "/propfair" not in run]
    certified = json.loads(typed("certify", *reference, *others, "--format", "json", "-o", "certificate.png"))
    assert certified["clients"] == list(map(name, range(num_clients)))
    assert len(certified["against"]) == 2
    assert certified["joining"]["clients"] == certified["clients"]
    if num_clients < 1000:
        assert "propfair: " in typed("certify", *reference, *others, "-o", "certificate.png")

    assert "(6 runs)" in typed("report", "all", "-o", "page.html")
    page = json.loads(re.findall(r'id="data">(.*?)</script>', Path("page.html").read_text(encoding="utf-8"))[0])
    assert page["trials"][0]["clients"] == list(map(name, range(num_clients)))
    if num_clients < 1000:
        assert json.loads(json.dumps(LiveDocument([Path("all")]).read()[0]["trials"])) == page["trials"]

    endings = [word for ending in ("tex", "md", "csv", "json", "html") for word in ("-o", f"t.{ending}")]
    typed("table", "all", *endings, "--differences", "--columns", "algorithms", "--spread", "interval")
    for kind_of in FIGURES:
        for measure in ("test/accuracy", "test/loss") if kind_of in ("trade", "clients", "curves") else (None,):
            typed("figure", kind_of, "all", "-o", "f.png", *(("--measure", measure) if measure else ()))
    for picture in ("f.png", "certificate.png", "all/comparison.png"):
        assert matplotlib.image.imread(picture).std() > 0.01  # something is drawn

    from propfair.cli.options import Format
    from propfair.cli.report_text import print_result

    run = read_run(Path(runs[0]))
    print_result(Result(run, None), Format.table)  # type: ignore[arg-type]
    assert f"accuracy over {num_clients} clients" in capsys.readouterr().out


@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize(("num_clients", "kind"), [(41, "markup"), (41, "chinese"), (500, "alike")])
def test_the_page_in_a_browser(num_clients: int, kind: str, browser: Browser, tmp_path: Path) -> None:
    write_contest(tmp_path / "all", num_clients, NAMES[kind])
    typed("report", str(tmp_path / "all"), "-o", str(tmp_path / "page.html"))
    opened = open_page(browser, (tmp_path / "page.html").as_uri())
    page = opened.page
    assert opened.errors == []
    assert page.locator(".empty").count() == 0  # every chart is drawn
    assert page.locator("#ahead-table tbody tr").count() == 3
    assert "than alone" in page.locator("#joining-said").inner_text()
    page.get_by_label("Measure").select_option("test/loss")
    page.wait_for_selector("html[data-drawn=yes]")
    assert "the axes run down" in page.locator("#trade-said").inner_text()
    low, high = page.evaluate("document.querySelector('#trade-figure .chart').layout.yaxis.range")
    assert low > high  # less is better, and up is better
    assert html.escape(NAMES[kind](0)) not in page.locator("#main").inner_text()  # escaped once, or not at all
    page.context.close()
