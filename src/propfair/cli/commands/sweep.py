"""`propfair sweep`: tune several algorithms, honestly."""

import enum
import math
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import DataDir, Device, Format, Out, OutputFormat, Quiet, Trust, gathered, seeds_said


class Selection(enum.StrEnum):
    """Where the best values are chosen."""

    validation = "validation"
    paper = "paper"


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The experiment file, TOML.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help=r"Settings that win over \[run] in it.", show_default=False),
    ] = None,
    out: Out = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", help="URL of an Optuna storage; default: SQLite in --out.", show_default=False),
    ] = None,
    criterion: Annotated[
        str | None,
        typer.Option(
            "--criterion", help="mean, worst10, nash, a mix: mean=0.5,worst10=0.5; 'worst10 of f1'.", show_default=False
        ),
    ] = None,
    selection: Annotated[
        Selection | None,
        typer.Option("--selection", help="paper: choose on the test split, as the authors did.", show_default=False),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="For the winners, such as 0,1,2.", show_default=False)
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", help="Worker processes.")] = 1,
    threads: Annotated[int, typer.Option("--threads", help="Torch threads of each worker.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option("--ray", help="Workers on a Ray cluster: auto, host:port, or local.", show_default=False),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Start no trial after so many minutes.", show_default=False)
    ] = None,
    device: Device = None,
    data_dir: DataDir = None,
    trust: Trust = False,
    quiet: Quiet = False,
    output: OutputFormat = Format.table,
) -> None:  # fmt: skip
    """Try values for several algorithms, choose on the validation split, and test the winners once, over seeds.

    Called again with the same [cyan]--out[/cyan], it goes on where it was; calls at the same time share the work.
    """
    from propfair.cli.display import drawn
    from propfair.cli.report_text import write_page
    from propfair.cli.sweep_text import live_table, print_tested
    from propfair.report.picture import draw_groups
    from propfair.report.sweep import tested_measure
    from propfair.runs.names import RUNS, slug
    from propfair.tuning.search import load_sweep
    from propfair.tuning.studies import Home
    from propfair.tuning.sweep import run_sweep
    from propfair.tuning.sweep_ray import run_sweep_on_ray

    given = gathered(overrides, device=device, data_dir=data_dir)
    loaded = load_sweep(
        file, given, criterion=criterion, selection=None if selection is None else selection.value,
        seeds=seeds_said(seeds, given), trust=trust,
    )  # fmt: skip
    home = Home.at(out or RUNS / slug(loaded.name), storage)
    on_ray = partial(run_sweep_on_ray, address="" if ray == "local" else ray or "", cpus=threads)
    with live_table(loaded, workers, quiet=quiet or output == Format.json) as show:
        studies = (run_sweep if ray is None else on_ray)(
            loaded, home, workers=workers, threads=threads, minutes=math.inf if minutes is None else minutes, show=show
        )
    if not studies.complete:
        typer.echo(f"not all trials were run. Go on with the same command and --out {home.out}", err=True)
        raise typer.Exit(1)
    print_tested(loaded, studies, output)
    tested = studies.tested()
    groups = [one.group for one in tested]
    if groups:
        measure = tested_measure(loaded, tested)
        picture = drawn(home.out / "comparison.png", lambda path: draw_groups(groups, path, measure))
        page = write_page([run.folder for one in groups for run in one.runs if run.folder], home.out / "report.html")
        if output == Format.table:
            for what, path in (("picture", picture), ("report", page)):
                if path is not None:
                    typer.echo(f"{what}: {path}")
    if studies.broken:
        raise typer.Exit(1)
