"""`propfair resume`: go on with a run that was stopped."""

from pathlib import Path
from typing import Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import DataDir, Format, OutputFormat, Quiet


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.", show_default=False)],
    data_dir: DataDir = None,
    quiet: Quiet = False,
    output: OutputFormat = Format.table,
) -> None:
    """Go on with a run that was stopped or killed; it ends with the same bits as if it had not been."""
    from propfair.cli.display import progress
    from propfair.cli.report_text import print_result
    from propfair.runs import run as runner
    from propfair.runs.folder import RunFolder

    settings = runner.saved_config(RunFolder.open(run))
    title = str(settings.make_algorithm())
    with progress(title, settings.schedule.rounds, quiet=quiet or output == Format.json) as watch:
        result = runner.resume(run, data_folder=data_dir, watch=watch)
    print_result(result, output)
    if result.state != "finished":
        raise typer.Exit(130 if result.state == "interrupted" else 1)
