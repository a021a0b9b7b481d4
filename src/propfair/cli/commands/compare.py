"""`propfair compare`: several algorithms on the same clients."""

import shlex
import sys
from typing import Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import (
    ConfigFile,
    DataDir,
    Device,
    Force,
    Format,
    Out,
    OutputFormat,
    Quiet,
    Trust,
    gathered,
    seeds_said,
)
from propfair.errors import ConfigError, DataError

_CRITERION = "mean=0.5,worst10=0.5"


@app.command()
def compare(
    items: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ALGORITHM[:KEY=VALUE,...]]... [KEY=VALUE]...", show_default=False,
            help="Algorithms, each with settings of its own ([cyan]propfair:M=5,local.lr=0.5[/cyan]), and settings for "
            "all ([cyan]data.num_clients=20[/cyan]).",
        ),
    ] = None,
    config: ConfigFile = None,
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", help="Seeds, such as 0,1,2; else that of the settings, 0.", show_default=False),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Choose learning rate and main hyper-parameter of each on validation data, at equal budgets."
        ),
    ] = False,
    trials: Annotated[int, typer.Option("--trials", help="Of each algorithm, with --tune.", min=1)] = 12,
    criterion: Annotated[
        str | None,
        typer.Option(
            "--criterion", help=f"What --tune chooses by: mean, worst10, nash, 'mean of f1', a mix; else {_CRITERION}.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", help="Worker processes of --tune.", min=0)] = 2,
    with_local: Annotated[
        bool,
        typer.Option(
            "--with-local", help="Also train a model for each client alone, on the same splits: who gains by joining?"
        ),
    ] = False,
    out: Out = None,
    force: Force = False,
    device: Device = None,
    data_dir: DataDir = None,
    trust: Trust = False,
    quiet: Quiet = False,
    output: OutputFormat = Format.table,
) -> None:  # fmt: skip
    """Train several algorithms on the same clients; a table and a picture of who is served how well.

    Stopped or killed, the same command goes on; with more algorithms or seeds it adds them.
    """
    from propfair.cli.display import drawn, shown
    from propfair.cli.report_text import advice, print_comparison, write_page
    from propfair.cli.standing_text import Standing
    from propfair.cli.sweep_text import live_table
    from propfair.report.picture import draw_groups
    from propfair.report.sweep import edge_notes, settings_text
    from propfair.runs.cautions import cautions
    from propfair.runs.compare import Compared, Contest
    from propfair.runs.contestant import Contestant
    from propfair.runs.standing import ALONE
    from propfair.runs.toml import read_toml
    from propfair.runs.trust import check_trust

    content = read_toml(config)
    settings = [item for item in items or [] if _is_setting(item)]
    overrides = gathered(settings, device=device, data_dir=data_dir)
    if config is not None:
        check_trust(content, config, said=overrides, trust=trust)
    listed = content.pop("contestants", [])
    named = [item for item in items or [] if not _is_setting(item)]
    wanted = named or listed or ["fedavg", "fedavg:weighting=uniform", "propfair"]
    if with_local and not any(text.partition(":")[0] == ALONE for text in wanted):
        wanted = [*wanted, ALONE]
    contestants = Contestant.parse_all(wanted)
    numbers = seeds_said(seeds, overrides) or (content.get("seed", 0),)
    quiet = quiet or output == Format.json
    if criterion is not None and not tune:
        raise ConfigError(f"--criterion {criterion} is what --tune chooses by: add --tune, or leave it out")
    chosen_by = criterion or _CRITERION
    contest = Contest.of(
        content, contestants, overrides=overrides, out=out, tuning=f"{trials} by {chosen_by}" if tune else ""
    )
    folder = contest.folder
    try:
        if tune:
            from propfair.tuning.budget import budget_sweep
            from propfair.tuning.studies import Home
            from propfair.tuning.sweep import run_sweep

            sweep = budget_sweep(
                content, contestants, overrides=overrides, seeds=numbers, trials=trials, criterion=chosen_by
            )
            with live_table(sweep, workers, quiet=quiet) as show:
                studies = run_sweep(sweep, Home.at(folder), workers=workers, show=show)
            tested, failures, broken = studies.tested(), studies.failures(), studies.broken
            compared = [
                Compared(one.winner.contestant.chosen(settings_text(one.winner.point)), one.group.runs)
                for one in tested
            ]
            notes = edge_notes(tested)
        else:
            compared = contest.train(
                numbers, force=force, show_run=lambda title, rounds: shown(title, rounds, quiet=quiet)
            )
            failures, notes, broken = [], [], False
    except KeyboardInterrupt:
        typer.echo(f"what is done is kept in {folder}. Go on with: {_command()}", err=True)
        raise
    if not compared:
        raise DataError(f"there is nothing to compare, all trials failed. {failures[0] if failures else ''}".strip())
    groups = [one.group for one in compared]
    standing = Standing.of(groups)
    picture = drawn(folder / "comparison.png", lambda path: draw_groups(groups, path, standing.measure))
    page = write_page([run.folder for one in compared for run in one.runs if run.folder], folder / "report.html")
    standing.write(folder)
    print_comparison(compared, standing, picture, page, output)
    if output == Format.table:
        for line in [*failures, *notes, *cautions([one.group for one in compared]), *advice(contest, tune)]:
            typer.echo(line)
    if broken or any(run.status.state == "failed" for one in compared for run in one.runs):
        raise typer.Exit(1)


def _command() -> str:
    """What was typed."""
    return shlex.join(["propfair", *sys.argv[1:]])


def _is_setting(item: str) -> bool:
    """`data.num_clients=20` is a setting, `propfair:M=5` is an algorithm."""
    return "=" in item and ":" not in item.partition("=")[0]
