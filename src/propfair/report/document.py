"""The content of a page as one JSON document, from run folders alone."""

import base64
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import propfair
from propfair.errors import DataError
from propfair.fairness.arrays import FloatArray
from propfair.report.curves import relative_weights, statistics_over_rounds
from propfair.report.find import Problem, find_runs
from propfair.report.groups import Group, Measure, Trial, sort_runs
from propfair.report.runs import RunData, Series, read_run
from propfair.report.verdicts import Verdicts, judge
from propfair.report.words import headline

MAX_VALUES = 2_000_000  # client values over rounds: so many measured ones on a page, and so many of what rounds did
_STATISTICS = (
    "mean", "weighted_mean", "std", "worst", "worst10", "worst20", "worst30", "best", "best10", "best20", "best30",
    "median", "variance_of_percent", "jain", "gini", "entropy", "nash_welfare",
)  # fmt: skip


def read_all(places: Iterable[Path]) -> tuple[list[RunData], list[Problem]]:
    """Every readable run at or below the places, and why the others are not."""
    paths, problems = find_runs(places)
    runs = []
    for path in paths:
        try:
            runs.append(read_run(path, MAX_VALUES // len(paths)))
        except DataError as error:
            problems.append(Problem(path, str(error)))
    return runs, problems


def make_document(runs: Sequence[RunData], problems: Sequence[Problem], title: str | None = None) -> dict[str, Any]:
    """What the page shows. Plain JSON values; client values are base64 of little-endian float32."""
    trials = sort_runs(runs)
    return {
        "title": title or "Who is served how well",
        "propfair": propfair.__version__,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "problems": [str(problem) for problem in problems],
        "trials": [_trial(trial, MAX_VALUES // max(1, len(runs))) for trial in trials],
    }


def _trial(trial: Trial, max_values: int) -> dict[str, Any]:
    clients = trial.clients
    main = trial.measures[0] if trial.measures else None
    verdicts = judge(trial, main) if main else "No run has been evaluated yet."
    return {
        "title": trial.title,
        "note": clients.note,
        "fingerprint": clients.fingerprint,
        "clients": clients.names,
        "sizes": clients.sizes,
        "labels": clients.train_labels,
        "measures": [
            {"key": m.key, "label": m.label, "higher": m.higher_is_better, "headline": headline(trial, m)}
            for m in trial.measures
        ],
        "groups": [_group(group, trial.measures) for group in trial.groups],
        "runs": [_run(run, position, max_values) for position, g in enumerate(trial.groups) for run in g.runs],
        "differing": trial.differing,
        "verdicts": _verdicts(verdicts, main) if isinstance(verdicts, Verdicts) and main else {"reason": verdicts},
    }


def _group(group: Group, measures: Iterable[Measure]) -> dict[str, Any]:
    statistics = {m.key: group.statistics(m) for m in measures if group.has(m)}
    return {
        "label": group.label,
        "settings": group.settings,
        "personal": any(run.personal for run in group.runs),
        "statistics": {
            key: {name: [_number(found[name].mean), _number(found[name].std)] for name in _STATISTICS}
            for key, found in statistics.items()
        },
    }


def _run(run: RunData, group: int, max_values: int) -> dict[str, Any]:
    status, environment = run.status, run.environment
    columns = max(2, max_values // (len(run.clients.names) * max(1, len(run.measured))))
    return {
        "name": run.name,
        "group": group,
        "seed": run.seed,
        "state": status.state,
        "reason": status.reason,
        "rounds": status.rounds,
        "total": run.total_rounds,
        "seconds": status.seconds,
        "folder": str(run.path),
        "command": shlex.join(environment.command),
        "repeat": shlex.join(["propfair", "run", "--config", str(run.path / "config.toml")]) if run.config_text else "",
        "environment": {
            "propfair": environment.propfair,
            "python": environment.python,
            **environment.packages,
            "platform": environment.platform,
            "git commit": environment.git_commit or "",
            "started": environment.started,
        },
        "config": run.config_text,
        "dropped": run.num_dropped,
        "statistics": {key: _statistics(run, series, Measure(key)) for key, series in run.measured.items()},
        "curves": {key: _curve(series, Measure(key)) for key, series in run.measured.items()},
        "clients": {key: _table(series.picked(columns)) for key, series in run.measured.items()},
        "heat": {name: _table(series) for name, series in _heat(run).items()},
    }


def _statistics(run: RunData, series: Series, measure: Measure) -> dict[str, float | None]:
    found = measure.summarize(series, run.clients.sizes["train"]).as_dict()
    return {name: _number(found[name]) for name in _STATISTICS}


def _curve(series: Series, measure: Measure) -> dict[str, Any]:
    """Statistics over clients at every evaluated round."""
    found = statistics_over_rounds(series, measure)
    return {"rounds": series.rounds.tolist(), **{name: [_number(x) for x in line] for name, line in found.items()}}


def _heat(run: RunData) -> dict[str, Series]:
    """What rounds did to clients; first of all, how much more than its share of the data a client weighed."""
    relative = relative_weights(run)
    return {**({} if relative is None else {"relative_weight": relative}), **run.rounds}


def _verdicts(found: Verdicts, measure: Measure) -> dict[str, Any]:
    return {
        "measure": measure.key,
        "values": _matrix(found.values),
        "low": _matrix(found.low),
        "high": _matrix(found.high),
        "over": found.over,
        "words": found.words,
        "best": found.best,
        "leftOut": found.left_out,
    }


def _table(series: Series) -> dict[str, Any]:
    return {
        "rounds": series.rounds.tolist(),
        "thinned": series.thinned,
        "values": base64.b64encode(series.values.astype("<f4").tobytes()).decode("ascii"),
    }


def _matrix(values: FloatArray) -> list[list[float | None]]:
    return [[_number(value) for value in row] for row in values.tolist()]


def _number(value: float) -> float | None:
    """Six digits are more than a screen shows; null is not known (or infinite)."""
    return float(f"{value:.6g}") if np.isfinite(value) else None
