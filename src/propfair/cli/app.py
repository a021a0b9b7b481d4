"""The `propfair` command: finds its sub-commands, turns errors into one line and Ctrl-C into exit code 130."""

import atexit
import gc
import importlib
import pkgutil
import sys
import typing
import warnings
from pathlib import Path
from typing import Annotated

import click
import typer
import typer.main

import propfair
from propfair.errors import ConfigError, PropFairError, PropFairWarning, printable, shown

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
    gc.set_threshold(50_000, 20, 20)  # looking through all that imports leave is a tenth of a start,
    atexit.register(gc.freeze)  # and once more at the end a fifth of a short command
    load_commands()
    plain = warnings.formatwarning
    warnings.formatwarning = lambda message, category, *place: (
        f"warning: {_line(str(message))}\n"
        if issubclass(category, PropFairWarning)
        else plain(message, category, *place)
    )
    try:
        _check_arguments()
        _with_help(typer.main.get_command(app))()
    except PropFairError as error:
        _tell(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:  # a name that is too long, a disk that is gone: whatever the system says
        _tell(f"{error.strerror or error}{'' if error.filename is None else f': {error.filename!r}'}")
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "allocate memory" not in str(error):  # torch has no class for it
            raise
        _tell(f"there is not enough memory: {str(error).strip() or 'no more is to be had'}. Ask for something smaller.")
        sys.exit(2)


def _with_help(command: click.Command) -> click.Command:
    """The command with what is said about its arguments: since click 8.5 typer loses that on the way."""
    for below in getattr(command, "commands", {}).values():
        _with_help(below)
    hints = typing.get_type_hints(command.callback, include_extras=True) if command.callback is not None else {}
    for parameter in command.params:
        said = (getattr(hint, "help", None) for hint in getattr(hints.get(parameter.name or ""), "__metadata__", ()))
        if getattr(parameter, "help", "") is None:
            parameter.help = next(filter(None, said), None)
    return command


def _check_arguments() -> None:
    """Names and titles go into files of valid Unicode, so arguments must be."""
    for argument in sys.argv:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ConfigError(
                f"an argument is not valid UTF-8: {shown(argument)}. Rename the file or folder."
            ) from None


def _line(text: str) -> str:
    """Whatever a folder is called or another package says, it is one line."""
    return " ".join(printable(text).splitlines())


def _tell(text: str) -> None:
    typer.secho(f"error: {_line(text)}", err=True, fg="red" if sys.stderr.isatty() else None)
