"""The page as a reader meets it, in a real browser."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Locator, Page, expect

from propfair.report.write import write_report
from tests.report.builders import write_run
from tests.report.conftest import eventually

HOSTILE = "<script>alert(1)</script>"
FIGURES = ("trade", "pair", "relative", "certificate", "curves", "weights", "equality", "partition")


@dataclass
class Opened:
    """A page, and what it complained about or asked for."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def heard(self, said: ConsoleMessage) -> None:
        if said.type in ("error", "warning"):
            self.errors.append(said.text)

    def asked(self, dialog: Dialog) -> None:
        self.errors.append(f"dialog: {dialog.message}")
        dialog.dismiss()


def open_page(browser: Browser, address: str, **options: Any) -> Opened:
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    opened = Opened(context.new_page())
    page = opened.page
    page.on("console", opened.heard)
    page.on("pageerror", lambda error: opened.errors.append(str(error)))
    page.on("dialog", opened.asked)
    page.on("request", lambda request: opened.requests.append(request.url))
    page.goto(address)
    drawn(page)
    return opened


def drawn(page: Page) -> None:
    page.wait_for_selector("html[data-drawn=yes]", timeout=60_000)


def listed(page: Page) -> Locator:
    return page.locator("#summary-table tbody tr:not(.seed) th .text")


def rows(page: Page) -> list[str]:
    return listed(page).all_inner_texts()


