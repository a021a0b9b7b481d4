"""`propfair run`: train one model."""

from pathlib import Path
from typing import Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import (
    ConfigFile,
    DataDir,
    Device,
    Force,
    Format,
    Log,
    Out,
    OutputFormat,
    Overrides,
    Quiet,
    Seed,
    Trust,
    gathered,
)


@app.command()
def run(
    overrides: Overrides = None,
    config: ConfigFile = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="RUN", show_default=False,
            help="Train on from the model of this run, with its settings where no others are given.",
        ),
    ] = None,
    out: Out = None,
    force: Force = False,
    seed: Seed = None,
    device: Device = None,
    data_dir: DataDir = None,
    log: Log = None,
    trust: Trust = False,
    quiet: Quiet = False,
    output: OutputFormat = Format.table,
) -> None:  # fmt: skip
    """Train one model and show who is served how well."""
    from propfair.cli.display import shown
    from propfair.cli.report_text import print_result
    from propfair.runs import launch, names
    from propfair.runs.config import load_config
    from propfair.runs.finetune import config_from

    given = gathered(overrides, device=device, data_dir=data_dir, seed=seed, log=log)
    settings = (
        load_config(config, given, trust=trust) if start is None else config_from(start, config, given, trust=trust)
    )
    folder = out or names.run_folder(settings)
    title = str(settings.parts.algorithm)
    with shown(title, settings.schedule.rounds, quiet=quiet or output == Format.json) as after_round:
        result = launch.run(settings, folder, force=force, after_round=after_round)
    print_result(result, output)
    if result.state != "finished":
        raise typer.Exit(130 if result.state == "interrupted" else 1)
