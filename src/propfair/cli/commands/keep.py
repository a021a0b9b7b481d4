"""`propfair keep`: the records of runs in one small file."""

from pathlib import Path
from typing import Annotated

import typer

from propfair.cli.app import app


@app.command()
def keep(
    runs: Annotated[list[Path], typer.Argument(metavar="RUNS...", help="Run folders, or folders above them.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write, *.parquet.", show_default=False)],
    rounds: Annotated[
        bool, typer.Option("--rounds", help="Also the weight and the loss of each client in each round.")
    ] = False,
    answers: Annotated[
        bool, typer.Option("--answers/--no-answers", help="Also the answers to single test examples, for one seed.")
    ] = True,
) -> None:
    """Keep the records of runs that have ended, without models, in one file that fits into a repository.

    [cyan]report[/cyan], [cyan]table[/cyan] and [cyan]figure[/cyan] take the file in the place of the folders.
    """
    from propfair.errors import DataError
    from propfair.runs.keeping import keep_runs
    from propfair.runs.reading import read_runs

    found, problems = read_runs(runs)
    if problems:
        raise DataError(str(problems[0]))
    keep_runs(found, out, rounds=rounds, answers=answers)
    failed = sum(run.status.state == "failed" for run in found)
    also = f" ({failed} of them failed)" if failed else ""
    print(f"{len(found)} runs{also}, {out.stat().st_size / 1024:.0f} kB: {out}")
