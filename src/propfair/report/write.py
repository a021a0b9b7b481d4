"""From run folders to a file."""

from collections.abc import Sequence
from pathlib import Path

from propfair.errors import ConfigError, WriteError
from propfair.files import write_text
from propfair.report.document import incomplete, make_document
from propfair.report.page import render
from propfair.runs.reading import Problem, read_runs


def write_report(places: Sequence[Path], path: Path, title: str | None = None) -> tuple[list[Problem], int]:
    """Write the page of all runs at or below the places. What is wrong with them, and how many runs could be read."""
    runs, problems = read_runs(places)
    page = render(make_document(runs, problems, title))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, page)
    except WriteError:
        raise
    except OSError as error:
        raise ConfigError(f"can't write {path}: {error.strerror or error}. Choose another file with --out.") from None
    return [*problems, *incomplete(runs)], len(runs)
