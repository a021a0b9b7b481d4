"""The results of a sweep as tables and JSON."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from propfair.fairness.statistics import MeanStd
from propfair.files import write_text
from propfair.report.tables import TextTable, finite, value_text
from propfair.runs.cautions import cautions
from propfair.runs.measures import ACCURACY, Measure
from propfair.tuning.search import Sweep
from propfair.tuning.studies import Tested

_STATISTICS = ("mean", "std", "worst", "worst10", "best10", "jain", "gini")


def result_table(sweep: Sweep, tested: Sequence[Tested]) -> TextTable:
    """The winners on the test split."""
    measure, rows = tested_measure(sweep, tested), []
    for one in tested:
        winner, numbers = one.winner, one.group.statistics(measure)
        chosen = value_text(winner.found, winner.measure)
        cells = [_cell(name, numbers[name], measure) for name in _STATISTICS]
        rows.append([winner.contestant.label, settings_text(winner.point) or "-", chosen, *cells])
    unit = ", %" if measure.metric == "accuracy" else "" if measure.higher_is_better else ", lower is better"
    notes = [
        f"{measure.label.capitalize()} over clients{unit}; jain and gini are indices. Mean ± population standard "
        f"deviation over seeds {', '.join(map(str, sweep.seeds))}."
    ]
    if not any(sweep.num_trials(contestant) for contestant in sweep.contestants):
        notes.append("There was nothing to choose; the test split was read once, at the end.")
    elif sweep.selection == "paper":
        notes.append(
            "Chosen on the test split of the last round, as the authors did, so the numbers are optimistic. "
            "Leave --selection paper out to choose on a validation split."
        )
    else:
        notes.append(f"Chosen by {sweep.criterion} on the validation split; the test split was read once, at the end.")
    notes += [*edge_notes(tested), *cautions([one.group for one in tested])]
    columns = ["algorithm", "chosen", f"{sweep.split} {sweep.criterion}", *_STATISTICS]
    return TextTable(f"{sweep.name}: the best of each algorithm", columns, rows, notes)


def tested_measure(sweep: Sweep, tested: Sequence[Tested]) -> Measure:
    """What the winners are shown by: the measure of the criterion, on the test split."""
    runs = [run for one in tested for run in one.group.runs]
    return sweep.criterion.measure(runs[0].measures, "test") if runs else ACCURACY


def edge_notes(tested: Sequence[Tested]) -> list[str]:
    """A sentence for each chosen value beyond which better ones may lie."""
    return [
        f"{one.winner.contestant.label}: {settings_text({key: one.winner.point[key]})} is at the edge of what was "
        "tried; a better value may lie beyond it."
        for one in tested
        for key in one.winner.at_edge
    ]


def result_json(sweep: Sweep, tested: Sequence[Tested], failures: Sequence[str]) -> dict[str, Any]:
    """All numbers; standard deviations over seeds by both of their names."""
    measure, algorithms = tested_measure(sweep, tested), []
    for one in tested:
        sample = one.group.statistics(measure, ddof=1)
        algorithms.append(
            {
                "label": one.winner.contestant.label,
                "settings": one.winner.contestant.settings,
                "chosen": one.winner.point,
                "value": None if math.isnan(one.winner.value) else one.winner.found,
                "seconds": one.seconds,
                "test": {
                    name: {"mean": number.mean, "population_std": number.std, "sample_std": sample[name].std}
                    for name, number in one.group.statistics(measure).items()
                },
                measure.metric: {str(run.seed): run.values(measure).tolist() for run in one.group.runs},
            }
        )
    return {
        "name": sweep.name,
        "selection": sweep.selection,
        "criterion": sweep.criterion.weights,
        "measure": measure.key,
        "seeds": list(sweep.seeds),
        "failures": list(failures),
        "algorithms": algorithms,
    }


def write_results(sweep: Sweep, tested: Sequence[Tested], failures: Sequence[str], out: Path) -> list[Path]:
    """Write results.md, .tex, .csv and .json."""
    path = out / "results.json"
    content = finite(result_json(sweep, tested, failures))
    written = result_table(sweep, tested).write(out / "results")
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return [*written, path]


def settings_text(point: Mapping[str, Any]) -> str:
    """M=2.0, lr=0.1."""
    return ", ".join(f"{key.removeprefix('algorithm.').removeprefix('local.')}={value}" for key, value in point.items())


def _cell(name: str, number: MeanStd, measure: Measure) -> str:
    if name not in ("jain", "gini"):
        return value_text(number.mean, measure, number.std if number.num_seeds > 1 else None)
    return f"{number.mean:.3f}" if number.num_seeds < 2 else f"{number.mean:.3f} ± {number.std:.3f}"