def numbers(page: Page, column: int) -> list[float]:
    cells = page.locator(f"#summary-table tbody tr:not(.seed) td:nth-child({column})").all_inner_texts()
    return [float(cell.split()[0]) for cell in cells]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four settings over two seeds, one of them called like an attack, and a folder that is no run."""
    folder = tmp_path_factory.mktemp("report")
    clients = ("<b>bold</b>", "Zoë & co", *(f"client {k}" for k in range(2, 20)))
    settings = [("fedavg", 0.72, 0.5), ("propfair", 0.70, 0.2), ("afl", 0.62, 0.1), (HOSTILE, 0.60, 0.4)]
    for place, (name, skill, spread) in enumerate(settings):
        for seed in (0, 1):
            write_run(
                folder / "runs" / f"{place}-{seed}", name=f"{name}, seed {seed}", algorithm=name, seed=seed,
                num_clients=20, rounds=20, eval_every=2, skill=skill, spread=spread, clients=clients, note=HOSTILE,
                started=f"2026-01-0{place + 1}T00:00:00+00:00",
            )  # fmt: skip
    problems, found = write_report([folder / "runs", folder / HOSTILE.replace("/", "")], folder / "report.html")
    assert (len(problems), found) == (1, 8)
    return folder / "report.html"


@pytest.fixture(scope="module")
def shared(browser: Browser, report: Path) -> Iterator[Opened]:
    """One open page for the tests that leave it as they found it."""
    opened = open_page(browser, report.as_uri())
    yield opened
    opened.page.context.close()


@pytest.fixture
def page(shared: Opened) -> Page:
    return shared.page


def test_opens_without_an_error_and_asks_nobody(shared: Opened, report: Path, artifacts: Path) -> None:
    shared.page.screenshot(path=artifacts / "report-light.png", full_page=True)
    assert shared.errors == []
    assert shared.requests == [report.as_uri()]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn(page: Page, name: str) -> None:
    chart = page.locator(f"#{name}-figure .chart")
    marks = chart.locator(".scatterlayer .trace path, .barlayer .point path, .heatmaplayer image")
    assert marks.count() > 0
    box = chart.bounding_box()
    assert box is not None
    assert box["height"] > 100
    assert chart.get_attribute("role") == "img"
    assert len(chart.get_attribute("aria-label") or "") > 40


def test_hostile_names_are_text(shared: Opened) -> None:
    page = shared.page
    assert HOSTILE in rows(page)
    assert HOSTILE in page.locator("#facts").inner_text()
    assert "script" in page.locator("#problems").inner_text()
    assert page.locator("script").count() == 3  # data, program, and the unpacked library
    assert page.get_by_text("alert(1)").locator("xpath=self::script").count() == 0
    labels = page.locator("#trade-figure .textpoint").all_text_contents()
    assert HOSTILE in labels
    axis = page.locator("#weights-figure .ytick").all_text_contents()
    assert any(label.startswith("<b>bold") for label in axis)
    assert page.locator("#main b").count() == 0
    assert not [error for error in shared.errors if "dialog" in error]


def test_the_table_marks_the_best_and_sorts(page: Page) -> None:
    assert rows(page) == ["fedavg", "propfair", "afl", HOSTILE]
    best = page.locator("#summary-table tbody tr", has_text="fedavg").locator("td").first
    expect(best).to_have_class("best")
    button = page.get_by_role("button", name="mean", exact=True)
    button.click()
    expect(page.locator("#summary-table th[aria-sort=descending]")).to_have_text("mean")
    means = numbers(page, 2)
    assert means == sorted(means, reverse=True)
    button.press("Enter")  # the header is a button, and keeps the focus
    expect(page.locator("#summary-table th[aria-sort=ascending]")).to_have_text("mean")
    means = numbers(page, 2)
    assert means == sorted(means)
    page.get_by_role("button", name="run", exact=True).click()
    expect(page.locator("#summary-table th[aria-sort=ascending]")).to_have_text("run")
    assert rows(page) == sorted(rows(page))
    page.evaluate("state.sort = {column: null, down: true}; showSummary()")


def test_the_filter_and_the_ticks_choose_runs(page: Page) -> None:
    points = page.locator("#trade-figure .scatterlayer .point")
    expect(points).to_have_count(4)
    page.get_by_label("Filter runs").fill("algorithm.name=propfair")
    expect(points).to_have_count(1)
    expect(listed(page)).to_have_text(["propfair"])
    page.get_by_label("Filter runs").fill("no such run")
    expect(page.locator("#summary-table")).to_contain_text("No run matches the filter")
    expect(page.locator("#trade-figure .empty")).to_be_visible()
    page.get_by_label("Filter runs").fill("")
    expect(points).to_have_count(4)
    page.get_by_label("Show afl in the charts").uncheck()
    expect(points).to_have_count(3)
    page.get_by_role("button", name="Show all").click()
    expect(points).to_have_count(4)


def test_each_seed_and_all_statistics_can_be_seen(page: Page) -> None:
    page.get_by_label("each seed").check()
    expect(page.locator("#summary-table tr.seed")).to_have_count(8)
    page.get_by_label("each seed").uncheck()
    page.get_by_label("all statistics").check()
    expect(page.locator("#summary-table thead th")).to_have_count(18)
    page.get_by_label("all statistics").uncheck()


def test_any_two_runs_can_be_compared(page: Page) -> None:
    assert page.locator("#pair-a option:checked").inner_text() == "fedavg"
    page.select_option("#pair-a", label="afl")
    page.select_option("#pair-b", label="fedavg, seed 1")
    expect(page.locator("#pair-figure .legend")).to_contain_text("fedavg, seed 1")
    expect(page.locator("#relative-said")).to_contain_text("From afl to fedavg, seed 1,")
    heights = page.evaluate("document.querySelector('#pair-figure .chart').data[0].y")
    assert heights == sorted(heights)
    page.select_option("#pair-order", "client")
    first = "document.querySelector('#pair-figure .chart').data[0].text[0]"
    eventually(lambda: page.evaluate(first).startswith("client &lt;b&gt;"))
    page.select_option("#pair-order", "a")


def test_the_verdict_is_said_in_words(page: Page) -> None:
    page.select_option("#reference", label="afl")
    verdict = page.locator("#verdict")
    expect(verdict).to_contain_text("undecided")
    expect(verdict).to_contain_text("seeds would decide")
    expect(page.locator("#certificate-figure .errorbar").first).to_be_attached()


def test_curves_show_statistics_and_single_clients(page: Page) -> None:
    expect(page.locator("#client-setting")).to_be_hidden()
    page.select_option("#curve", "client")
    page.select_option("#client", label="Zoë & co")
    expect(page.locator("#curves-figure .ytitle")).to_contain_text("client Zoë & co")
    page.select_option("#curve", "mean")


def test_the_numbers_behind_a_chart_are_a_table(page: Page) -> None:
    details = page.locator("#pair-figure details")
    details.locator("summary").click()
    expect(details.locator("tbody tr")).to_have_count(20)
    with page.expect_download() as download:
        details.get_by_role("button", name="Save as CSV").click()
    lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 21
    details.locator("summary").click()


def test_measures_without_a_total_have_no_lorenz_curve(page: Page) -> None:
    page.select_option("#measure", "test/loss")
    expect(page.locator("#equality-figure .empty")).to_contain_text("shares of a total")
    page.select_option("#measure", "test/accuracy")
    expect(page.locator("#equality-figure .chart")).to_be_visible()
    drawn(page)


def test_commands_to_repeat_a_run_are_given(page: Page) -> None:
    item = page.locator("#repeat-list details.repeat").first
    item.locator("summary").first.click()
    expect(item).to_contain_text("propfair run --config")  # the browser tells of the opening a moment later
    expect(item).to_contain_text("propfair compare fedavg")


def test_dark_colours_reach_the_charts(browser: Browser, report: Path, artifacts: Path) -> None:
    opened = open_page(browser, report.as_uri(), color_scheme="dark")
    page = opened.page
    title = page.locator("#trade-figure .xtitle")

    def colours() -> tuple[str, str]:
        return (
            page.evaluate("getComputedStyle(document.body).backgroundColor"),
            title.evaluate("text => getComputedStyle(text).fill"),
        )

    dark = colours()
    page.screenshot(path=artifacts / "report-dark.png", full_page=True)
    page.get_by_role("button", name="Switch to light colours").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    expect(title).not_to_have_css("fill", dark[1])
    light = colours()
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[0] != light[0]
    assert opened.errors == []
    page.context.close()


def test_a_phone_shows_all_without_sideways_scrolling(browser: Browser, report: Path, artifacts: Path) -> None:
    opened = open_page(
        browser, report.as_uri(), viewport={"width": 390, "height": 844}, device_scale_factor=2, has_touch=True
    )
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    opened.page.screenshot(path=artifacts / "report-phone.png", full_page=True)
    assert opened.errors == []
    opened.page.context.close()


def test_the_keyboard_reaches_everything(browser: Browser, report: Path) -> None:
    page = open_page(browser, report.as_uri()).page
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the summary")
    page.keyboard.press("Enter")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.dataset.column"))
    assert {"filter", "check-all", "seeds", "mean", "worst10", "trade-y", "pair-a", "pair-b", "reference"} <= reached
    page.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_barrier_that_a_checker_can_find(browser: Browser, report: Path, theme: str) -> None:
    opened = open_page(browser, report.as_uri(), color_scheme=theme)
    found = Axe().run(opened.page).response["violations"]
    assert [(item["id"], [node["html"][:100] for node in item["nodes"]][:3]) for item in found] == []
    opened.page.context.close()


def test_fifty_runs_of_a_hundred_clients_open_in_three_seconds(browser: Browser, tmp_path: Path) -> None:
    for k in range(50):
        write_run(
            tmp_path / "runs" / str(k), name=f"setting {k}", algorithm=f"a{k}", num_clients=100, rounds=20,
            skill=0.5 + k / 200, spread=0.4,
        )  # fmt: skip
    write_report([tmp_path / "runs"], tmp_path / "report.html")
    seconds = []
    for _ in range(2):
        context = browser.new_context()
        page = context.new_page()
        session = context.new_cdp_session(page)
        # Processor time of the page's thread: it does not depend on what else the machine is doing.
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto((tmp_path / "report.html").as_uri())
        drawn(page)
        found = {item["name"]: item["value"] for item in session.send("Performance.getMetrics")["metrics"]}
        seconds.append(found["TaskDuration"])
        assert page.locator("#summary-table tbody tr").count() == 50
        context.close()
    assert min(seconds) < 3, seconds


def test_a_report_without_runs_says_so(browser: Browser, tmp_path: Path) -> None:
    write_report([tmp_path / "missing"], tmp_path / "report.html")
    opened = open_page(browser, (tmp_path / "report.html").as_uri())
    assert "no such folder" in opened.page.locator("#problems").inner_text()
    assert "There is no run to show" in opened.page.locator("#glance").inner_text()
    assert opened.errors == []
    opened.page.context.close()


def test_a_single_run_that_has_not_been_evaluated(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path / "run", state="running", rounds=8, eval_every=8)
    write_report([tmp_path], tmp_path / "report.html")
    opened = open_page(browser, (tmp_path / "report.html").as_uri())
    assert "No run has been evaluated yet" in opened.page.locator("#summary").inner_text()
    assert "4 / 8 rounds" in opened.page.locator("#progress").inner_text()
    assert opened.page.locator("#weights-figure .heatmaplayer image").count() == 1
    assert opened.errors == []
    opened.page.context.close()


def test_relative_changes_are_means_over_seeds_and_add_up(browser: Browser, tmp_path: Path) -> None:
    accuracies = {"even": ([0.2, 0.8], [0.8, 0.8]), "other": ([0.4, 0.8], [0.4, 0.8])}
    for name, by_seed in accuracies.items():
        for seed, values in enumerate(by_seed):
            write_run(tmp_path / f"{name}{seed}", algorithm=name, seed=seed, num_clients=2, accuracy=values)
    write_report([tmp_path], tmp_path / "report.html")
    opened = open_page(browser, (tmp_path / "report.html").as_uri())
    page = opened.page
    page.select_option("#pair-a", label="even")
    page.select_option("#pair-b", label="other")
    bars = "document.querySelector('#relative-figure .chart').data[0].y"
    eventually(lambda: [round(bar, 4) for bar in page.evaluate(bars)] == [0, 25])  # the mean of +100 % and -50 %, and 0
    assert opened.errors == []
    page.context.close()


def test_several_sets_of_clients_are_told_apart(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path / "a", name="on ten", algorithm="ten", num_clients=10)
    write_run(tmp_path / "b", name="on five", algorithm="five", num_clients=5)
    write_report([tmp_path], tmp_path / "report.html")
    opened = open_page(browser, (tmp_path / "report.html").as_uri())
    page = opened.page
    assert rows(page) == ["ten"]
    page.select_option("#trial", label="digits, 5 clients")
    expect(listed(page)).to_have_text(["five"])
    drawn(page)
    eventually(lambda: len(page.evaluate("document.querySelector('#pair-figure .chart').data[0].x")) == 5)
    assert opened.errors == []
    page.context.close()
