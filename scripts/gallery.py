"""The gallery of the site: of each file of records in results/ a picture, a table, a report and the command.

All of it is made from the records when the site is built; results/gallery.toml says what there is to show.
"""

import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from propfair.report.figures import draw_figure
from propfair.report.write import write_report
from propfair.runs.keeping import read_kept

ROOT = Path(__file__).parents[1]
PAGE = "gallery.md"


class Experiment(NamedTuple):
    """What the gallery shows of one file of records."""

    file: str
    title: str
    said: str
    command: str
    statistics: str = "mean,worst10,std,best10"
    figure: str = "trade"
    measure: str = "test/accuracy"

    @property
    def records(self) -> Path:
        return ROOT / "results" / self.file

    @property
    def stem(self) -> str:
        return self.records.stem


def experiments() -> list[Experiment]:
    """In the order of the page."""
    listed = tomllib.loads((ROOT / "results" / "gallery.toml").read_text(encoding="utf-8"))
    return [Experiment(**one) for one in listed["experiment"]]


def gallery_page() -> str:
    """The Markdown of the page."""
    sys.path.insert(0, str(ROOT))  # benchmarks is no part of the package
    from benchmarks.results import table

    parts = [
        "# Gallery",
        "Every experiment whose runs are on record: the picture, the table, a report, and the command. All "
        "is made from the files in `results/` when this site is built, and by you with `propfair report "
        "results/NAME.parquet`. What it means is said on the page of [results](results.md), and what it says of the "
        "paper on that of [claims](claims.md).",
    ]
    for one in experiments():
        parts += [
            f"## {one.title}",
            one.said,
            f"![{one.title}: mean against the worst 10 % of clients](gallery/{one.stem}.svg)",
            _without_heading(table(one.records, one.statistics, one.measure)),
            f"[The interactive report](gallery/{one.stem}.html) · records: `results/{one.file}`",
            f"```console\n$ {one.command}\n```",
        ]
    return "\n\n".join(parts) + "\n"


def gallery_files() -> Iterator[tuple[str, str]]:
    """The pictures and reports: where they are on the site, and their text."""
    with tempfile.TemporaryDirectory() as folder:
        for one in experiments():
            picture, report = Path(folder) / f"{one.stem}.svg", Path(folder) / f"{one.stem}.html"
            draw_figure(one.figure, read_kept(one.records), picture, measure=one.measure, width=7.0, height=4.0)
            write_report([one.records], report, one.title)
            for path in (picture, report):
                yield f"gallery/{path.name}", path.read_text(encoding="utf-8")


def _without_heading(markdown: str) -> str:
    """A table has a heading of its own, which the page has no need of."""
    return "\n".join(line for line in markdown.splitlines() if not line.startswith("#")).strip()
