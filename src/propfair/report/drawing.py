"""What every picture has in common: colours and shapes, a figure to draw on, names below it, and a file at the end."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from propfair.errors import MissingExtraError
from propfair.fairness.arrays import FloatArray
from propfair.fairness.pictures import write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, safe for colour-blind readers, with a shape for each colour.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999",
    "#882255", "#7A5230", "#332288", "#B8A000",
)  # fmt: skip
SHAPES = "os^DvPX*<>hp"
_MOST_BARS = 100
NAMED_CLIENTS, _NAME_LETTERS = 40, 22  # that there is room for below a picture
# With letters that matplotlib's own font lacks; those that are installed are used.
_MORE_FONTS = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "Microsoft YaHei", "SimHei",
    "PingFang SC", "Hiragino Sans GB", "Noto Sans CJK JP", "Noto Sans", "Arial Unicode MS",
)  # fmt: skip


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure, inches wide and high."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("drawing", "plot") from None
    return Figure(figsize=(width, height), layout="constrained")


def widen(axes: "Axes", least: float) -> None:
    """Let both axes show at least so much, so that what is all but the same does not look far apart."""
    for limits, set_limits in ((axes.get_xlim(), axes.set_xlim), (axes.get_ylim(), axes.set_ylim)):
        if abs(limits[1] - limits[0]) < least:
            middle = sum(limits) / 2
            set_limits(middle - least / 2, middle + least / 2)


def save_figure(figure: "Figure", path: Path, title: str = "") -> None:
    """Write PNG, PDF or SVG, by the ending; the title goes above it all."""
    if title:
        figure.suptitle(plain_text(title), fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_figure(figure, path)


@contextlib.contextmanager
def all_letters(**settings: Any) -> Iterator[None]:
    """Draw with whatever fonts are installed for letters that the usual one lacks, and with settings of matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtraError("drawing", "plot") from None
    chosen: dict[Any, Any] = {"font.family": list(_fonts()), **settings}
    with mpl.rc_context(chosen):
        yield


def plain_text(text: str) -> str:
    r"""Text that matplotlib does not take for mathematics; letters that no font has become question marks.

    >>> print(plain_text("5 $ a $"))
    5 \$ a \$
    """
    known = _letters()
    return "".join(letter if ord(letter) in known else "?" for letter in text).replace("$", r"\$")


def short_name(name: str, length: int = _NAME_LETTERS) -> str:
    """A name that fits below a picture. Names that begin alike differ at their ends, so both are kept.

    >>> short_name("hospital of the north, ward 12", 12)
    'hospita…d 12'
    """
    return name if len(name) <= length else f"{name[: -(-length * 3 // 5) - 1]}…{name[-(length * 2 // 5) :]}"


def client_names(names: Sequence[str]) -> list[str]:
    """Names as they are drawn: short, unless two of them would then look alike.

    A client whose name no font can write is called by its number.
    """
    known = _letters()
    written = [name if all(ord(letter) in known for letter in name) else f"#{k}" for k, name in enumerate(names)]
    different = len(set(written))
    for length in (_NAME_LETTERS, 2 * _NAME_LETTERS):
        short = [short_name(name, length) for name in written]
        if len(set(short)) == different:
            return [plain_text(name) for name in short]
    return [plain_text(name) for name in written]


def name_clients(axes: "Axes", names: Sequence[str], most: int = NAMED_CLIENTS) -> bool:
    """Write names below the places 0, 1, ... of the axes, if there are few enough; whether they are there."""
    if len(names) > most:
        axes.set_xticks([])
        return False
    upright = max(map(len, names)) <= 2
    axes.set_xticks(
        range(len(names)), list(names), fontsize=8, rotation=0 if upright else 60, ha="center" if upright else "right",
        rotation_mode="default" if upright else "anchor",
    )  # fmt: skip
    return True


def draw_changes(axes: "Axes", changes: FloatArray) -> None:
    """Bars at the places 0, 1, ..., of one colour above 0 and of another below; thin lines where there are many."""
    colours = np.where(changes < 0, COLOURS[1], COLOURS[0]).tolist()
    if len(changes) <= _MOST_BARS:
        axes.bar(np.arange(len(changes)), changes, 0.8, color=colours)
    else:
        axes.vlines(np.arange(len(changes)), 0, changes, colors=colours, linewidth=0.5)
    axes.axhline(0, color="black", linewidth=0.8)


@cache
def _fonts() -> tuple[str, ...]:
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    return ("DejaVu Sans", *(name for name in _MORE_FONTS if name in installed))


@cache
def _letters() -> frozenset[int]:
    """What can be drawn."""
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    paths = [font_manager.findfont(name) for name in _fonts()]
    return frozenset(letter for path in paths for letter in FT2Font(path).get_charmap()) | {10}
