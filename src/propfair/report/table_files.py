"""Tables of algorithms as files: LaTeX with booktabs, Markdown and HTML to be read, CSV and JSON for programs."""

import csv
import html
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal, NamedTuple

from propfair.errors import ConfigError
from propfair.fairness.differences import Differences
from propfair.fairness.statistics import more_is_better
from propfair.files import write_text
from propfair.report.group_table import GroupTable
from propfair.report.tables import csv_text, latex_text, markdown_text

Spread = Literal["std", "interval", "none"]
NAMES = {
    "weighted_mean": "weighted mean", "weighted_std": "weighted std", "worst10": "worst 10 %", "worst20": "worst 20 %",
    "worst30": "worst 30 %", "best10": "best 10 %", "best20": "best 20 %", "best30": "best 30 %",
    "quantile10": "10 % quantile", "quantile25": "25 % quantile", "quantile75": "75 % quantile",
    "quantile90": "90 % quantile", "variance_of_percent": "variance", "nash_welfare": "Nash welfare",
    "weighted_nash_welfare": "weighted Nash welfare",
}  # fmt: skip
_PARTS = ("mean", "population_std", "sample_std", "low", "high", "over", "num_seeds", "best")
_STYLE = (
    "body{font:1rem/1.4 system-ui,sans-serif;margin:2rem}table{border-collapse:collapse;margin-bottom:2rem}"
    "caption{text-align:left;margin-bottom:.5rem;max-width:60rem}th,td{padding:.25rem .8rem;text-align:right}"
    "th[scope=row],th:first-child{text-align:left}thead th{border-top:2px solid;border-bottom:1px solid}"
    "tbody tr:last-child>*{border-bottom:2px solid}"
)


@dataclass(frozen=True)
class Layout:
    """How a table is to look.

    Attributes:
        spread: what is beside a mean: "std", the population standard deviation over seeds as in the paper's tables;
            "interval", its limits; "none".
        columns: "statistics" or "algorithms".
        differences: a second table, of all pairs of algorithms: by how much one is ahead, and how surely.
        digits: after the point; None: one for percentages, three for all else.
        caption, label: of the table; None: made up.
    """

    spread: Spread = "std"
    columns: Literal["statistics", "algorithms"] = "statistics"
    differences: bool = False
    digits: int | None = None
    caption: str | None = None
    label: str | None = None


