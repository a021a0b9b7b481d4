"""Who gains and who loses, client by client: the paper's figures 2 to 4."""

import math
from collections.abc import Sequence
from pathlib import Path

from propfair.fairness.arrays import FloatArray
from propfair.report.drawing import (
    all_letters,
    client_names,
    draw_changes,
    name_clients,
    new_figure,
    plain_text,
    save_figure,
)

_NAMED_CLIENTS = 24  # that there is room for below the bars of a panel


def draw_relative(
    titles: Sequence[str], relative: Sequence[FloatArray], clients: Sequence[str], path: Path, title: str
) -> None:
    """Write a picture (PNG, PDF or SVG, by the ending) of relative changes [m, n], a panel for each of m models."""
    columns = min(4, len(titles))
    rows = math.ceil(len(titles) / columns)
    number = len(clients)
    with all_letters():
        names = client_names(clients) if number <= _NAMED_CLIENTS else clients
        tall = number <= _NAMED_CLIENTS and max(map(len, names)) > 2
        figure = new_figure(max(5.0, 3.1 * columns), 0.6 + (3.6 if tall else 2.9) * rows)
        panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
        for panel in panels[len(titles) :]:
            panel.remove()
        for panel, name, change in zip(panels, titles, relative, strict=False):
            draw_changes(panel, 100 * change)
            panel.set_title(plain_text(name), fontsize=10)
            panel.set_xlabel("client" if number <= _NAMED_CLIENTS else f"{number} clients")
            name_clients(panel, names, _NAMED_CLIENTS)
            panel.grid(alpha=0.3, axis="y")
            panel.spines[["top", "right"]].set_visible(False)
        for panel in panels[: len(titles) : columns]:
            panel.set_ylabel("relative change, %")
        save_figure(figure, path, title)
