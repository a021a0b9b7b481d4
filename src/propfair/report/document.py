"""The content of a page as one JSON document, from runs alone."""

import base64
import shlex
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

import propfair
from propfair.fairness.arrays import FloatArray
from propfair.fairness.verdict import Verdict
from propfair.report.curves import MOST_COLUMNS, relative_weights, statistics_over_rounds, thinned
from propfair.report.standings import joining_document, number, numbers, standing_document
from propfair.report.verdicts import Verdicts, judge
from propfair.report.words import headline
from propfair.runs.cautions import cautions
from propfair.runs.grouping import Comparison, Group, by_clients
from propfair.runs.measures import Measure, Series, Values
from propfair.runs.reading import Problem, trials_apart
from propfair.runs.run import Run

MAX_VALUES = 2_000_000  # client values over rounds: so many measured ones on a page, and so many of what rounds did
_MIN_COLUMNS = 4
_LARGEST = float(np.finfo(np.float32).max)  # that a page holds of one client
_STATISTICS = (
    "mean", "weighted_mean", "std", "worst", "worst10", "worst20", "worst30", "best", "best10", "best20", "best30",
    "median", "variance_of_percent", "jain", "gini", "entropy", "nash_welfare",
)  # fmt: skip


def make_document(runs: Sequence[Run], problems: Sequence[Problem], title: str | None = None) -> dict[str, Any]:
    """What the page shows. Plain JSON values; client values are base64 of little-endian float32."""
    with np.errstate(over="ignore", invalid="ignore"):  # sums of values near the largest number: not known
        most = MAX_VALUES // max(1, len(runs))
        trials = [_comparison(one, most, tried) for one, tried in _comparisons(runs)]
    return {
        "title": title or "Who is served how well",
        "propfair": propfair.__version__,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "problems": [str(problem) for problem in problems],
        "notes": [str(note) for note in incomplete(runs)],
        "trials": trials,
    }


def incomplete(runs: Sequence[Run]) -> list[Problem]:
    """Runs that are shown, though something of their records was lost."""
    return [Problem(Path(run.where), run.status.caution) for run in runs if run.status.caution]


def _comparisons(runs: Sequence[Run]) -> list[tuple[Comparison, bool]]:
    """Runs on the same clients; what a sweep only tried, to choose the settings of its winners, is apart from them."""
    proper, trials = trials_apart(runs)
    return [(one, False) for one in by_clients(proper)] + [(one, bool(proper)) for one in by_clients(trials)]


def _comparison(comparison: Comparison, max_values: int, tried: bool) -> dict[str, Any]:
    clients, groups = comparison.clients, comparison.groups
    main = comparison.measures[0] if comparison.measures else None
    verdicts = judge(comparison, main) if main else "No run has been evaluated yet."
    return {
        "title": f"{comparison.title}: what was tried for the sweep" if tried else comparison.title,
        "note": clients.note,
        "fingerprint": clients.fingerprint,
        "clients": clients.names,
        "sizes": clients.sizes,
        "labels": clients.train_labels,
        "measures": [
            {"key": m.key, "label": m.label, "higher": m.higher_is_better, "percent": m.metric == "accuracy"}
            | {"headline": headline(comparison, m), "standing": standing_document(comparison, m)}
            | {"joining": joining_document(comparison, m)}
            for m in comparison.measures
        ],
        "groups": [_group(group, comparison.measures) for group in groups],
        "runs": [_run(run, position, max_values) for position, group in enumerate(groups) for run in group.runs],
        "differing": comparison.differing,
        "cautions": cautions(groups),
        "verdicts": _verdicts(verdicts, main) if isinstance(verdicts, Verdicts) and main else {"reason": verdicts},
    }


def _group(group: Group, measures: Iterable[Measure]) -> dict[str, Any]:
    statistics = {m.key: group.statistics(m) for m in measures if group.has(m)}
    return {
        "label": group.label,
        "settings": group.settings,
        "personal": any(run.personal for run in group.runs),
        "statistics": {
            key: {name: [number(found[name].mean), number(found[name].std)] for name in _STATISTICS}
            for key, found in statistics.items()
        },
    }


def _run(run: Run, group: int, max_values: int) -> dict[str, Any]:
    status, environment = run.status, run.environment
    measured = {m: values for m in run.measures if (values := run.served(m)) is not None}
    columns = max(2, max_values // (len(run.clients.names) * max(1, len(measured))))
    return {
        "name": run.name,
        "group": group,
        "seed": run.seed,
        "state": status.state,
        "reason": status.reason,
        "rounds": status.rounds,
        "total": run.total_rounds,
        "seconds": status.seconds,
        "folder": run.where,
        "command": shlex.join(environment.command),
        "repeat": _repeat(run),
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
        "statistics": {m.key: _statistics(run, m) for m in measured},
        "curves": {m.key: _curve(values, m) for m, values in measured.items()},
        "clients": {m.key: _table(values.picked(columns)) for m, values in measured.items()},
        "heat": {name: _table(series) for name, series in _heat(run, max_values).items()},
    }


def _repeat(run: Run) -> str:
    """The command that runs it again."""
    if run.folder is None or not run.config_text:
        return ""
    return shlex.join(["propfair", "run", "--config", str(run.folder / "config.toml")])


def _statistics(run: Run, measure: Measure) -> dict[str, float | None]:
    found = run.summary(measure).as_dict()
    return {name: number(found[name]) for name in _STATISTICS}


def _curve(values: Values, measure: Measure) -> dict[str, Any]:
    """Statistics over clients at every evaluated round."""
    found = statistics_over_rounds(values, measure)
    return {"rounds": values.rounds.tolist(), **{name: [number(x) for x in line] for name, line in found.items()}}


def _heat(run: Run, max_values: int) -> dict[str, Series]:
    """What rounds did to clients; first of all, how much more than its share of the data a client weighed."""
    metrics = [metric for metric in run.round_metrics if metric != "dropped"]
    columns = int(np.clip(max_values // ((len(metrics) + 1) * len(run.clients.names)), _MIN_COLUMNS, MOST_COLUMNS))
    wanted = {"relative_weight": relative_weights(run, columns)}
    wanted |= {metric: thinned(run, metric, columns) for metric in metrics}
    return {name: series for name, series in wanted.items() if series is not None}


def _verdicts(found: Verdicts, measure: Measure) -> dict[str, Any]:
    return {
        "measure": measure.key,
        "values": _matrix(found.values),
        "low": _matrix(found.low),
        "high": _matrix(found.high),
        "over": found.over,
        "said": [_said(verdict) for verdict in found.verdicts],
        "best": found.best,
        "leftOut": found.left_out,
    }


def _said(verdict: Verdict | str) -> dict[str, str]:
    """Kind, finding and reason, for a badge and a sentence."""
    if isinstance(verdict, Verdict):
        return {"kind": verdict.kind, "finding": verdict.finding, "reason": verdict.reason}
    finding, _, reason = verdict.partition(": ")
    return {"kind": "undefined", "finding": finding, "reason": reason}


def _table(series: Series) -> dict[str, Any]:
    return {
        "rounds": series.rounds.tolist(),
        "thinned": series.thinned,
        "values": base64.b64encode(np.clip(series.values, -_LARGEST, _LARGEST).astype("<f4").tobytes()).decode("ascii"),
    }


def _matrix(values: FloatArray) -> list[list[float | None]]:
    return [numbers(row) for row in values]
