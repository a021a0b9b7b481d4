"""`propfair table`: a table of runs for a paper, or for a program."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import DrawnOver


class Spread(enum.StrEnum):
    """What is beside a mean."""

    std = "std"
    interval = "interval"
    none = "none"


class Columns(enum.StrEnum):
    """What the columns are."""

    statistics = "statistics"
    algorithms = "algorithms"


@app.command()
def table(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that have some below them.")],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            help="A .tex, .md, .html, .csv or .json; may be given more than once.",
            show_default="table.tex",
        ),
    ] = None,
    statistics: Annotated[
        str,
        typer.Option("--statistics", help="Names, with commas: mean,worst10,std; see propfair.fairness.STATISTICS."),
    ] = "mean,worst10,nash_welfare,std",
    measure: Annotated[
        str, typer.Option("--measure", help="Such as test/accuracy or validation/loss.")
    ] = "test/accuracy",
    columns: Annotated[Columns, typer.Option("--columns", help="What the columns are.")] = Columns.statistics,
    spread: Annotated[
        Spread, typer.Option("--spread", help="Beside a mean: population std over seeds, interval, or nothing.")
    ] = Spread.std,
    differences: Annotated[
        bool, typer.Option("--differences", help="Add a table of all pairs: who is ahead, by how much, how surely.")
    ] = False,
    over: DrawnOver = None,
    level: Annotated[float, typer.Option("--level", help="Of the intervals, and of what counts as best.")] = 0.95,
    digits: Annotated[
        int | None, typer.Option("--digits", min=0, max=15, help="After the point.", show_default=False)
    ] = None,
    caption: Annotated[str | None, typer.Option("--caption", help="Of the table.", show_default=False)] = None,
    label: Annotated[str | None, typer.Option("--label", help="Of the LaTeX table.", show_default=False)] = None,
) -> None:
    """Write a table of runs, seeds pooled: LaTeX with the best in bold, Markdown, HTML, CSV or JSON.

    Best is everything that is not distinguishable from the best: paired over seeds, all pairs at once.
    """
    from propfair.report.document import incomplete
    from propfair.report.group_table import group_table
    from propfair.report.table_files import Layout, write_tables
    from propfair.runs.grouping import by_clients
    from propfair.runs.measures import Measure
    from propfair.runs.reading import read_runs, trials_apart

    found, problems = read_runs(runs)
    for problem in [*problems, *incomplete(found)]:
        typer.echo(f"warning: {problem}", err=True)
    if not found:
        raise typer.Exit(1)
    proper, trials = trials_apart(found)
    names = [name.strip() for name in statistics.split(",") if name.strip()]
    tables = [
        group_table(
            comparison, names, Measure.parse(measure), level=level, over=over.value if over is not None else None
        )
        for comparison in by_clients(proper or trials)
    ]
    layout = Layout(spread.value, columns.value, differences, digits, caption, label)
    for path in out or [Path("table.tex")]:
        write_tables(tables, path, layout)
        typer.echo(f"table: {path}")
