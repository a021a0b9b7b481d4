"""The command in this process: seconds faster than a new one, for tests that call it thousands of times."""

import contextlib
import io
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the packages that the command is made with
    from propfair.cli import main
from propfair.errors import PropFairWarning


@dataclass(frozen=True)
class Outcome:
    """What a user would have seen."""

    code: int
    stdout: str
    stderr: str
    crash: BaseException | None = None  # a traceback in the terminal

    @property
    def is_clean(self) -> bool:
        """It ended well, or with one line that says why not."""
        return self.crash is None


def call(*arguments: str | Path, cwd: Path | None = None) -> Outcome:
    """`propfair ARGUMENTS` in the folder `cwd`."""
    stdout, stderr = io.StringIO(), io.StringIO()
    code: object = 0
    crash = None
    with (
        mock.patch.object(sys, "argv", ["propfair", *map(str, arguments)]),
        mock.patch.object(warnings, "formatwarning"),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", PropFairWarning)
        try:
            main()
        except SystemExit as end:
            code = end.code
        except BaseException as error:
            crash, code = error, 1
    warned = "".join(f"warning: {one.message}\n" for one in caught)
    number = code if isinstance(code, int) else int(code is not None)
    return Outcome(number, stdout.getvalue(), warned + stderr.getvalue(), crash)
