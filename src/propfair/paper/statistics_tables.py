"""Tables of statistics over clients, ours beside the paper's: from a finished sweep, or from runs on record."""

import math
from collections.abc import Mapping

from propfair.errors import DataError
from propfair.paper.catalogue import Statistics, load_experiment
from propfair.paper.onrecord import OnRecord, recorded
from propfair.paper.reproduced import Number, Reproduced
from propfair.paper.settings import Settings
from propfair.runs.grouping import Group
from propfair.runs.run import Run


def statistics_numbers(groups: Mapping[str, Group], preset: Statistics) -> list[Number]:
    """For each algorithm the statistics of the table, in percent; nan for the paper's where it has none."""
    numbers = []
    for label, group in groups.items():
        ours = group.statistics()
        for column in preset.columns:
            found = ours[column]
            paper, paper_std = preset.paper[label].get(column, (math.nan, math.nan))
            std = 100 * found.std if found.num_seeds > 1 else math.nan
            numbers.append(Number(label, column, 100 * found.mean, std, paper, paper_std))
    return numbers


def recorded_statistics(name: str, preset: Statistics, settings: Settings) -> Reproduced:
    """The table from the runs that the settings name, at their scale; nothing is trained.

    What is not on record has no row, and the notes say so.
    """
    records = recorded(preset.title, preset.experiment, settings)
    named = settings.only or tuple(preset.paper)
    wanted = [label for label in preset.paper if label in records.runs and label in named]
    if not wanted:
        raise DataError(
            f"there are no such runs of {preset.title} at scale {records.scale}; there is: {', '.join(records.runs)}. "
            "Leave --records out to train what is missing."
        )
    groups = {label: records.group(label) for label in wanted}
    return Reproduced(
        name, preset, statistics_numbers(groups, preset), _notes(preset, records, groups),
        at_paper_scale=settings.scale == "paper",
    )  # fmt: skip


def _notes(preset: Statistics, records: OnRecord, groups: Mapping[str, Group]) -> list[str]:
    missing = [label for label in preset.paper if label not in records.runs]
    return [
        f"scale {records.scale}: {load_experiment(preset.experiment).note(records.scale)}",
        "from runs on record: " + "; ".join(run_values(label, group) for label, group in groups.items()),
        *([f"no runs on record: {', '.join(missing)}"] if missing else []),
        *records.unsettled(list(groups)),
    ]


def run_values(label: str, group: Group) -> str:
    """How an algorithm was run: `fedavg lr=0.005 in bf16, seeds 0, 1`."""
    run: Run = group.runs[0]
    local = run.config["local"]
    precision = local.get("precision", "float32")
    short = "" if precision == "float32" else f" in {precision}"
    seeds = ", ".join(str(seed) for seed in sorted(group.by_seed))
    return f"{label} lr={local['lr']:g}{short}, seed{'s' if len(group.by_seed) > 1 else ''} {seeds}"
