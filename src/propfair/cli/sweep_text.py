"""A sweep on the screen: the live table, and the results."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from propfair.cli.display import percent, print_table
from propfair.cli.options import Format
from propfair.report.sweep import result_table, settings_text, write_results
from propfair.tuning.search import Sweep
from propfair.tuning.studies import FINAL, Row, Studies

_STATES = ("done", "running", "free", "pruned", "failed")


@contextlib.contextmanager
def live_table(sweep: Sweep, workers: int, *, quiet: bool) -> Iterator[Callable[[list[Row]], None]]:
    """Shows rows: a live table on a terminal, a line whenever something changes elsewhere, nothing when quiet."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with Live(console=Console(stderr=True), auto_refresh=False) as live:
            yield lambda rows: live.update(_table(sweep, rows, workers), refresh=True)
    else:
        said = ""

        def write(rows: list[Row]) -> None:
            nonlocal said
            ended = sum(sum(row.counts.get(state, 0) for state in ("done", "pruned", "failed")) for row in rows)
            total = sum(sum(row.counts.values()) for row in rows)
            failed = sum(row.counts.get("failed", 0) for row in rows)
            stage = FINAL if any(row.label == FINAL for row in rows) else "tuning"
            text = f"{stage}  {ended}/{total} ended, {failed} failed"
            if text != said:
                said = text
                print(f"{text}  eta {duration(eta(sweep, rows, workers))}", file=sys.stderr, flush=True)

        yield write


def eta(sweep: Sweep, rows: Sequence[Row], workers: int) -> float | None:
    """Seconds left, from the mean time of the trials that are done; None before the first."""
    times = [one for row in rows for one in row.seconds]
    if not times:
        return None
    left = sum(row.counts.get("free", 0) + 0.5 * row.counts.get("running", 0) for row in rows)
    if not any(row.label == FINAL for row in rows):
        left += len(sweep.entrants) * len(sweep.seeds)
    return left * sum(times) / len(times) / workers


def duration(seconds: float | None) -> str:
    """45 s, 12 min, 3 h 05 min."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _table(sweep: Sweep, rows: Sequence[Row], workers: int) -> Table:
    table = Table(title=f"{sweep.name}  eta {duration(eta(sweep, rows, workers))}", title_justify="left")
    for column in ("algorithm", *_STATES, f"best {sweep.criterion}, %", "with"):
        table.add_column(column, justify="left" if column in ("algorithm", "with") else "right")
    for row in rows:
        best = ("", "") if row.best is None else (percent(row.best.value), settings_text(row.best.point))
        table.add_row(row.label, *(str(row.counts.get(state, 0) or "") for state in _STATES), *best)
    return table


def print_outcomes(sweep: Sweep, studies: Studies, output: Format) -> None:
    """The results on the screen, and where they were written."""
    outcomes, failures, out = studies.outcomes(), studies.failures(), studies.place.out
    written = write_results(sweep, outcomes, failures, out)
    if output == Format.json:
        print(written[-1].read_text(encoding="utf-8"), end="")
        return
    table = result_table(sweep, outcomes)
    print_table(table.title, table.columns, table.rows, caption="\n".join(table.notes))
    for failure in failures:
        print(failure)
    print(f"written to {out}: {', '.join(path.name for path in written)} and the runs")
