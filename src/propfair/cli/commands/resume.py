"""`propfair resume`: go on with a run that was stopped."""

from pathlib import Path
from typing import Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import DataDir, Format, OutputFormat, Quiet, Trust


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[schedule.rounds=N]", help="More rounds, also for a finished run.", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    trust: Trust = False,
    quiet: Quiet = False,
    output: OutputFormat = Format.table,
) -> None:
    """Go on with a run that was stopped or killed, or give it more rounds.

    It ends with the same bits as if it had not been stopped, or had been given all its rounds at once.
    """
    from propfair.cli.display import shown
    from propfair.cli.report_text import print_result
    from propfair.runs import launch
    from propfair.runs.folder import RunFolder

    rounds = _rounds(overrides or [])
    config = launch.saved_config(RunFolder.open(run), trust=trust)
    with shown(
        str(config.parts.algorithm), rounds or config.schedule.rounds, quiet=quiet or output == Format.json
    ) as after_round:
        result = launch.resume(run, rounds=rounds, data_folder=data_dir, trust=trust, after_round=after_round)
    print_result(result, output)
    if result.state != "finished":
        raise typer.Exit(130 if result.state == "interrupted" else 1)


def _rounds(overrides: list[str]) -> int | None:
    """The one setting that a run may change on its way."""
    from propfair.errors import ConfigError
    from propfair.runs.config import parse_overrides

    settings = parse_overrides(overrides)
    others = [key for key in settings if key != "schedule.rounds"]
    if others:
        raise ConfigError(
            f"a run goes on as it began: resume takes schedule.rounds=N and no {others[0]}. Start another run for "
            "that, or train on from its model with propfair run --from."
        )
    rounds = settings.get("schedule.rounds")
    if rounds is not None and (type(rounds) is not int or rounds < 1):
        raise ConfigError(f"schedule.rounds must be a number of rounds; got {rounds!r}")
    return rounds
