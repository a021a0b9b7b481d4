"""Results of runs and comparisons as text."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from propfair.algorithms.fedavg import FedAvg
from propfair.cli.display import STATISTICS, drawn, print_json, print_table
from propfair.cli.options import Format
from propfair.cli.standing_text import Standing
from propfair.federation.federation import Split
from propfair.report.tables import value_text
from propfair.report.write import write_report
from propfair.runs.compare import Compared, Contest
from propfair.runs.measures import Measure
from propfair.runs.reading import Problem
from propfair.runs.result import Result
from propfair.runs.run import Run

_SHOWN_CLIENTS = 20
_INDICES = ("jain", "gini")


def print_result(result: Result, output: Format) -> None:
    """One run: how it ended, and statistics over clients for each evaluated split."""
    splits: list[Split] = list(result.evaluations)
    if output == Format.json:
        print_json(as_json(result.run))
        return
    if splits:
        measures = [measure for measure in result.run.measures if measure.split in splits]
        accuracies = [measure for measure in measures if measure.metric == "accuracy"]
        if accuracies:
            rows = [_statistics(result, measure, measure.split) for measure in accuracies]
            print_table(f"{result.name}: accuracy over {len(result.clients)} clients, %", ["split", *STATISTICS], rows)
        others = [measure for measure in measures if measure.metric != "accuracy"]
        if others and (len(others) > len(splits) or not accuracies):
            rows = [_statistics(result, measure, measure.label) for measure in others]
            print_table(f"{result.name}: over {len(result.clients)} clients", ["metric", *STATISTICS], rows)
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


def as_json(run: Run) -> dict[str, Any]:
    """A run as one JSON object; statistics are of the leading measure of the task, which `measure` names."""
    start, evaluated = run.environment.start, run.global_evaluations()
    return {
        "name": run.name,
        "algorithm": run.algorithm,
        "state": run.status.state,
        "reason": run.status.reason,
        "rounds": run.status.rounds,
        "seconds": run.status.seconds,
        "start": None if start is None else start.model_dump(),
        "num_dropped": run.num_dropped,
        "notes": list(run.environment.notes),
        "folder": None if run.folder is None else str(run.folder),
        "measure": {split: run.leading(split).key for split in evaluated},
        "statistics": {split: run.summary(run.leading(split)).as_dict() for split in evaluated},
        "accuracy": {split: run.values(Measure(split)).tolist() for split in evaluated},
        "values": {measure.key: run.values(measure).tolist() for measure in run.measures},
    }


def print_comparison(
    compared: Sequence[Compared], standing: Standing, picture: Path | None, report: Path | None, output: Format
) -> None:
    """A line for each algorithm, and a column for each where there are few clients."""
    first = compared[0].runs[0]
    names, seeds = first.clients.names, len(compared[0].runs)
    if output == Format.json:
        print_json(
            {
                "contestants": [
                    {
                        "label": one.contestant.label,
                        "settings": one.contestant.written,
                        "runs": [as_json(run) for run in one.runs],
                    }
                    for one in compared
                ],
                "pictures": [str(picture)] if picture is not None else [],
                "report": None if report is None else str(report),
                **standing.as_dict(),
            }
        )
        return
    measure, measured = standing.measure, [one for one in compared if one.group.has(standing.measure)]
    unit = ", %" if measure.metric == "accuracy" else ""
    if measured and len(names) <= _SHOWN_CLIENTS:
        values = [one.group.mean_over_seeds(measure) for one in measured]
        order = np.argsort(values[0] if measure.higher_is_better else -values[0], kind="stable")
        print_table(
            f"{measure.label.capitalize()} of each client{unit}, the worst-off first",
            ["client", "train size", *(one.contestant.label for one in measured)],
            [
                [
                    names[k],
                    str(first.clients.sizes["train"][k]),
                    *(value_text(float(own[k]), measure) for own in values),
                ]
                for k in order
            ],
        )
    rows = []
    for one in measured:
        numbers = one.group.statistics(measure)
        cells = [
            _number(name, numbers[name].mean, measure, numbers[name].std if seeds > 1 else None) for name in STATISTICS
        ]
        rows.append([one.contestant.label, *cells])
    settings = [f"{one.contestant.label}: {one.contestant.written}" for one in compared if one.contestant.written]
    spread = [f"mean ± population std over {seeds} seeds"] if seeds > 1 else []
    print_table(
        f"Who is served how well: {measure.label} over {len(names)} clients{unit}",
        ["algorithm", *STATISTICS],
        rows,
        caption="\n".join([*spread, *settings]),
        droppable=("gini", "jain", "best10", "std"),
    )
    standing.show()
    if picture is not None:
        print(f"picture: {picture}")
    if report is not None:
        print(f"report: {report}")
        print(f"tables: {report.parent / 'table.tex'}, .md, .html, .csv, .json")


def advice(contest: Contest, tuned: bool) -> list[str]:
    """What to know before a comparison is believed, in sentences."""
    if tuned:
        return ["Learning rates and main hyper-parameters were chosen on validation data, with equal budgets."]
    configs = contest.configs
    if contest.same_rate:
        rate = f"All have the learning rate {configs[0].local.lr:g}; nothing was tuned for any of them."
    else:
        rate = "Learning rates differ, as the labels say, and nothing was tuned: none may be at its best."
    lines = [f"{rate} --tune chooses for each of them on validation data."]
    counted = {getattr(config.parts.algorithm, "weighting", "samples") for config in configs}
    averaging = {config.parts.algorithm.weighting for config in configs if isinstance(config.parts.algorithm, FedAvg)}
    if "uniform" in counted and averaging == {"samples"}:
        lines.append(
            "Some count every client once and FedAvg counts examples: add fedavg:weighting=uniform to tell apart what "
            "counting clients does."
        )
    return lines


def write_page(places: Sequence[Path], path: Path, title: str | None = None) -> Path | None:
    """Write the report on all runs at or below places; None, with a warning, if the extra that draws it is missing."""
    problems: list[Problem] = []
    written = drawn(path, lambda to: problems.extend(write_report(places, to, title)[0]))
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    return written


def _statistics(result: Result, measure: Measure, label: str) -> list[str]:
    numbers = result.run.summary(measure).as_dict()
    return [label, *(_number(name, numbers[name], measure) for name in STATISTICS)]


def _number(name: str, value: float, measure: Measure, spread: float | None = None) -> str:
    if name in _INDICES:
        return f"{value:.3f}" if spread is None else f"{value:.3f} ± {spread:.3f}"
    return value_text(value, measure, spread)
