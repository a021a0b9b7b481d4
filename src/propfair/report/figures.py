"""Figures for papers: the charts of the page, drawn by matplotlib as PNG, PDF or SVG."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from propfair.errors import ConfigError, DataError, unknown
from propfair.fairness.arrays import FloatArray
from propfair.fairness.pictures import write_figure
from propfair.files import picture_format
from propfair.report.curves import relative_weights, statistics_over_rounds
from propfair.report.drawing import (
    COLOURS,
    SHAPES,
    all_letters,
    client_names,
    draw_changes,
    name_clients,
    new_figure,
    plain_text,
    short_name,
    widen,
)
from propfair.report.verdicts import Verdicts, judge
from propfair.runs.grouping import Comparison, Group, by_clients
from propfair.runs.measures import Measure
from propfair.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BARS = 3  # side by side; more groups are drawn as points
MOST_INCHES = 100  # a PNG of 20,000 by 20,000 points
_MOST_BAR_CLIENTS = 100
_ENTRY_INCHES, _LETTER_INCHES = 0.5, 0.065  # of a legend's entry beside its label, and of a letter, about
_USUAL_LINES, _LINE_INCHES = 2, 0.17  # of a legend: what a figure has room for, and how high each further one is
_NAMED_CLIENTS = 30  # that there is room for below them
_MOST_DOUBLINGS = 3.0  # weights from an eighth to eight times the share have colours of their own
_CURVES = {"mean": "mean over clients", "worst10": "worst 10 % of clients"}
_STYLE: dict[Any, Any] = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "axes.titlesize": 9, "grid.alpha": 0.3, "grid.linewidth": 0.6, "legend.frameon": False, "font.size": 9,
    "pdf.fonttype": 42, "svg.hashsalt": "propfair",
}  # fmt: skip


@dataclass(frozen=True)
class _Sheet:
    """What a figure is drawn on, and about."""

    figure: "Figure"
    comparison: Comparison
    measure: Measure
    reference: Group | None

    @property
    def evaluated(self) -> list[tuple[int, Group]]:
        """Groups that have the measure, with their positions."""
        return [(position, group) for position, group in enumerate(self.comparison.groups) if group.has(self.measure)]

    @property
    def unit(self) -> str:
        return f"{self.measure.label}, %" if _is_percent(self.measure) else self.measure.label


def draw_figure(
    kind: str,
    runs: Sequence[Run],
    path: Path,
    *,
    measure: str | None = None,
    reference: str | None = None,
    width: float = 5.5,
    height: float = 3.2,
) -> None:
    """Draw one figure about runs on the same clients.

    Args:
        kind: one of `FIGURES`.
        runs: from `propfair.runs.reading.read_runs`.
        path: ends in .png, .pdf or .svg.
        measure: such as "test/accuracy"; None: the most telling one.
        reference: the label, or the name, of the group that others are compared with, for "relative" and
            "certificate". None: the one that withstands the others best.
        width: inches.
        height: inches; a legend of many lines adds to it.
    """
    if kind not in FIGURES:
        raise unknown("figure", kind, FIGURES)
    kind_of_file = picture_format(path)
    for name, inches in (("width", width), ("height", height)):
        if not 1 <= inches <= MOST_INCHES:
            raise ConfigError(f"{name} must be between 1 and {MOST_INCHES} inches; got {name}={inches}")
    comparisons = by_clients(runs)
    if len(comparisons) != 1:
        found = "; ".join(one.title for one in comparisons) or "none"
        raise DataError(
            f"a figure is about runs on the same clients; found {len(comparisons)} sets of clients: {found}"
        )
    comparison = comparisons[0]
    chosen = _measure(comparison, measure)
    figure = new_figure(width, height)
    with all_letters(**_STYLE):
        FIGURES[kind](_Sheet(figure, comparison, chosen, _group(comparison, reference)))
        date = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind_of_file)
        write_figure(figure, path, dpi=200, metadata=date)


def _measure(comparison: Comparison, key: str | None) -> Measure:
    known = {measure.key: measure for measure in comparison.measures}
    if not known:
        raise DataError("no run has been evaluated yet: there is nothing to draw")
    if key is not None and key not in known:
        raise unknown("measure", key, known)
    return known[key] if key is not None else comparison.measures[0]


def _group(comparison: Comparison, called: str | None) -> Group | None:
    """The group of this label; or the one whose runs have this name, seeds left out."""
    if called is None:
        return None
    known = {group.label: group for group in comparison.groups}
    named = [group for group in comparison.groups if all(run.plain_name == called for run in group.runs)]
    if called not in known and len(named) != 1:
        raise unknown("run", called, known)
    return known.get(called) or named[0]


def _is_percent(measure: Measure) -> bool:
    return measure.metric == "accuracy"


def _scaled(values: npt.ArrayLike, measure: Measure) -> FloatArray:
    return np.asarray(values, dtype=np.float64) * (100 if _is_percent(measure) else 1)


def _colour(position: int) -> str:
    return COLOURS[position % len(COLOURS)]


def _label(group: Group) -> str:
    return plain_text(short_name(group.label, 60))


def _trade(sheet: _Sheet) -> None:
    axes = sheet.figure.subplots()
    for position, group in sheet.evaluated:
        numbers = group.statistics(sheet.measure)
        pairs = [(numbers[name].mean, numbers[name].std) for name in ("mean", "worst10")]
        (x, dx), (y, dy) = _scaled(pairs, sheet.measure)
        many = len(group.runs) > 1
        axes.errorbar(
            x, y, xerr=dx if many else None, yerr=dy if many else None, fmt=SHAPES[position % len(SHAPES)],
            color=_colour(position), capsize=2, elinewidth=0.9, markersize=6, label=_label(group),
        )  # fmt: skip
    axes.set(xlabel=f"mean over clients: {sheet.unit}", ylabel=f"worst 10 % of clients: {sheet.unit}")
    axes.margins(0.15)
    if _is_percent(sheet.measure):
        widen(axes, 1.0)
    if not sheet.measure.higher_is_better:  # up and right are better
        axes.invert_xaxis()
        axes.invert_yaxis()
    _legend(sheet.figure, axes)


def _clients(sheet: _Sheet) -> None:
    axes = sheet.figure.subplots()
    groups = sheet.evaluated
    served = (sheet.reference or groups[0][1]).mean_over_seeds(sheet.measure)
    order = np.argsort(served if sheet.measure.higher_is_better else -served, kind="stable")
    few = len(groups) <= _MOST_BARS and len(order) <= _MOST_BAR_CLIENTS
    places = np.arange(len(order))
    for place, (position, group) in enumerate(groups):
        values = _scaled(group.mean_over_seeds(sheet.measure)[order], sheet.measure)
        if few:
            width = 0.8 / len(groups)
            shift = (place - (len(groups) - 1) / 2) * width
            axes.bar(places + shift, values, width, color=_colour(position), label=_label(group))
        else:
            shape = SHAPES[position % len(SHAPES)]
            axes.scatter(
                places,
                values,
                s=16,
                marker=shape,
                color=_colour(position),
                label=_label(group),
            )
    _name_clients(axes, sheet.comparison, order)
    axes.set(ylabel=sheet.unit if sheet.measure.higher_is_better else f"{sheet.unit}, lower is better")
    axes.grid(visible=False, axis="x")
    _legend(sheet.figure, axes)


def _relative(sheet: _Sheet) -> None:
    found = _judged(sheet)
    star = sheet.reference or sheet.comparison.groups[found.best]
    others = [group for group in sheet.comparison.groups if group is not star]
    columns = min(4, len(others))
    grid = sheet.figure.subplots(-(-len(others) // columns), columns, sharey=True, squeeze=False)
    panels = grid.flatten()
    for axes in panels[len(others) :]:
        axes.set_visible(False)
    row = sheet.comparison.groups.index(star)
    for axes, group in zip(panels, others, strict=False):
        column = sheet.comparison.groups.index(group)
        if not np.isfinite(found.values[row, column]):
            raise DataError(found.words[row])
        changes = np.sort(100 * found.pairs.pair(row, column).relative)
        draw_changes(axes, changes)
        average = 100 * found.values[row, column]
        axes.set_title(f"{_label(group)}\n{average:+.2f} %")
        axes.set(xticks=[])
    sheet.figure.supxlabel("clients, sorted", fontsize=9)
    sheet.figure.supylabel(f"relative change from {plain_text(star.label)}, %", fontsize=9)


def _certificate(sheet: _Sheet) -> None:
    found = _judged(sheet)
    row = sheet.comparison.groups.index(sheet.reference) if sheet.reference else found.best
    others = [k for k in np.argsort(found.values[row]) if k != row and np.isfinite(found.values[row, k])]
    if not others:
        raise DataError(found.words[row])
    axes = sheet.figure.subplots()
    at, low, high = (100 * table[row, others] for table in (found.values, found.low, found.high))
    bars = np.nan_to_num(np.stack([at - low, high - at]).clip(0))  # no bar where no interval was computed
    axes.errorbar(at, np.arange(len(others)), xerr=bars, fmt="o", color=COLOURS[0], ecolor="0.4", capsize=3)
    axes.axvline(0, color="black", linewidth=0.9)
    axes.set_yticks(np.arange(len(others)), [_label(sheet.comparison.groups[k]) for k in others])
    left = _label(sheet.comparison.groups[row])
    axes.set(xlabel=f"average relative change of the clients\nwhen they leave {left}, %")
    axes.margins(y=0.3 / len(others))


def _curves(sheet: _Sheet) -> None:
    panels = sheet.figure.subplots(1, 2, sharey=True)
    for axes, (name, title) in zip(panels, _CURVES.items(), strict=True):
        for position, group in sheet.evaluated:
            series = [one for run in group.runs if (one := run.served(sheet.measure)) is not None]
            rounds = sorted(set.intersection(*(set(one.rounds.tolist()) for one in series)))
            lines = np.stack(
                [statistics_over_rounds(one, sheet.measure)[name][np.isin(one.rounds, rounds)] for one in series]
            )
            mean, std = _scaled(lines.mean(axis=0), sheet.measure), _scaled(lines.std(axis=0), sheet.measure)
            axes.plot(rounds, mean, color=_colour(position), linewidth=1.4, label=_label(group))
            axes.fill_between(rounds, mean - std, mean + std, color=_colour(position), alpha=0.15, linewidth=0)
        axes.set(xlabel="round", title=title)
        axes.locator_params(axis="x", integer=True)
    panels[0].set_ylabel(sheet.unit)
    _legend(sheet.figure, panels[0])


def _lorenz(sheet: _Sheet) -> None:
    if not sheet.measure.higher_is_better:
        raise ConfigError(f"a Lorenz curve needs an accuracy; got measure={sheet.measure.key!r}")
    axes = sheet.figure.subplots()
    axes.plot([0, 100], [0, 100], color="0.5", linestyle=":", linewidth=1, label="all equal")
    for position, group in sheet.evaluated:
        values = np.sort(group.mean_over_seeds(sheet.measure))
        values = values[~np.isnan(values)]
        share = 100 * np.concatenate([[0.0], values.cumsum() / values.sum()])
        label = f"{_label(group)} (Gini {group.statistics(sheet.measure)['gini'].mean:.3f})"
        axes.plot(np.linspace(0, 100, len(share)), share, color=_colour(position), linewidth=1.4, label=label)
    axes.set(xlim=(0, 100), xlabel="clients, worst-off first, %")
    axes.set(ylim=(0, 100), ylabel=f"share of all {sheet.measure.label}, %")
    axes.legend(fontsize=7, loc="upper left")


def _weights(sheet: _Sheet) -> None:
    runs = [group.runs[0] for group in ([sheet.reference] if sheet.reference else reversed(sheet.comparison.groups))]
    weighed = ((run, series) for run in runs if (series := relative_weights(run)) is not None)
    run, series = next(weighed, (runs[0], None))
    if series is None:
        raise DataError(f"{run.where}: the records have no weights; choose another run with --reference")
    axes = sheet.figure.subplots()
    values = series.values.T  # NaN: the client did not take part, and its place stays empty
    powers = np.log2(values, out=np.full_like(values, np.nan), where=values > 0)
    known = np.abs(powers[np.isfinite(powers)])
    common = float(np.quantile(known, 0.9)) if known.size else 0.0
    reach = min(_MOST_DOUBLINGS, max(0.5, common))  # a single client must not take the colours from the others
    places = (series.rounds, np.arange(len(powers)))
    image = axes.pcolormesh(*places, powers, cmap="PuOr_r", vmin=-reach, vmax=reach, rasterized=True)
    nothing = np.where(values == 0, 1.0, np.nan)
    if (values == 0).any():
        axes.pcolormesh(*places, nothing, cmap="gray", vmin=0.8, vmax=3, rasterized=True)
    axes.invert_yaxis()
    axes.locator_params(integer=True)
    axes.grid(visible=False)
    zero = ", black: 0" if (values == 0).any() else ""
    axes.set(xlabel="round", ylabel="client", title=plain_text(short_name(run.name, 60)))
    beyond = "both" if known.size and float(known.max()) > 1.01 * reach else "neither"
    bar = sheet.figure.colorbar(image, ax=axes, extend=beyond)
    bar.set_ticks([-reach, 0, reach], labels=[f"{2**-reach:.2g} ×", "1 ×", f"{2**reach:.2g} ×"])
    bar.set_label(f"weight relative to data share{zero}")


FIGURES: dict[str, Callable[[_Sheet], None]] = {
    "trade": _trade,
    "clients": _clients,
    "relative": _relative,
    "certificate": _certificate,
    "curves": _curves,
    "lorenz": _lorenz,
    "weights": _weights,
}


def _judged(sheet: _Sheet) -> Verdicts:
    found = judge(sheet.comparison, sheet.measure)
    if isinstance(found, str):
        raise DataError(found)
    return found


def _name_clients(axes: "Axes", comparison: Comparison, order: npt.NDArray[np.intp]) -> None:
    few = len(order) <= _NAMED_CLIENTS
    names = client_names(comparison.clients.names) if few else comparison.clients.names
    name_clients(axes, [names[k] for k in order], _NAMED_CLIENTS)
    axes.set(xlabel="client" if few else f"{len(order)} clients")


def _legend(figure: "Figure", axes: "Axes") -> None:
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    fit = int(figure.get_figwidth() / (_ENTRY_INCHES + _LETTER_INCHES * longest))
    columns = min(4, max(1, fit))
    more = -(-len(labels) // columns) - _USUAL_LINES
    figure.set_figheight(figure.get_figheight() + max(0, more) * _LINE_INCHES)  # or it would take the room of the chart
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, fontsize=8)
