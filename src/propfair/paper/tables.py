"""A redone table or figure of the paper as files: Markdown, LaTeX, CSV, JSON, PNG and PDF."""

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path

from propfair.files import write_text
from propfair.paper import catalogue
from propfair.paper.reproduced import Number, Reproduced
from propfair.report.relative import draw_relative
from propfair.report.scatter import draw_scatter
from propfair.report.tables import TextTable

_PLAIN = ("chosen", "sizes")  # values rather than percentages
_OURS = ("ranking", "natural")  # with no numbers of the paper


def table_of(reproduced: Reproduced) -> TextTable:
    """Ours, the paper's and the difference in each cell; ours alone in a ranking."""
    if reproduced.preset.kind in _OURS:
        return _ranking_table(reproduced)
    numbers = reproduced.numbers
    columns = list(dict.fromkeys(number.column for number in numbers))
    rows = list(dict.fromkeys(number.row for number in numbers))
    cells = {(number.row, number.column): " / ".join(_three(number, reproduced)) for number in numbers}
    return TextTable(
        reproduced.title,
        ["", *columns],
        [[row, *(cells.get((row, column), "-") for column in columns)] for row in rows],
        [f"Ours / the paper's / difference{_in_stds(reproduced)}.", *_sentences(reproduced.notes)],
    )


def long_table(reproduced: Reproduced) -> TextTable:
    """A line for each number, narrow enough for a screen; for each contestant in a ranking."""
    if reproduced.preset.kind in _OURS:
        return _ranking_table(reproduced)
    rows = [[number.row, number.column, *_three(number, reproduced)] for number in reproduced.numbers]
    columns = ["", "what", "ours", "paper", "difference"]
    told = [f"Differences are given{one}." for one in [_in_stds(reproduced)] if one]
    return TextTable(reproduced.title, columns, rows, [*told, *_sentences(reproduced.notes)])


def _in_stds(reproduced: Reproduced) -> str:
    return ", also in units of the paper's standard deviation over seeds" if reproduced.at_paper_scale else ""


def _ranking_table(reproduced: Reproduced) -> TextTable:
    """A line for each contestant: what was chosen for it, its numbers, and intervals where there are some."""
    numbers, chosen = reproduced.numbers, reproduced.chosen
    columns = list(dict.fromkeys(number.column for number in numbers))
    cells = {(number.row, number.column): _with_limits(number) for number in numbers}
    rows = [
        [row, *([chosen.get(row) or "-"] if chosen else []), *(cells.get((row, column), "-") for column in columns)]
        for row in dict.fromkeys(number.row for number in numbers)
    ]
    heads = ["algorithm", *(["chosen"] if chosen else []), *columns]
    return TextTable(reproduced.title, heads, rows, _sentences(reproduced.notes))


def _with_limits(number: Number) -> str:
    """`1.2 [0.4, 2.0]`, or `1.2 ± 0.3`, or `1.2`."""
    if not math.isnan(number.low):
        return f"{number.ours:.1f} [{number.low:.1f}, {number.high:.1f}]"
    return f"{number.ours:.1f}" if math.isnan(number.ours_std) else f"{number.ours:.1f} ± {number.ours_std:.1f}"


def write_reproduction(reproduced: Reproduced, folder: Path) -> list[Path]:
    """Write what there is to show; the paths."""
    written: list[Path] = []
    if reproduced.numbers:
        table = table_of(reproduced)
        stem = folder / reproduced.name
        written = [path for path in table.write(stem) if path.suffix != ".csv"]
        written.append(stem.with_name(f"{stem.name}.csv"))
        write_text(written[-1], _csv(reproduced.numbers))
        written.append(stem.with_name(f"{stem.name}.json"))
        write_text(written[-1], json.dumps(reproduced.as_dict(), indent=2, ensure_ascii=False) + "\n")
    draw = _drawing(reproduced)
    if draw is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for ending in ("png", "pdf"):
            written.append(folder / f"{reproduced.name}.{ending}")
            draw(written[-1])
    return written


def _drawing(reproduced: Reproduced) -> Callable[[Path], object] | None:
    preset = reproduced.preset
    if isinstance(preset, catalogue.Example):
        from propfair.fairness.pictures import example_afl_failure, example_nash

        return example_nash if preset.example == "nash" else example_afl_failure
    if reproduced.certified:
        changes = [row for found in reproduced.certified for row in found.certificate.relative]
        titles = [f"{one.row}: {one.ours:+.2f} %\n(paper {one.paper:+.2f} %)" for one in reproduced.numbers]
        clients = reproduced.certified[0].clients
        return lambda path: draw_relative(titles, changes, clients, path, preset.title)
    if isinstance(preset, catalogue.Scatter):
        points = _points(reproduced.numbers)
        return lambda path: draw_scatter(points, path, preset.title)
    return None


def _sentences(notes: list[str]) -> list[str]:
    return [f"{note[0].upper()}{note[1:].rstrip('.')}." for note in notes]


def _points(numbers: list[Number]) -> dict[str, dict[str, tuple[tuple[float, float], tuple[float, float]]]]:
    found = {(number.row, number.column): number for number in numbers}
    panels: dict[str, dict[str, tuple[tuple[float, float], tuple[float, float]]]] = {}
    for row in dict.fromkeys(number.row for number in numbers):
        experiment, _, label = row.partition(": ")
        mean, worst = found[row, "mean"], found[row, "worst10"]
        panels.setdefault(experiment, {})[label] = ((mean.ours, worst.ours), (mean.paper, worst.paper))
    return panels


def _three(number: Number, reproduced: Reproduced) -> tuple[str, str, str]:
    """Ours, the paper's, the difference."""
    if reproduced.preset.kind in _PLAIN:
        return f"{number.ours:g}", f"{number.paper:g}", f"{number.difference:+g}"
    ours, paper = (
        "-" if math.isnan(value) else f"{value:.2f}" if math.isnan(std) else f"{value:.2f} ± {std:.2f}"
        for value, std in ((number.ours, number.ours_std), (number.paper, number.paper_std))
    )
    stds = f" ({number.in_stds:+.1f} std)" if reproduced.at_paper_scale and number.paper_std > 0 else ""
    return ours, paper, "-" if math.isnan(number.difference) else f"{number.difference:+.2f}{stds}"


def _csv(numbers: list[Number]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "column", "ours", "ours_std", "paper", "paper_std", "difference", "in_stds", "low", "high"])
    for number in numbers:
        values = (
            number.ours, number.ours_std, number.paper, number.paper_std, number.difference, number.in_stds,
            number.low, number.high,
        )  # fmt: skip
        writer.writerow([number.row, number.column, *("" if math.isnan(value) else repr(value) for value in values)])
    return text.getvalue()
