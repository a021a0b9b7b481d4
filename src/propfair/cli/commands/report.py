"""`propfair report`: one page that shows who is served how well."""

from pathlib import Path
from typing import Annotated

import typer

from propfair.cli.app import app
from propfair.errors import ConfigError


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that have some below them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option("--title", help="The title of the page.", show_default=False)] = None,
) -> None:
    """Write one HTML page about runs: no network needed, nothing on it that is not in the records."""
    from propfair.report.write import write_report

    if out.suffix.lower() in (".pdf", ".png", ".svg", ".md", ".tex", ".csv", ".json"):
        raise ConfigError(f"a report is an HTML page: give a path that ends in .html; got {out}")
    problems, num_runs = write_report(runs, out, title)
    for problem in problems:
        typer.echo(f"warning: {problem}", err=True)
    typer.echo(f"report: {out} ({num_runs} {'run' if num_runs == 1 else 'runs'})")
    if not num_runs:
        raise typer.Exit(1)
