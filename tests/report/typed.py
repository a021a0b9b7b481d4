"""Commands as they are typed, in this process: importing torch for each would take longer than all they do."""

import warnings

from propfair.errors import PropFairError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # typer's, about click
    from typer.testing import CliRunner

    from propfair.cli.app import app, load_commands


def typed(*arguments: str) -> str:
    """What a command says; it must end well."""
    load_commands()
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def refused(*arguments: str) -> str:
    """The error of a command that must not end well."""
    load_commands()
    done = CliRunner().invoke(app, list(arguments))
    assert isinstance(done.exception, PropFairError), (done.output, done.exception)
    return str(done.exception)
