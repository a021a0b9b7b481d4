"""Numbers about a table of client values: one value per client in, named statistics out.

The defaults follow the tables of the paper: an unweighted mean, a population standard deviation (`ddof=0`), and
worst and best clients by counting. All of it is a pure function of the table, so keep the table and ask again.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from propfair.errors import ConfigError, DataError
from propfair.fairness.arrays import FloatArray as FloatArray  # also the type of tables elsewhere

Unit = Literal["fraction", "percent"]


@dataclass(frozen=True)
class ClientStatistics:
    """What `summarize` returns. Every field is a number; undefined ones are NaN, never a guess.

    Attributes:
        num_clients: clients with a value.
        num_excluded: clients left out because their value is NaN.
        mean: one client, one vote.
        weighted_mean: by `weights`; equals `mean` without them.
        std: standard deviation over clients, with the `ddof` asked for.
        weighted_std: population standard deviation under `weights`.
        worst: the worst client; for losses (`higher_is_better=False`) the largest value.
        worst10: mean of the worst 10 % of clients, of at least one; likewise worst20, worst30.
        best: the best client.
        best10: mean of the best 10 % of clients; likewise best20, best30.
        quantile10: linear interpolation between clients, whichever direction is better; likewise 25, 75, 90.
        median: the middle client.
        variance_of_percent: population variance of the values in percent, as tables of q-FFL papers print it;
            NaN if the values are not accuracies.
        jain: Jain's index (sum x)^2 / (n sum x^2), from 1/n (one client has all) to 1 (all equal).
        gini: mean absolute difference over twice the mean, from 0 (all equal) to 1 - 1/n.
        entropy: of the clients' shares of the total, in nats, up to log n (all equal).
        cosine: of the angle between the values and (1, ..., 1).
        nash_welfare: geometric mean; 0 as soon as one client has 0.
        weighted_nash_welfare: exp(sum p log x), what PropFair maximises for x = M - loss.

    Jain, Gini and entropy are about shares of a total: NaN if a value is negative or all are 0. The geometric
    means are NaN if a value is negative, and of losses, where less is better; the cosine if all values are 0.
    """

    num_clients: int
    num_excluded: int
    mean: float
    weighted_mean: float
    std: float
    weighted_std: float
    worst: float
    worst10: float
    worst20: float
    worst30: float
    best: float
    best10: float
    best20: float
    best30: float
    quantile10: float
    quantile25: float
    median: float
    quantile75: float
    quantile90: float
    variance_of_percent: float
    jain: float
    gini: float
    entropy: float
    cosine: float
    nash_welfare: float
    weighted_nash_welfare: float

    def as_dict(self) -> dict[str, float]:
        """Name to number, in the order of the fields."""
        return dict(vars(self))


def summarize(
    values: npt.ArrayLike,
    weights: npt.ArrayLike | None = None,
    ddof: int = 0,
    *,
    higher_is_better: bool = True,
    unit: Unit = "fraction",
) -> ClientStatistics:
    """All statistics of one value per client.

    Args:
        values: [n], one number per client; NaN (a client without test data, say) is left out and counted.
        weights: [n], for the weighted numbers; need not sum to 1. Data shares, as a rule.
        ddof: 0 for the population standard deviation over clients (the paper's tables), 1 for the sample one.
        higher_is_better: True for accuracies and utilities, False for losses.
        unit: how accuracies are written, 0.64 ("fraction") or 64.0 ("percent"), for `variance_of_percent`.

    >>> numbers = summarize([0.6, 0.5, 0.4], weights=[0.5, 0.3, 0.2])
    >>> round(numbers.mean, 4), round(numbers.weighted_mean, 4), numbers.worst10
    (0.5, 0.53, 0.4)
    """
    x, p, num_excluded = _clean(values, weights)
    if ddof not in (0, 1):
        raise ConfigError(f"ddof must be 0 (population) or 1 (sample); got ddof={ddof}.")
    if unit not in ("fraction", "percent"):
        raise ConfigError(f"unit must be 'fraction' or 'percent'; got unit={unit!r}.")
    if x.size == 0:
        blank = {field.name: math.nan for field in dataclasses.fields(ClientStatistics)}
        return ClientStatistics(**{**blank, "num_clients": 0, "num_excluded": num_excluded})  # type: ignore[arg-type]
    with np.errstate(invalid="ignore", over="ignore"):  # a diverged client (inf) gives inf and NaN, not a crash
        table = _Table(x, p, higher_is_better)
        numbers = {name: float(formula(table)) for name, formula in _FORMULAS.items()}
        numbers |= {"std": _std(x, ddof), "variance_of_percent": float(_variance_of_percent(x, unit))}
    return ClientStatistics(x.size, num_excluded, **numbers)


def statistic(
    name: str, values: npt.ArrayLike, weights: npt.ArrayLike | None = None, *, higher_is_better: bool = True
) -> float:
    """One statistic of `summarize` by its name, without the others.

    >>> statistic("worst10", [0.6, 0.5, 0.4])
    0.4
    """
    x, p, _ = _clean(values, weights)
    return float(statistics_of_rows(name, x, p, higher_is_better=higher_is_better)) if x.size else math.nan


def statistics_of_rows(
    name: str, rows: FloatArray, weights: FloatArray, *, higher_is_better: bool = True
) -> FloatArray:
    """One statistic of each row of [..., n], without NaN; weights [n] sum to 1."""
    if name not in _FORMULAS:
        raise ConfigError(f"there is no statistic {name!r}. There are: {', '.join(STATISTICS)}.")
    with np.errstate(invalid="ignore", over="ignore"):
        return _FORMULAS[name](_Table(rows, weights, higher_is_better))


def worst_fraction(values: npt.ArrayLike, k: float, *, higher_is_better: bool = True) -> float:
    """The mean of the worst fraction `k` of the clients: of max(1, floor(n k)) of them.

    >>> worst_fraction(range(20), 0.1)
    0.5
    """
    x, _, _ = _clean(values)
    return float(_tail_mean(x, k, lowest=higher_is_better)) if x.size else math.nan


def best_fraction(values: npt.ArrayLike, k: float, *, higher_is_better: bool = True) -> float:
    """The mean of the best fraction `k` of the clients.

    >>> best_fraction(range(20), 0.1)
    18.5
    """
    x, _, _ = _clean(values)
    return float(_tail_mean(x, k, lowest=not higher_is_better)) if x.size else math.nan


def jain_index(values: npt.ArrayLike) -> float:
    """(sum x)^2 / (n sum x^2). NaN if a value is negative or all are 0."""
    return float(_jain(_clean(values)[0]))


def gini_index(values: npt.ArrayLike) -> float:
    """sum_ij |x_i - x_j| / (2 n^2 mean). NaN if a value is negative or all are 0."""
    return float(_gini(_clean(values)[0]))


def share_entropy(values: npt.ArrayLike) -> float:
    """-sum s log s of the shares s = x / sum x, in nats. NaN if a value is negative or all are 0."""
    shares = _shares(_clean(values)[0])
    if np.isnan(shares).any() or not shares.size:
        return math.nan
    positive = shares[shares > 0]
    return max(0.0, -float(positive @ np.log(positive)))


def cosine_to_equality(values: npt.ArrayLike) -> float:
    """The cosine of the angle between the values and (1, ..., 1); NaN if all are 0."""
    x, _, _ = _clean(values)
    scale = np.abs(x).max(initial=0.0)
    if not (0 < scale < math.inf):
        return math.nan
    scaled = x / scale
    return float(scaled.sum() / math.sqrt(x.size * (scaled @ scaled)))


def nash_welfare(values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> float:
    """The geometric mean exp(sum p log x), p = 1/n by default. 0 if a value is 0, NaN if one is negative."""
    x, p, _ = _clean(values, weights)
    return float(_geometric_mean(x, p)) if x.size else math.nan


@dataclass(frozen=True)
class MeanStd:
    """A mean and a standard deviation over seeds. Prints as in the tables: `64.75 ± 0.10`.

    Attributes:
        mean: over seeds.
        std: over seeds; NaN for one seed if `ddof` is 1.
        num_seeds: how many.
        ddof: 0 or 1.
    """

    mean: float
    std: float
    num_seeds: int
    ddof: int

    @property
    def kind(self) -> Literal["population", "sample"]:
        """Which standard deviation this is: `population` divides by n, `sample` by n - 1."""
        return "sample" if self.ddof else "population"

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.std:.2f}"


def over_seeds(values: npt.ArrayLike, ddof: int = 0) -> MeanStd:
    """Mean and standard deviation of one number per seed. A NaN seed makes the result NaN: none is dropped.

    >>> str(over_seeds([64.65, 64.85, 64.75])), over_seeds([1.0, 2.0]).kind
    ('64.75 ± 0.08', 'population')
    """
    if ddof not in (0, 1):
        raise ConfigError(f"ddof must be 0 (population) or 1 (sample); got ddof={ddof}.")
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise DataError(f"values must be a list with one number per seed; got shape {x.shape}.")
    with np.errstate(invalid="ignore"):
        return MeanStd(float(x.mean()), _std(x, ddof), x.size, ddof)


def summarize_seeds(runs: Sequence[ClientStatistics], ddof: int = 0) -> dict[str, MeanStd]:
    """Each statistic over seeds, as the paper's tables do: first over clients, then over seeds."""
    if not runs:
        raise DataError("runs must hold the statistics of at least one seed; got none.")
    tables = [run.as_dict() for run in runs]
    return {name: over_seeds([table[name] for table in tables], ddof) for name in tables[0]}


def _clean(values: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> tuple[FloatArray, FloatArray, int]:
    """Values that are not NaN, their weights (sum 1, uniform by default), and how many were NaN."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise DataError(f"values must be a list with one number per client; got shape {x.shape}.")
    p = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64)
    if p.shape != x.shape:
        raise ConfigError(f"weights must have one number per client; got shape {p.shape} for {x.size} values.")
    if not (np.isfinite(p).all() and (p >= 0).all()):
        raise ConfigError(f"weights must be finite and >= 0; got {p.tolist()}.")
    present = ~np.isnan(x)
    kept = p[present]
    if present.any() and kept.sum() <= 0:
        raise ConfigError("weights of the clients that have a value sum to 0; give at least one a positive weight.")
    return x[present], kept / kept.sum() if present.any() else kept, int((~present).sum())


def _std(x: FloatArray, ddof: int) -> float:
    return float(x.std(ddof=ddof)) if x.size > ddof else math.nan


def _tail_mean(x: FloatArray, k: float, *, lowest: bool) -> FloatArray:
    if not 0 < k <= 1:
        raise ConfigError(f"k must be a fraction with 0 < k <= 1; got k={k}. Use 0.1 for 10 %.")
    count = tail_size(x.shape[-1], k)
    ordered = np.sort(x, axis=-1)
    mean: FloatArray = (ordered[..., :count] if lowest else ordered[..., -count:]).mean(axis=-1)
    return mean


def tail_size(num_clients: int, k: float) -> int:
    """How many clients the worst fraction `k` has."""
    return max(1, math.floor(num_clients * k + 1e-9))  # 1e-9: 100 * 0.29 is a hair below 29


def _geometric_mean(x: FloatArray, p: FloatArray) -> FloatArray:
    counted = x[..., p > 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.exp(np.log(counted) @ p[p > 0])
    return np.where((x < 0).any(axis=-1), np.nan, means)


def _shares(x: FloatArray) -> FloatArray:
    """X / sum x along the last axis; NaN where the values are not parts of a whole."""
    most = x.max(axis=-1, keepdims=True, initial=0.0)
    whole = (x >= 0).all(axis=-1, keepdims=True) & (most > 0) & (most < math.inf)
    scaled = np.where(whole, x, np.nan) / np.where(whole, most, 1.0)
    shares: FloatArray = scaled / scaled.sum(axis=-1, keepdims=True)
    return shares


def _dot(a: FloatArray, b: FloatArray) -> FloatArray:
    """Along the last axis."""
    product: FloatArray = (a[..., None, :] @ b[..., :, None])[..., 0, 0]
    return product


def _jain(x: FloatArray) -> FloatArray:
    shares = _shares(x)
    with np.errstate(divide="ignore"):  # no values at all
        return np.where(x.shape[-1], 1 / (x.shape[-1] * _dot(shares, shares)), np.nan)


def _gini(x: FloatArray) -> FloatArray:
    size = x.shape[-1]
    ranks = 2.0 * np.arange(1, size + 1) - size - 1
    mean: FloatArray = _dot(ranks, np.sort(_shares(x), axis=-1)) / size if size else np.full(x.shape[:-1], np.nan)
    return np.maximum(0.0, mean)


def _variance_of_percent(x: FloatArray, unit: Unit) -> FloatArray:
    percent = 100 * x if unit == "fraction" else x
    known = ((percent >= 0) & (percent <= 100 * (1 + 1e-9))).all(axis=-1)
    return np.where(known, percent.var(axis=-1), np.nan)


@dataclass(frozen=True)
class _Table:
    """Values [..., n] of clients that have one, their weights [n] (sum 1), and which way is better."""

    x: FloatArray
    p: FloatArray
    higher_is_better: bool

    @cached_property
    def quantiles(self) -> dict[float, FloatArray]:
        """All at once: most of what one takes is the sorting."""
        return dict(zip(_QUANTILES, np.quantile(self.x, _QUANTILES, axis=-1), strict=True))


_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
Formula = Callable[[_Table], FloatArray]  # along the last axis


def _weighted_std(table: _Table) -> FloatArray:
    mean = table.x @ table.p
    deviation: FloatArray = np.sqrt((table.x - mean[..., None]) ** 2 @ table.p)
    return deviation


def _welfare(table: _Table, p: FloatArray) -> FloatArray:
    """Of utilities: the product of losses would be small where they are unequal, and small is good there."""
    return _geometric_mean(table.x, p) if table.higher_is_better else np.full(table.x.shape[:-1], np.nan)


def _tail(k: float, *, worst: bool) -> Formula:
    return lambda table: _tail_mean(table.x, k, lowest=worst == table.higher_is_better)


def _quantile(q: float) -> Formula:
    return lambda table: table.quantiles[q]


def _row_by_row(index: Callable[[npt.ArrayLike], float]) -> Formula:
    return lambda table: np.apply_along_axis(index, -1, table.x)


_FORMULAS: dict[str, Formula] = {
    "mean": lambda table: table.x.mean(axis=-1),
    "weighted_mean": lambda table: table.x @ table.p,
    "std": lambda table: table.x.std(axis=-1),
    "weighted_std": _weighted_std,
    "worst": lambda table: table.x.min(axis=-1) if table.higher_is_better else table.x.max(axis=-1),
    "worst10": _tail(0.1, worst=True),
    "worst20": _tail(0.2, worst=True),
    "worst30": _tail(0.3, worst=True),
    "best": lambda table: table.x.max(axis=-1) if table.higher_is_better else table.x.min(axis=-1),
    "best10": _tail(0.1, worst=False),
    "best20": _tail(0.2, worst=False),
    "best30": _tail(0.3, worst=False),
    "quantile10": _quantile(0.1),
    "quantile25": _quantile(0.25),
    "median": _quantile(0.5),
    "quantile75": _quantile(0.75),
    "quantile90": _quantile(0.9),
    "variance_of_percent": lambda table: _variance_of_percent(table.x, "fraction"),
    "jain": lambda table: _jain(table.x),
    "gini": lambda table: _gini(table.x),
    "entropy": _row_by_row(share_entropy),
    "cosine": _row_by_row(cosine_to_equality),
    "nash_welfare": lambda table: _welfare(table, np.full(table.p.size, 1 / table.p.size)),
    "weighted_nash_welfare": lambda table: _welfare(table, table.p),
}
STATISTICS = tuple(_FORMULAS)  # what `summarize` returns, but for the two counts
SPREADS = frozenset({"std", "weighted_std", "variance_of_percent", "gini"})  # less is better, whatever is measured
EQUALITIES = frozenset({"jain", "entropy", "cosine"})  # more is better, whatever is measured


def more_is_better(name: str, *, higher_is_better: bool) -> bool:
    """Which way a statistic is better, for values of which more is better or not.

    >>> more_is_better("std", higher_is_better=True), more_is_better("worst10", higher_is_better=True)
    (False, True)
    """
    return name not in SPREADS and (name in EQUALITIES or higher_is_better)
