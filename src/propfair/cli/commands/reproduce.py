"""`propfair reproduce`: the tables and figures of the paper, redone."""

import contextlib
import enum
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import DataDir, Device, Format, Out, OutputFormat, Quiet, gathered, seeds_said

if TYPE_CHECKING:
    from propfair.runs.progress import AfterRound
    from propfair.tuning.search import Sweep
    from propfair.tuning.studies import Studies


class Scale(enum.StrEnum):
    """How large."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(metavar="LIST|NAME", help="A table or figure; [cyan]list[/cyan] shows all.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings that win over the preset's.", show_default=False),
    ] = None,
    scale: Annotated[
        Scale, typer.Option("--scale", help="smoke: seconds, no numbers; small: real data, reduced; paper: all of it.")
    ] = Scale.small,
    out: Out = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-w", help="Worker processes; 0: no other than this.", show_default=False)
    ] = None,
    threads: Annotated[int, typer.Option("--threads", help="Torch threads of each worker.")] = 1,
    published: Annotated[bool, typer.Option("--published", help="Take the paper's best values, search none.")] = False,
    only: Annotated[
        str | None, typer.Option("--only", help="Algorithms, such as fedavg,propfair.", show_default=False)
    ] = None,
    experiments: Annotated[
        str | None, typer.Option("--data", help="Data sets, such as cifar10,shakespeare.", show_default=False)
    ] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Seeds, such as 0,1,2.", show_default=False)] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Start no run after so many minutes.", show_default=False)
    ] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option("--records", help="Kept runs, or folders, to make it from without training.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run, and for how long.")] = False,
    device: Device = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    output: OutputFormat = Format.table,
) -> None:  # fmt: skip
    """Redo a table or figure of the paper, and show its numbers beside ours.

    Stopped or killed, the same command goes on. Tables and figures share their runs in [cyan]--out[/cyan].
    """
    from propfair.cli.display import print_json, print_table
    from propfair.cli.report_text import write_page
    from propfair.errors import ConfigError
    from propfair.paper.catalogue import load_preset, preset_names
    from propfair.paper.claims import judge_records
    from propfair.paper.left import said_estimate
    from propfair.paper.reproduce import left_to_run
    from propfair.paper.reproduce import reproduce as redo
    from propfair.paper.settings import NotCompleteError, Settings
    from propfair.paper.tables import long_table, write_reproduction
    from propfair.runs.names import RUNS

    if name.lower() == "list":
        listed = {one: load_preset(one).title for one in preset_names()}
        if output == Format.json:
            print_json(listed)
        else:
            print_table("Tables and figures", ["name", "what it is"], [[*pair] for pair in listed.items()])
        return
    if load_preset(name).kind == "claims":
        if overrides or only or experiments or seeds or published or dry_run:
            raise ConfigError("claims are judged on all runs that --records has: leave all else but --out out")
        judged, kept, content = judge_records(name, records or [Path("results")], out or RUNS / "reproduce")
        if output == Format.json:
            print_json({**content, "files": [str(file) for file in kept]})
            return
        print_table(judged.title, judged.columns, judged.rows, caption="\n".join(judged.notes))
        for file in kept:
            typer.echo(f"written: {file}")
        return
    given = gathered(overrides, device=device, data_dir=data_dir)
    settings = Settings(
        scale=scale.value,
        out=out or RUNS / "reproduce" / scale.value,
        workers=(0 if scale == Scale.smoke else 2) if workers is None else workers,
        threads=threads,
        published=published,
        only=tuple(only.split(",")) if only else (),
        experiments=tuple(experiments.split(",")) if experiments else (),
        seeds=seeds_said(seeds, given) or (),
        overrides=given,
        minutes=math.inf if minutes is None else minutes,
        records=tuple(records or ()),
    )
    if dry_run:
        left = list(left_to_run(name, settings))
        if not left:
            typer.echo(f"{load_preset(name).title}: no estimate; --scale smoke shows in seconds what it does")
        for title, note, labels, found in left:
            typer.echo(f"{title}: {note}\n  {', '.join(labels)}")
            typer.echo("  nothing is left to run" if found.nothing else f"  {said_estimate(found)}")
        return
    try:
        redone = redo(name, settings, _Screen(settings.workers, quiet=quiet or output == Format.json))
    except NotCompleteError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    written = [path for one in redone for path in write_reproduction(one, settings.out)]
    runs = list(dict.fromkeys(path for one in redone for path in one.runs))
    page = write_page(runs, settings.out / f"{name}.html", load_preset(name).title) if runs else None
    if output == Format.json:
        files = [str(path) for path in written]
        report = None if page is None else str(page)
        print_json({"reproduced": [one.as_dict() for one in redone], "files": files, "report": report})
        return
    for one in redone:
        if one.numbers:
            table = long_table(one)
            print_table(table.title, table.columns, table.rows, caption="\n".join(table.notes))
    for path in written:
        typer.echo(f"written: {path}")
    if page is not None:
        typer.echo(f"report: {page}")


class _Screen:
    """Progress on standard error."""

    def __init__(self, workers: int, *, quiet: bool) -> None:
        self._workers, self._quiet = workers, quiet

    def say(self, text: str) -> None:
        if not self._quiet:
            typer.echo(text, err=True)

    @contextlib.contextmanager
    def table(self, sweep: "Sweep") -> Iterator[Callable[["Studies"], None]]:
        from propfair.cli.sweep_text import live_table

        with live_table(sweep, max(1, self._workers), quiet=self._quiet) as show:
            yield show

    def run(self, title: str, rounds: int) -> "AbstractContextManager[AfterRound]":
        from propfair.cli.display import shown

        return shown(title, rounds, quiet=self._quiet)
