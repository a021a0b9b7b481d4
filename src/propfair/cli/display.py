"""What people see: progress while it runs, a table at the end."""

import contextlib
import datetime
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import progress as bars
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from propfair.errors import MissingExtraError, printable
from propfair.runs.progress import AfterRound, Progress

_TEXT_COLUMNS = ("options", "what it is", "server sees", "settings")
STATISTICS = ("mean", "std", "worst", "worst10", "best10", "jain", "gini")


def drawn(path: Path, draw: Callable[[Path], object]) -> Path | None:
    """Write a picture or page that goes with an answer; None, with a warning, if the extra that draws it is missing."""
    try:
        draw(path)
    except MissingExtraError as error:
        print(f"warning: {error}", file=sys.stderr)
        return None
    return path


@contextlib.contextmanager
def shown(title: str, rounds: int, *, quiet: bool) -> Iterator[AfterRound]:
    """Shows the progress of one run: a live bar on a terminal, a line per evaluation elsewhere, nothing when quiet."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with bars.Progress(
            bars.SpinnerColumn(), bars.TextColumn("[bold]{task.description}"), bars.BarColumn(),
            bars.MofNCompleteColumn(), bars.TextColumn("{task.fields[said]}", markup=False),
            bars.TimeElapsedColumn(), _TimeLeft(), console=Console(stderr=True),
        ) as bar:  # fmt: skip
            task = bar.add_task(title, total=rounds, said="", ends=None)
            said = ""

            def draw(now: Progress) -> None:
                nonlocal said
                said = _said(now) or said
                bar.update(task, completed=now.round, said=said, ends=time.monotonic() + _seconds_left(now))

            yield draw
    else:

        def write(now: Progress) -> None:
            text = _said(now)
            if text:
                left = _seconds_left(now)
                print(f"{title}  round {now.round}/{now.rounds}  {text}  eta {left:.0f} s", file=sys.stderr, flush=True)

        yield write


class _TimeLeft(bars.ProgressColumn):
    """Counts down to the end that the rounds so far let expect, also within a round, however long rounds are."""

    def render(self, task: bars.Task) -> Text:
        ends: float | None = task.fields["ends"]
        if ends is None:
            return Text("eta after the first round", style="dim")
        return Text(f"eta {datetime.timedelta(seconds=max(0, round(ends - time.monotonic())))}", style="cyan")


def _seconds_left(now: Progress) -> float:
    return now.seconds / now.round * (now.rounds - now.round)


def _said(now: Progress) -> str:
    parts = []
    if now.evaluation is not None and not now.evaluation.accuracy.isnan().all():
        numbers = now.summary(next(iter(now.evaluations)))
        parts.append(f"mean {100 * numbers.mean:.1f} %  worst {100 * numbers.worst:.1f} %")
    elif now.evaluation is not None:
        named = now.evaluation.values().items()
        parts += [f"mean {name} {float(values.nanmean()):.4g}" for name, values in named]
    if now.dropped:
        parts.append(
            f"[{now.dropped} clients diverged and were left out]" if now.dropped > 1 else "[1 client diverged]"
        )
    return "  ".join(parts)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    droppable: Sequence[str] = (),
) -> None:
    """A table on standard output, as wide as it needs to be when that is not a terminal.

    On a terminal that is too narrow, columns named in `droppable` are left out, the first of them first, and the
    caption says so; then headings are wrapped.
    """
    console = _console()
    left_out: list[str] = []
    table = _table(title, columns, rows, caption, left_out)
    for name in droppable:
        if table.__rich_measure__(console, console.options.update(width=10_000)).maximum <= console.width:
            break
        left_out.append(name)
        table = _table(title, columns, rows, caption, left_out)
    console.print(table)


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=200)


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str, left_out: Sequence[str]
) -> Table:
    said = [caption] if caption else []
    if left_out:
        said.append(f"left out for want of room: {', '.join(left_out)}; --format json has all")
    caption = "\n".join(said)
    table = Table(title=_cell(title), caption=_cell(caption) or None, title_justify="left", caption_justify="left")
    shown = [position for position, column in enumerate(columns) if column not in left_out]
    for position in shown:
        text = position == 0 or columns[position] in _TEXT_COLUMNS
        whole = columns[position] == "key"  # half a key is none
        table.add_column(_cell(columns[position]), justify="left" if text else "right", overflow="fold", no_wrap=whole)
    for row in rows:  # names may look like markup
        table.add_row(*(_cell(row[p] if columns[p] in _TEXT_COLUMNS else _unbroken(row[p])) for p in shown))
    return table


def _cell(text: str) -> str:
    """A text that may look like markup, or steer the terminal, as it is."""
    return escape(printable(text))


def _unbroken(cell: str) -> str:
    """Numbers such as 63.6 ± 0.5 stay on one line."""
    return cell.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def print_facts(title: str, facts: Mapping[str, str]) -> None:
    """A heading and named lines below it, wrapped to the terminal."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, text in facts.items():
        table.add_row(name, _cell(text))
    _console().print(table, "")


def print_json(content: Mapping[str, Any]) -> None:
    """One JSON document on standard output; nan becomes null."""
    print(json.dumps(_plain(content), indent=2, ensure_ascii=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
