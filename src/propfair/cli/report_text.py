"""Results of runs and comparisons as text."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from propfair.cli.display import STATISTICS, percent, print_json, print_table
from propfair.cli.options import Format
from propfair.errors import MissingExtraError
from propfair.federation.federation import Federation, Split
from propfair.report.write import write_report
from propfair.runs.compare import Compared
from propfair.runs.result import Result

_SHOWN_CLIENTS = 20
_INDICES = ("jain", "gini")


def print_result(result: Result, output: Format) -> None:
    """One run: how it ended, and statistics over clients for each evaluated split."""
    splits: list[Split] = list(result.evaluations)
    if output == Format.json:
        print_json(as_json(result))
        return
    if splits:
        rows = []
        for split in splits:
            numbers = result.summary(split).as_dict()
            rows.append([split, *(_number(name, numbers[name]) for name in STATISTICS)])
        print_table(f"{result.name}: accuracy over {len(result.clients)} clients, %", ["split", *STATISTICS], rows)
    reason = f": {result.reason}" if result.reason else ""
    start = result.run.environment.start
    if start:
        whose = "the same clients" if start.same_clients else "other clients"
        print(f"started from {start.run}: {start.label}, {start.rounds} rounds on {whose}")
    print(f"{result.state} after {result.rounds} rounds in {result.seconds:.1f} s{reason}")
    for note in result.notes:
        print(note)
    if result.num_dropped:
        print(f"diverged: {result.num_dropped} times a client was left out of a round (see 'dropped' in the records)")
    if result.folder is not None:
        print(f"written to {result.folder}")
        if result.state == "interrupted":
            print(f"go on with: propfair resume {result.folder}")


def as_json(result: Result) -> dict[str, Any]:
    """A run as one JSON object."""
    start = result.run.environment.start
    return {
        "name": result.name,
        "algorithm": result.algorithm,
        "state": result.state,
        "reason": result.reason,
        "rounds": result.rounds,
        "seconds": result.seconds,
        "start": None if start is None else start.model_dump(),
        "num_dropped": result.num_dropped,
        "notes": list(result.notes),
        "folder": None if result.folder is None else str(result.folder),
        "statistics": {split: result.summary(split).as_dict() for split in result.evaluations},
        "accuracy": {split: result.evaluation(split).accuracy.tolist() for split in result.evaluations},
    }


def print_comparison(
    compared: Sequence[Compared], federation: Federation, pictures: Sequence[Path], report: Path | None, output: Format
) -> None:
    """A line for each algorithm, and a column for each where there are few clients."""
    seeds = len(compared[0].results)
    if output == Format.json:
        print_json(
            {
                "contestants": [
                    {
                        "label": one.contestant.label,
                        "settings": one.contestant.written,
                        "runs": [as_json(result) for result in one.results],
                    }
                    for one in compared
                ],
                "pictures": [str(path) for path in pictures],
                "report": None if report is None else str(report),
            }
        )
        return
    if federation.num_clients <= _SHOWN_CLIENTS:
        sizes = federation.train.lengths.tolist()
        accuracies = [one.group.mean_over_seeds() for one in compared]
        print_table(
            "Test accuracy of each client, %",
            ["client", "train size", *(one.contestant.label for one in compared)],
            [
                [federation.names[k], str(sizes[k]), *(percent(float(values[k])) for values in accuracies)]
                for k in range(federation.num_clients)
            ],
        )
    rows = []
    for one in compared:
        numbers = one.group.statistics()
        cells = [_number(name, numbers[name].mean, numbers[name].std if seeds > 1 else None) for name in STATISTICS]
        rows.append([one.contestant.label, *cells, one.contestant.written])
    print_table(
        f"Who is served how well: test accuracy over {federation.num_clients} clients, %",
        ["algorithm", *STATISTICS, "settings"],
        rows,
        caption=f"mean ± population std over {seeds} seeds" if seeds > 1 else "",
    )
    for path in pictures:
        print(f"picture: {path}")
    if report is not None:
        print(f"report: {report}")


def write_page(places: Sequence[Path], path: Path, title: str | None = None) -> Path | None:
    """Write the report on all runs at or below places; None, with a warning, if the extra that draws it is missing."""
    try:
        problems, _ = write_report(places, path, title)
    except MissingExtraError as error:
        print(f"warning: {error}", file=sys.stderr)
        return None
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    return path


def _number(name: str, value: float, spread: float | None = None) -> str:
    if name in _INDICES:
        return f"{value:.3f}" if spread is None else f"{value:.3f} ± {spread:.3f}"
    return percent(value, spread)
