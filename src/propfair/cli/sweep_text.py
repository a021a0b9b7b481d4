"""A sweep on the screen: the live table, and the results."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from propfair.cli.display import print_table
from propfair.cli.options import Format
from propfair.report.sweep import result_table, settings_text, write_results
from propfair.report.tables import value_text
from propfair.tuning.search import Sweep
from propfair.tuning.studies import FINAL, Studies, Tally

_STATES = ("done", "running", "free", "pruned", "failed")


@contextlib.contextmanager
def live_table(sweep: Sweep, workers: int, *, quiet: bool) -> Iterator[Callable[[Studies], None]]:
    """How far a sweep is: a live table on a terminal, lines when something changes elsewhere, nothing when quiet."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with Live(console=Console(stderr=True), auto_refresh=False) as live:
            yield lambda studies: live.update(_table(sweep, studies.tallies(), workers), refresh=True)
    else:
        said = ""

        def write(studies: Studies) -> None:
            nonlocal said
            tallies = studies.tallies()
            ended = sum(sum(tally.counts.get(state, 0) for state in ("done", "pruned", "failed")) for tally in tallies)
            total = sum(sum(tally.counts.values()) for tally in tallies)
            failed = sum(tally.counts.get("failed", 0) for tally in tallies)
            stage = FINAL if any(tally.label == FINAL for tally in tallies) else "tuning"
            text = f"{stage}  {ended}/{total} ended, {failed} failed"
            if text != said:
                said = text
                print(f"{text}  eta {duration(eta(sweep, tallies, workers))}", file=sys.stderr, flush=True)

        yield write


def eta(sweep: Sweep, tallies: Sequence[Tally], workers: int) -> float | None:
    """Seconds left, from the mean time of the trials that are done; None before the first."""
    times = [one for tally in tallies for one in tally.seconds]
    if not times:
        return None
    left = sum(tally.counts.get("free", 0) + 0.5 * tally.counts.get("running", 0) for tally in tallies)
    if not any(tally.label == FINAL for tally in tallies):
        left += len(sweep.contestants) * len(sweep.seeds)
    return left * sum(times) / len(times) / max(1, workers)  # none: this process works


def duration(seconds: float | None) -> str:
    """45 s, 12 min, 3 h 05 min."""
    if seconds is None:
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _table(sweep: Sweep, tallies: Sequence[Tally], workers: int) -> Table:
    table = Table(title=f"{sweep.name}  eta {duration(eta(sweep, tallies, workers))}", title_justify="left")
    unit = ", %" if any(one.best is not None and one.best.measure.metric == "accuracy" for one in tallies) else ""
    for column in ("algorithm", *_STATES, f"best {sweep.criterion}{unit}", "with"):
        table.add_column(column, justify="left" if column in ("algorithm", "with") else "right")
    for tally in tallies:
        best = ("", "") if tally.best is None else (
            value_text(tally.best.found, tally.best.measure), settings_text(tally.best.point),
        )  # fmt: skip
        table.add_row(tally.label, *(str(tally.counts.get(state, 0) or "") for state in _STATES), *best)
    return table


def print_tested(sweep: Sweep, studies: Studies, output: Format) -> None:
    """The results on the screen, and where they were written."""
    tested, failures, out = studies.tested(), studies.failures(), studies.home.out
    written = write_results(sweep, tested, failures, out)
    if output == Format.json:
        print(written[-1].read_text(encoding="utf-8"), end="")
        return
    table = result_table(sweep, tested)
    print_table(table.title, table.columns, table.rows, caption="\n".join(table.notes))
    for failure in failures:
        print(failure)
    print(f"written to {out}: {', '.join(path.name for path in written)} and the runs")
