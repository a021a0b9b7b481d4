"""The picture of a comparison: every client's value, sorted, and the mean against the worst-off."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from propfair.fairness.arrays import FloatArray
from propfair.fairness.statistics import worst_fraction
from propfair.report.drawing import (
    COLOURS,
    NAMED_CLIENTS,
    SHAPES,
    all_letters,
    client_names,
    name_clients,
    new_figure,
    plain_text,
    save_figure,
    widen,
)
from propfair.runs.grouping import Group
from propfair.runs.measures import ACCURACY, Measure


def draw_groups(groups: Sequence[Group], path: Path, measure: Measure = ACCURACY) -> Path:
    """Write the picture of groups of runs on the same clients that have the measure; the path again."""
    first = groups[0].runs[0]
    title = f"{first.data_name}, {len(first.clients.names)} clients: who is served how well"
    values = {group.label: group.values(measure) for group in groups if group.has(measure)}
    draw_comparison(values, first.clients.names, path, title, measure)
    return path


def draw_comparison(
    values: Mapping[str, FloatArray], names: Sequence[str], path: Path, title: str, measure: Measure = ACCURACY
) -> None:
    """Write a picture (PNG, PDF or SVG, by the ending) of values [seeds, n], one entry for each algorithm.

    Points are means over seeds; bars on the right span one population standard deviation over seeds. Up and right are
    better: where less is better, axes run down. Clients are named where there is room for all their names.
    """
    if not values:
        values = {"nothing measured": np.full((1, len(names)), np.nan)}
    better = measure.higher_is_better
    scale = 100 if measure.metric == "accuracy" else 1
    unit = ", %" if scale == 100 else ""
    with all_letters():
        few = len(names) <= NAMED_CLIENTS
        shown = client_names(names) if few else []
        figure = new_figure(11, 4.6 if not few or max(map(len, shown)) <= 2 else 5.6)
        clients, trade = figure.subplots(1, 2, width_ratios=(1.7, 1))
        first = next(iter(values))
        middle = values[first].mean(0)
        order = np.argsort(middle if better else -middle, kind="stable")
        place = np.arange(len(order))
        means = np.stack([scale * table.mean(0)[order] for table in values.values()])
        clients.vlines(place, means.min(0), means.max(0), color="#cccccc", linewidth=1.5, zorder=1)
        for position, (label, table) in enumerate(values.items()):
            style = {"color": COLOURS[position % len(COLOURS)], "marker": SHAPES[position % len(SHAPES)]}
            shift = (position - (len(values) - 1) / 2) * 0.6 / len(values)  # so that equal values stay apart
            size = 26 if few else 8
            clients.scatter(
                place + shift, means[position], s=size, label=plain_text(label), zorder=3, alpha=0.9, **style
            )
            mean = np.array([scale * np.nanmean(row) if np.isfinite(row).any() else np.nan for row in table])
            worst = np.array([scale * worst_fraction(row, 0.1, higher_is_better=better) for row in table])
            trade.errorbar(
                mean.mean(), worst.mean(), xerr=mean.std(), yerr=worst.std(), markersize=9, capsize=3, **style
            )
        clients.set(
            xlabel=f"clients, worst-off under {plain_text(first)} first", ylabel=f"{measure.label}{unit}",
            ylim=(None, 102) if scale == 100 else None,
        )  # fmt: skip
        name_clients(clients, [shown[k] for k in order] if few else names)
        trade.set(xlabel=f"mean over clients{unit}", ylabel=f"mean of the worst 10 % of clients{unit}")
        trade.margins(0.15)
        if scale == 100:
            widen(trade, 1.0)
        if not better:
            clients.invert_yaxis()
            trade.invert_xaxis()
            trade.invert_yaxis()
        for axes in (clients, trade):
            axes.grid(alpha=0.3, axis="y" if axes is clients else "both")
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(
            *clients.get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(values)), frameon=False
        )
        save_figure(figure, path, title)
