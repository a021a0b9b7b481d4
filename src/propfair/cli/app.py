"""The `propfair` command: finds its sub-commands, turns errors into one line and Ctrl-C into exit code 130."""

import importlib
import pkgutil
import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

import propfair
from propfair.errors import PropFairError, PropFairWarning

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Fair federated learning: train it, measure it, certify it.",
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"propfair {propfair.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


def load_commands() -> None:
    """Import every file in commands/: each adds its own."""
    commands = Path(__file__).parent / "commands"
    for module in pkgutil.iter_modules([str(commands)]):
        importlib.import_module(f"propfair.cli.commands.{module.name}")


def main() -> None:
    """The entry point."""
    load_commands()
    plain = warnings.formatwarning
    warnings.formatwarning = lambda message, category, *place: (
        f"warning: {message}\n" if issubclass(category, PropFairWarning) else plain(message, category, *place)
    )
    try:
        app()
    except PropFairError as error:
        typer.secho(f"error: {error}", err=True, fg="red" if sys.stderr.isatty() else None)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
