"""`propfair resume`: go on with a run that was stopped."""

from pathlib import Path
from typing import Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import DataDir, Format, OutputFormat, Quiet, Trust


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.", show_default=False)],
    data_dir: DataDir = None,
    trust: Trust = False,
    quiet: Quiet = False,
    output: OutputFormat = Format.table,
) -> None:
    """Go on with a run that was stopped or killed; it ends with the same bits as if it had not been."""
    from propfair.cli.display import shown
    from propfair.cli.report_text import print_result
    from propfair.runs import launch
    from propfair.runs.folder import RunFolder

    config = launch.saved_config(RunFolder.open(run), trust=trust)
    with shown(
        str(config.parts.algorithm), config.schedule.rounds, quiet=quiet or output == Format.json
    ) as after_round:
        result = launch.resume(run, data_folder=data_dir, trust=trust, after_round=after_round)
    print_result(result, output)
    if result.state != "finished":
        raise typer.Exit(130 if result.state == "interrupted" else 1)
