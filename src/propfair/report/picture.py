"""The picture of a comparison: every client's accuracy, sorted, and the mean against the worst-off."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from propfair.fairness.arrays import FloatArray
from propfair.fairness.statistics import worst_fraction
from propfair.report.drawing import COLOURS, SHAPES, new_figure, save_figure
from propfair.runs.grouping import Group

_NAMED_CLIENTS, _NAME_LETTERS = 40, 22


def draw_groups(groups: Sequence[Group], path: Path) -> Path:
    """Write the picture of groups of runs on the same clients; the path again."""
    first = groups[0].runs[0]
    title = f"{first.data_name}, {len(first.clients.names)} clients: who is served how well"
    draw_comparison({group.label: group.values() for group in groups}, first.clients.names, path, title)
    return path


def draw_comparison(accuracies: Mapping[str, FloatArray], names: Sequence[str], path: Path, title: str) -> None:
    """Write a picture (PNG, PDF or SVG, by the ending) of test accuracies [seeds, n], one entry for each algorithm.

    Points are means over seeds; bars on the right span one population standard deviation over seeds. Clients are named
    where there is room for all their names.
    """
    figure = new_figure(11, 4.6 if max(map(len, names)) <= 2 or len(names) > _NAMED_CLIENTS else 5.6)
    clients, trade = figure.subplots(1, 2, width_ratios=(1.7, 1))
    first = next(iter(accuracies))
    order = np.argsort(accuracies[first].mean(0), kind="stable")
    place = np.arange(len(order))
    means = np.stack([100 * values.mean(0)[order] for values in accuracies.values()])
    clients.vlines(place, means.min(0), means.max(0), color="#cccccc", linewidth=1.5, zorder=1)
    for position, (label, values) in enumerate(accuracies.items()):
        style = {"color": COLOURS[position % len(COLOURS)], "marker": SHAPES[position % len(SHAPES)]}
        shift = (position - (len(accuracies) - 1) / 2) * 0.6 / len(accuracies)  # so that equal values stay apart
        clients.scatter(place + shift, means[position], s=26, label=label, zorder=3, alpha=0.9, **style)
        mean, worst = 100 * values.mean(1), np.array([100 * worst_fraction(row, 0.1) for row in values])
        trade.errorbar(mean.mean(), worst.mean(), xerr=mean.std(), yerr=worst.std(), markersize=9, capsize=3, **style)
    clients.set(xlabel=f"clients, worst-off under {first} first", ylabel="test accuracy, %", ylim=(None, 102))
    if len(order) <= _NAMED_CLIENTS:
        longest = max(len(names[k]) for k in order)
        shown = [names[k] if len(names[k]) <= _NAME_LETTERS else f"{names[k][: _NAME_LETTERS - 1]}…" for k in order]
        clients.set_xticks(
            place, shown, fontsize=8, rotation=0 if longest <= 2 else 60, ha="center" if longest <= 2 else "right"
        )
    else:
        clients.set_xticks([])
    trade.set(xlabel="mean over clients, %", ylabel="mean of the worst 10 % of clients, %")
    trade.margins(0.15)
    for axes in (clients, trade):
        axes.grid(alpha=0.3, axis="y" if axes is clients else "both")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *clients.get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(accuracies)), frameon=False
    )
    save_figure(figure, path, title)
