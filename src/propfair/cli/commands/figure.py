"""`propfair figure`: one chart of the report as a file for a paper."""

from pathlib import Path
from typing import Annotated

import typer

from propfair.cli.app import app


@app.command()
def figure(
    kind: Annotated[
        str,
        typer.Argument(help="trade, clients, relative, certificate, curves, lorenz or weights.", show_default=False),
    ],
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that have some below them.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A .png, .pdf or .svg.", show_default=False)] = None,
    measure: Annotated[
        str | None, typer.Option("--measure", help="Such as test/accuracy or validation/loss.", show_default=False)
    ] = None,
    reference: Annotated[
        str | None, typer.Option("--reference", help="The run that others are compared with.", show_default=False)
    ] = None,
    width: Annotated[float, typer.Option("--width", min=1, max=100, help="Inches.")] = 5.5,
    height: Annotated[float, typer.Option("--height", min=1, max=100, help="Inches; a long legend adds to it.")] = 3.2,
) -> None:
    """Draw one chart of the report as PNG, PDF or SVG."""
    from propfair.report.document import incomplete
    from propfair.report.figures import draw_figure
    from propfair.runs.reading import read_runs

    found, problems = read_runs(runs)
    for problem in [*problems, *incomplete(found)]:
        typer.echo(f"warning: {problem}", err=True)
    path = out or Path(f"{kind}.pdf")
    draw_figure(kind, found, path, measure=measure, reference=reference, width=width, height=height)
    typer.echo(f"figure: {path}")
