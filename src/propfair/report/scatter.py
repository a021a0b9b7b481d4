"""Mean against the worst-off, a panel for each data set: the paper's figure 5, with its points beside ours."""

from collections.abc import Mapping
from pathlib import Path

from propfair.report.drawing import COLOURS, SHAPES, new_figure, save_figure

Point = tuple[float, float]  # mean, worst 10 %


def draw_scatter(panels: Mapping[str, Mapping[str, tuple[Point, Point]]], path: Path, title: str) -> None:
    """Write a picture (PNG, PDF or SVG, by the ending).

    Args:
        panels: by data set and algorithm, our point and the paper's.
        path: the file.
        title: above it all.
    """
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(4.6 * columns, 0.9 + 3.6 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in grid[len(panels) :]:
        panel.remove()
    labels = list(dict.fromkeys(label for points in panels.values() for label in points))
    for panel, (name, points) in zip(grid, panels.items(), strict=False):
        for label, (ours, paper) in points.items():
            position = labels.index(label)
            style = {"color": COLOURS[position % len(COLOURS)], "marker": SHAPES[position % len(SHAPES)], "s": 60}
            panel.scatter(*ours, label=label, zorder=3, **style)
            panel.scatter(*paper, zorder=2, alpha=0.9, **{**style, "facecolors": "none"}, linewidths=1.3)
        panel.set_title(f"{name} (hollow: the paper)", fontsize=10)
        panel.set(xlabel="mean over clients, %", ylabel="worst 10 % of clients, %")
        panel.grid(alpha=0.3)
        panel.margins(0.12)
        panel.spines[["top", "right"]].set_visible(False)
    handles = {
        label: handle
        for panel in grid[: len(panels)]
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=5, frameon=False)
    save_figure(figure, path, title)
