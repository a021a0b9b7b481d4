"""The pictures of the two examples, as PNG, PDF or SVG by the file's ending. Colours are Okabe and Ito's."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from propfair.errors import MissingExtraError
from propfair.fairness.arrays import FloatArray
from propfair.fairness.examples import AflFailure, NashExample, afl_failure, nash_example
from propfair.files import picture_format, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
BROWN, SILVER, GREY = "#9A6A00", "#A9B4BD", "#666666"  # a darker orange for text, and two neutrals


def example_afl_failure(out: Path) -> AflFailure:
    """Solve the AFL failure case (Appendix C) and draw it into `out`."""
    figure = _figure((11.5, 4.9))
    result = afl_failure()
    plane, errors = figure.subplots(1, 2, width_ratios=(1, 1.15))
    _draw_plane(plane, result)
    _draw_errors(errors, result)
    write_figure(figure, out)
    return result


def example_nash(out: Path) -> NashExample:
    """Solve two bargaining problems and draw them into `out`: Figure 1, and a set on which principles differ."""
    figure = _figure((11.5, 4.9))
    result = nash_example()
    left, right = figure.subplots(1, 2)
    _draw_figure_1(left, result)
    _draw_principles(right, result)
    write_figure(figure, out)
    return result


def _draw_plane(axes: "Axes", result: AflFailure) -> None:
    axes.axvspan(-1, 0, color=BLUE, alpha=0.10, lw=0)
    axes.axvspan(0, 1, color=ORANGE, alpha=0.13, lw=0)
    axes.text(-0.5, 1.03, "left: 90 % are +1", ha="center", va="bottom", color=BLUE, fontsize=10)
    axes.text(0.5, 1.03, "right: 90 % are −1", ha="center", va="bottom", color=BROWN, fontsize=10)
    odd, many = result.clients
    for sign, marker, colour in ((1, "+", BLUE), (-1, "_", BROWN)):
        own = many.x[many.y == sign]
        axes.scatter(own[:, 0], own[:, 1], marker=marker, s=26, lw=1.0, color=colour, alpha=0.55)
        few = odd.x[odd.y == sign]
        axes.scatter(few[:, 0], few[:, 1], marker="o", s=230, facecolor="white", edgecolor="black", lw=1.4, zorder=4)
        axes.scatter(few[:, 0], few[:, 1], marker=marker, s=90, lw=2.2, color=colour, zorder=5)
    lines = {"FedAvg": (SILVER, 6.0), "AFL": (VERMILION, 2.4), "PropFair, M=2": (GREEN, 2.4)}
    for row in result.runnable:
        if row.objective in lines:
            colour, width = lines[row.objective]
            normal = np.array(row.w) / np.hypot(*row.w)
            along = np.array([-normal[1], normal[0]])
            start, end = -1.5 * along, 1.5 * along
            label = f"{row.objective}: {100 * row.test_error:.1f} % wrong"
            axes.plot([start[0], end[0]], [start[1], end[1]], color=colour, lw=width, label=label, zorder=3)
    axes.scatter(
        [], [], marker="o", s=90, facecolor="white", edgecolor="black", lw=1.4, label="client 1: four outliers"
    )
    axes.set(xlim=(-1, 1), ylim=(-1, 1), xlabel="$x_1$", ylabel="$x_2$", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    axes.set_aspect("equal")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, fontsize=9, frameon=False)


def _draw_errors(axes: "Axes", result: AflFailure) -> None:
    rows = sorted(result.runnable, key=lambda row: row.test_error)
    place = np.arange(len(rows))[::-1]
    colours = {"AFL": VERMILION, "PropFair": GREEN}
    bars = [colours.get(row.objective.split(",")[0], SILVER) for row in rows]
    axes.barh(place, [100 * row.test_error for row in rows], color=bars, height=0.68)
    for y, row in zip(place, rows, strict=True):
        text = f"{100 * row.test_error:.1f} %"
        axes.text(100 * row.test_error + 0.8, y, text, va="center", fontsize=10, fontweight="bold")
        for column, loss in zip((70, 80), row.losses, strict=True):
            axes.text(column, y, f"{loss:.2f}", va="center", ha="center", fontsize=10, color=GREY)
    top = len(rows) - 0.35
    axes.plot([10, 10], [-0.6, top], color="black", lw=1, ls=":")
    axes.text(10, top, "best possible", ha="center", va="bottom", fontsize=9)
    axes.text(75, top + 0.5, "training loss of client", ha="center", va="bottom", fontsize=9, color=GREY)
    for column, client in ((70, "1"), (80, "2")):
        axes.text(column, top, client, ha="center", va="bottom", fontsize=9, color=GREY)
    names = [row.objective.replace("alpha", "α") for row in rows]
    axes.set(xlim=(0, 84), ylim=(-0.6, top + 1.1), yticks=place, yticklabels=names, xticks=range(0, 60, 10))
    axes.set_xlabel("test error, %", x=25 / 84)
    axes.spines["bottom"].set_bounds(0, 50)
    axes.tick_params(axis="y", length=0)
    _bare(axes)
    axes.set_title("Four outliers at one client: only AFL lets them decide", fontsize=11.5)


def _draw_figure_1(axes: "Axes", result: NashExample) -> None:
    best = result.fairest.utilities
    _draw_set(axes, result.corners, (0.2, 0.35))
    axes.plot(*result.edge.T, color=BLUE, lw=4, solid_capstyle="round")
    axes.text(0.64, 0.31, "largest total", color=BLUE, fontsize=10, rotation=-45, ha="center", va="center")
    axes.plot([0, 0.78], [0, 0.78], color=GREY, lw=1, ls=":")
    axes.text(0.79, 0.79, "equal utility", color=GREY, fontsize=10, va="center")
    _draw_product(axes, best)
    axes.scatter(best[0], best[1], s=130, color=VERMILION, zorder=5, edgecolor="white", lw=1.5)
    _label(axes, "$u^*$", best, (13, -4), VERMILION, fontsize=15)
    axes.set_title("On the blue edge the total is the same; $u^*$ is its fairest point", fontsize=11.5, pad=10)
    _frame(axes)


def _draw_principles(axes: "Axes", result: NashExample) -> None:
    best = result.nash.utilities
    _draw_set(axes, np.vstack([result.curve, [[0, 0]]]), (0.2, 0.2))
    axes.plot([2 * best[0], 0], [0, 2 * best[1]], color=VERMILION, lw=1.4)
    tilt = -np.degrees(np.arctan2(best[1], best[0]))
    line = axes.text(0.03, 0.71, "certificate 0: nothing beyond", color=VERMILION, fontsize=10, rotation=tilt)
    line.set_rotation_mode("anchor")
    _draw_product(axes, best)
    choices = (
        (result.utilitarian, BLUE, "s", "largest total", (-12, -3)),
        (best, VERMILION, "o", "largest product: Nash", (-6, -19)),
        (result.egalitarian, GREEN, "D", "best for the worst-off", (-8, -19)),
    )
    for point, colour, marker, name, offset in choices:
        axes.scatter(point[0], point[1], s=110, marker=marker, color=colour, zorder=5, edgecolor="white", lw=1.5)
        _label(axes, name, point, offset, colour, ha="right")
    axes.set_title("Where principles differ, Nash bargaining lies between", fontsize=11.5, pad=10)
    _frame(axes)


def _draw_set(axes: "Axes", border: FloatArray, label: tuple[float, float]) -> None:
    axes.fill(*border.T, facecolor=BLUE, alpha=0.12, lw=0)
    axes.plot(*np.vstack([border, border[:1]]).T, color=GREY, lw=1)
    axes.text(*label, "$\\mathcal{U}$", fontsize=20, color=BLUE, ha="center", va="center")


def _draw_product(axes: "Axes", best: FloatArray) -> None:
    u1 = np.linspace(0.05, 1.2, 300)
    axes.plot(u1, best[0] * best[1] / u1, color=VERMILION, lw=1.6, ls=(0, (5, 2)))
    axes.text(0.335, 0.83, "equal product $u_1 u_2$", color=VERMILION, fontsize=10, va="center")


def _label(
    axes: "Axes",
    text: str,
    point: FloatArray,
    offset: tuple[int, int],
    colour: str,
    fontsize: int = 10,
    ha: str = "left",
) -> None:
    place = (float(point[0]), float(point[1]))
    axes.annotate(text, place, xytext=offset, textcoords="offset points", color=colour, fontsize=fontsize, ha=ha)


def _frame(axes: "Axes") -> None:
    axes.set(xlim=(0, 1.08), ylim=(0, 0.88), xlabel="utility of client 1", ylabel="utility of client 2")
    axes.set_aspect("equal")
    _bare(axes)


def _bare(axes: "Axes") -> None:
    axes.spines[["top", "right"]].set_visible(False)


def _figure(size: tuple[float, float]) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("drawing", "plot") from error
    return Figure(figsize=size, layout="constrained")


def write_figure(figure: "Figure", path: Path, dpi: int = 150, metadata: dict[str, Any] | None = None) -> None:
    """Write PNG, PDF or SVG, by the ending. In memory first: on a full disk matplotlib fails in ways of its own."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=dpi, format=picture_format(path), metadata=metadata)
    with replacing(path) as temporary:
        temporary.write_bytes(drawn.getvalue())
