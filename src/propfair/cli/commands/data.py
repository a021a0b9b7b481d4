"""`propfair data`: fetch data sets, and show where they are looked for."""

from typing import Annotated

import typer

from propfair.cli.app import app
from propfair.cli.options import DataDir

data = typer.Typer(no_args_is_help=True, help="Data sets: download them, show where they are.")
app.add_typer(data, name="data")


@data.command()
def get(
    name: Annotated[str, typer.Argument(help="A data set, see [cyan]propfair list data[/cyan].")],
    data_dir: DataDir = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Download a data set from its official address; a broken download never counts as data."""
    from propfair.data.download import get as download

    for path in download(name, data_dir, progress=not quiet):
        typer.echo(path)
