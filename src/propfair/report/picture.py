"""The picture of a comparison: every client's accuracy, sorted, and the mean against the worst-off."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from propfair.errors import MissingExtraError
from propfair.experiment.files import replacing
from propfair.fairness.statistics import worst_fraction

# Okabe and Ito's palette, safe for colour-blind readers, dark enough on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def draw_comparison(accuracies: Mapping[str, np.ndarray], path: Path, title: str) -> None:
    """Write a PNG (or PDF, SVG: by the ending) with the test accuracies [n] of each algorithm."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing", "plot") from None
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    clients, trade = figure.subplots(1, 2, width_ratios=(1.7, 1))
    first = next(iter(accuracies.values()))
    order = np.argsort(first, kind="stable")
    place = np.arange(len(first))
    width = 0.8 / len(accuracies)
    for position, (label, values) in enumerate(accuracies.items()):
        colour = COLOURS[position % len(COLOURS)]
        shift = (position - (len(accuracies) - 1) / 2) * width
        clients.bar(place + shift, 100 * values[order], width, color=colour, label=label)
        mean, worst = 100 * float(np.mean(values)), 100 * worst_fraction(values, 0.1)
        trade.scatter(mean, worst, s=90, color=colour, zorder=3)
        trade.annotate(label, (mean, worst), xytext=(7, 5), textcoords="offset points", fontsize=9)
    low = min(float(np.min(values)) for values in accuracies.values())
    clients.set(
        xlabel=f"clients, worst-off under {next(iter(accuracies))} first", ylabel="test accuracy, %",
        xticks=place if len(first) <= 30 else [], ylim=(max(0.0, 100 * low - 12), 100),
    )  # fmt: skip
    if len(first) <= 30:
        clients.set_xticklabels([str(client) for client in order], fontsize=8)
    clients.legend(loc="upper left", fontsize=9, ncols=min(4, len(accuracies)), frameon=False)
    trade.set(xlabel="mean over clients, %", ylabel="mean of the worst 10 % of clients, %")
    trade.margins(0.25)
    trade.grid(alpha=0.3)
    for axes in (clients, trade):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=12)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, format=path.suffix.lstrip(".") or "png")
