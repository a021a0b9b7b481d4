"""Runs and comparisons as small tables for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape

from propfair.runs.run import Run

_SHOWN = ("mean", "std", "worst", "worst10", "best10", "jain", "gini")


def run_html(run: Run) -> str:
    """A line for each measure of a run: statistics over clients."""
    rows = []
    for measure in run.measures:
        numbers = run.summary(measure).as_dict()
        rows.append([measure.label, *(f"{numbers[name]:.4g}" for name in _SHOWN)])
    head = f"{run.algorithm}: {run.status.state} after {run.status.rounds} rounds, {len(run.clients.names)} clients"
    return f"<p><b>{escape(run.name)}</b> {escape(head)}</p>{table_html(['', *_SHOWN], rows)}"


def table_html(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; everything is escaped."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
