"""What every picture has in common: colours and shapes, a figure to draw on, and a file at the end."""

from pathlib import Path
from typing import TYPE_CHECKING

from propfair.errors import MissingExtraError
from propfair.fairness.pictures import write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, safe for colour-blind readers, with a shape for each colour.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999",
    "#882255", "#7A5230", "#332288", "#B8A000",
)  # fmt: skip
SHAPES = "os^DvPX*<>hp"


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, inches wide and high."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing", "plot") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", path: Path, title: str = "") -> None:
    """Write PNG, PDF or SVG, by the ending; the title goes above it all."""
    if title:
        figure.suptitle(title, fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_figure(figure, path)
