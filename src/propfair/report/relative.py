"""Who gains and who loses, client by client: the paper's figures 2 to 4."""

import math
from collections.abc import Sequence
from pathlib import Path

from propfair.fairness.arrays import FloatArray
from propfair.report.drawing import COLOURS, new_figure, save_figure

_NAMED_CLIENTS, _SHORT_NAME = 24, 3  # that there is room for below the bars


def draw_relative(
    titles: Sequence[str], relative: Sequence[FloatArray], clients: Sequence[str], path: Path, title: str
) -> None:
    """Write a picture (PNG, PDF or SVG, by the ending) of relative changes [m, n], a panel for each of m models."""
    columns = min(4, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = new_figure(max(5.0, 3.1 * columns), 0.6 + 2.9 * rows)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
    for panel in panels[len(titles) :]:
        panel.remove()
    number = len(clients)
    for panel, name, change in zip(panels, titles, relative, strict=False):
        changes = 100 * change
        colours = [COLOURS[0] if one >= 0 else COLOURS[1] for one in changes]
        panel.bar(range(number), changes, width=0.8, color=colours)
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("client")
        if number <= _NAMED_CLIENTS and max(map(len, clients)) <= _SHORT_NAME:
            panel.set_xticks(range(number), clients, fontsize=8)
        else:
            panel.set_xticks([])
        panel.grid(alpha=0.3, axis="y")
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels[: len(titles) : columns]:
        panel.set_ylabel("relative change, %")
    save_figure(figure, path, title)