class Entry(NamedTuple):
    """A number as it is read: itself, what is beside it, and whether it is marked."""

    text: str
    beside: str = ""
    marked: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table as it is read, in no format yet.

    Attributes:
        caption: above it.
        note: what its numbers are.
        heading: of the columns; the first one is empty.
        rows: name and entries.
    """

    caption: str
    note: str
    heading: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Entry]]]


def write_tables(tables: Sequence[GroupTable], path: Path, layout: Layout = Layout()) -> None:  # noqa: B008 (frozen)
    """Write tables into one file; its ending says how: .tex, .md, .html, .csv or .json."""
    if path.suffix not in ENDINGS:
        raise ConfigError(f"can't write {path}: its ending must be one of {', '.join(ENDINGS)}")
    if path.suffix == ".csv":
        text = _csv(tables, layout)
    elif path.suffix == ".json":
        text = json.dumps({"tables": [one.as_dict() for one in tables]}, indent=2, ensure_ascii=False) + "\n"
    else:
        text = _FORMATS[path.suffix]([sheet for one in tables for sheet in sheets(one, layout)], layout)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error.strerror or error}. Choose another file with --out.") from None
    write_text(path, text)


def sheets(table: GroupTable, layout: Layout) -> list[Sheet]:
    """The table, and that of the differences if it is asked for and there are any."""
    made = [_main_sheet(table, layout)]
    if layout.differences and len(table.labels) > 1:
        made.append(_difference_sheet(table, layout))
    return made


def _main_sheet(table: GroupTable, layout: Layout) -> Sheet:
    headings = [_heading(table, name) for name in table.statistics]
    entries = [[_entry(table, i, j, layout) for j in range(len(headings))] for i in range(len(table.labels))]
    caption = layout.caption or table.title
    if layout.columns == "statistics":
        rows = list(zip(table.labels, entries, strict=True))
        return Sheet(caption, _note(table, layout), ["", *headings], rows)
    turned = [[row[j] for row in entries] for j in range(len(headings))]
    return Sheet(caption, _note(table, layout), ["", *table.labels], list(zip(headings, turned, strict=True)))


def _difference_sheet(table: GroupTable, layout: Layout) -> Sheet:
    """A row for each pair, a column for each statistic: the difference, its interval, marked if it is beyond chance."""
    rows = [
        (
            f"{first} − {second}",
            [
                _difference(table, name, found, first, second, layout)
                for name, found in zip(table.statistics, table.differences, strict=True)
            ],
        )
        for first, second in combinations(table.labels, 2)
    ]
    percent = 100 * table.level
    overs = {one for found in table.differences if found is not None for row in found.over for one in row if one}
    overs -= {"nothing"}
    note = [
        f"Differences of the {table.measure.label}{' in percentage points' if table.is_percent else ''}, seed by seed "
        f"where seeds are shared.",
        f"In brackets, {percent:g} % intervals {_drawn(overs)}, of all pairs of a column at once." if overs else "",
        f"Bold: beyond chance (Holm, {100 - percent:.2g} %)." if overs else "Nothing is known of chance.",
        "Holm's test is sharper than limits for all pairs at once: 0 may lie in the brackets of what it finds."
        if any(found is not None and found.by_test_alone.any() for found in table.differences)
        else "",
    ]
    headings = [_heading(table, name) for name in table.statistics]
    return Sheet(f"{layout.caption or table.title}: differences", " ".join(filter(None, note)), ["", *headings], rows)


def _difference(
    table: GroupTable, name: str, found: Differences | None, first: str, second: str, layout: Layout
) -> Entry:
    if found is None or not {first, second} <= set(found.names):
        return Entry("-")
    a, b = found.names.index(first), found.names.index(second)
    if not math.isfinite(found.differences[a, b]):
        return Entry("-")
    scale, digits = _shown(table, name, layout)
    sure = bool(found.ahead[a, b] or found.ahead[b, a])
    beside = ""
    if math.isfinite(found.low[a, b]):
        beside = f"[{scale * found.low[a, b]:+.{digits}f}, {scale * found.high[a, b]:+.{digits}f}]"
    return Entry(f"{scale * found.differences[a, b]:+.{digits}f}", beside, sure)


def _heading(table: GroupTable, statistic: str) -> str:
    less = not more_is_better(statistic, higher_is_better=table.measure.higher_is_better)
    return NAMES.get(statistic, statistic) + (" ↓" if less else "")


def _shown(table: GroupTable, statistic: str, layout: Layout) -> tuple[float, int]:
    """What a number is multiplied with, and digits after the point."""
    scale = table.scale(statistic)
    return scale, layout.digits if layout.digits is not None else 1 if scale == 100 else 3


def _entry(table: GroupTable, row: int, column: int, layout: Layout) -> Entry:
    cell, statistic = table.cells[row][column], table.statistics[column]
    scale, digits = _shown(table, statistic, layout)
    if not math.isfinite(cell.mean):
        return Entry("-")
    beside = ""
    if layout.spread == "std" and cell.num_seeds > 1:
        beside = f"± {scale * cell.population_std:.{digits}f}"
    elif layout.spread == "interval" and math.isfinite(cell.low):
        beside = f"[{scale * cell.low:.{digits}f}, {scale * cell.high:.{digits}f}]"
    return Entry(f"{scale * cell.mean:.{digits}f}", beside, cell.best)


def _drawn(overs: set[str]) -> str:
    """What intervals are drawn over, and what those over examples leave out."""
    named = {"both": "seeds and test examples", "examples": "test examples (other seeds left out)"}
    return f"over {' or '.join(named.get(one, one) for one in sorted(overs))}"


def _note(table: GroupTable, layout: Layout) -> str:
    """What the numbers are, in sentences."""
    cells = [cell for row in table.cells for cell in row]
    seeds = sorted({cell.num_seeds for cell in cells})
    number = f"{seeds[0]} seeds" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    said = [f"{table.measure.label.capitalize()} over clients{', %' if table.is_percent else ''}."]
    if layout.spread == "std" and seeds[-1] > 1:
        said.append(f"Mean ± population standard deviation over {number}.")
    elif layout.spread == "interval":
        overs = {cell.over for cell in cells if cell.over}
        said.append(f"In brackets, {100 * table.level:g} % intervals {_drawn(overs)}." if overs else "")
        if any(math.isfinite(cell.mean) and not cell.over for cell in cells):
            said.append(f"{'Without brackets' if overs else 'No brackets'}: there is no interval.")
    if seeds == [1]:
        said.append("One seed each: nothing is known of other seeds.")
    if any(cell.best for cell in cells):
        said.append(f"Bold: not distinguishable from the best (Holm, {100 * (1 - table.level):.2g} %).")
    if any(not more_is_better(name, higher_is_better=table.measure.higher_is_better) for name in table.statistics):
        said.append("↓: lower is better.")
    said += table.cautions
    return " ".join(sentence for sentence in said if sentence)


def _latex(made: Sequence[Sheet], layout: Layout) -> str:
    def number(entry: Entry) -> str:
        if entry.text == "-":
            return "--"
        said = rf"\mathbf{{{entry.text}}}" if entry.marked else entry.text
        beside = entry.beside.replace("± ", r"\pm ").replace("[", r"\ [")
        return f"${said}{' ' if beside and not beside.startswith(chr(92) + ' ') else ''}{beside}$"

    parts = ["% \\usepackage{booktabs}"]
    for position, sheet in enumerate(made):
        caption = layout.caption if layout.caption and not position else f"{sheet.caption}. {sheet.note}"
        label = (layout.label or "tab:propfair") + (f"-{position + 1}" if position else "")
        heading, *lines = (
            " & ".join(cells) + r" \\"
            for cells in (
                [latex_text(name) for name in sheet.heading],
                *([latex_text(name), *map(number, entries)] for name, entries in sheet.rows),
            )
        )
        parts += [
            r"\begin{table}", r"\centering", rf"\caption{{{latex_text(caption)}}}", rf"\label{{{label}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(sheet.heading) - 1)}}}", r"\toprule", heading, r"\midrule", *lines,
            r"\bottomrule", r"\end{tabular}", r"\end{table}", "",
        ]  # fmt: skip
    return "\n".join(parts)


def _markdown(made: Sequence[Sheet], _: Layout) -> str:
    parts = []
    for sheet in made:
        rule = ["---", *["---:"] * (len(sheet.heading) - 1)]
        cells = [[markdown_text(name), *(_marked(entry, "**", "**") for entry in row)] for name, row in sheet.rows]
        lines = ["| " + " | ".join(row) + " |" for row in ([*map(markdown_text, sheet.heading)], rule, *cells)]
        parts += [f"### {markdown_text(sheet.caption)}", "", *lines, "", markdown_text(sheet.note), ""]
    return "\n".join(parts)


def _html(made: Sequence[Sheet], _: Layout) -> str:
    parts = ['<!doctype html><meta charset="utf-8"><title>Tables</title>', f"<style>{_STYLE}</style>"]
    for sheet in made:
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in sheet.heading)
        body = "".join(
            f'<tr><th scope="row">{html.escape(name)}</th>'
            + "".join(f"<td>{_marked(entry, '<b>', '</b>')}</td>" for entry in row)
            + "</tr>\n"
            for name, row in sheet.rows
        )
        caption = f"{html.escape(sheet.caption)}<br><small>{html.escape(sheet.note)}</small>"
        parts.append(
            f"<table><caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
        )
    return "\n".join(parts) + "\n"


def _marked(entry: Entry, begin: str, end: str) -> str:
    text = f"{begin}{entry.text}{end}" if entry.marked else entry.text
    return f"{text} {entry.beside}" if entry.beside else text


def _csv(tables: Sequence[GroupTable], layout: Layout) -> str:
    """A line for each algorithm, or for each of its statistics; every number in a column of its own, as it is."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    wide = layout.columns == "statistics"
    names = list(dict.fromkeys(name for table in tables for name in table.statistics))
    heading = [f"{name}_{part}" for name in names for part in _PARTS] if wide else ["statistic", *_PARTS]
    writer.writerow(["data", "measure", "algorithm", *heading])
    for table in tables:
        for label, row in zip(table.labels, table.cells, strict=True):
            numbers = [[_written(getattr(cell, part)) for part in _PARTS] for cell in row]
            start = [csv_text(text) for text in (table.title, table.measure.key, label)]
            if wide:
                writer.writerow([*start, *(value for cell in numbers for value in cell)])
            else:
                writer.writerows([*start, name, *cell] for name, cell in zip(table.statistics, numbers, strict=True))
    return text.getvalue()


def _written(value: object) -> str:
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    return str(value).lower() if isinstance(value, bool) else str(value)


_FORMATS: dict[str, Callable[[Sequence[Sheet], Layout], str]] = {".tex": _latex, ".md": _markdown, ".html": _html}
ENDINGS = (*_FORMATS, ".csv", ".json")
