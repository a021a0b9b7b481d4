r"""Is a model proportionally fair? The certificate answers from client utilities (paper, eq. 3.3 and 5.1).

$$\mathrm{PF}(u; u^*) = \sum_i p_i \frac{u_i - u_i^*}{u_i^*}$$

is the average relative change when clients move from $u^*$ to $u$. A feasible $u^*$ is proportionally fair if no
feasible $u$ makes it positive. Trained models are a finite sample of the feasible set, so a positive value refutes
proportional fairness and a negative one supports it; it can't prove it. PF is linear in u: its maximum over all
mixtures of the models (the convex hull) is its maximum over the models.

The order `alpha` generalises it: $\sum_i p_i (u_i - u_i^*) / (u_i^*)^\alpha \le 0$ certifies alpha-fairness; 0 is
the average, 1 proportional fairness, 2 the harmonic mean (Appendix F).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from propfair.errors import ConfigError, DataError
from propfair.fairness.arrays import FloatArray, Shares, matrix, normalized_shares, vector


@dataclass(frozen=True, eq=False)
class Certificate:
    """What other models would change for the clients of a reference model u*.

    Attributes:
        names: of the other models, [m].
        values: [m], sum p (u - u*) / u*^alpha for each of them; fractions, so 0.01 is 1 %.
        relative: [m, n], each client's relative change (u - u*) / u*.
        shares: [n], p.
        alpha: the order; 1 is proportional fairness.
    """

    names: tuple[str, ...]
    values: FloatArray
    relative: FloatArray
    shares: FloatArray
    alpha: float

    @property
    def maximum(self) -> float:
        """The largest value over the models, and so over all their mixtures. <= 0: none of them refutes u*."""
        return float(self.values.max())

    @property
    def maximizer(self) -> str:
        """The model that attains the maximum."""
        return self.names[int(self.values.argmax())]

    @property
    def hull_weights(self) -> FloatArray:
        """[m], a mixture of the models that attains the maximum over their convex hull: one of its corners."""
        weights: FloatArray = np.eye(len(self.names))[int(self.values.argmax())]
        return weights

    @property
    def hull_maximum(self) -> float:
        """The largest value over the convex hull of the models: that of `hull_weights`."""
        return float(self.hull_weights @ self.values)

    def as_dict(self) -> dict[str, object]:
        """All of it as plain lists and numbers, for JSON."""
        return {
            "alpha": self.alpha,
            "maximum": self.maximum,
            "maximizer": self.maximizer,
            "values": dict(zip(self.names, self.values.tolist(), strict=True)),
            "relative": dict(zip(self.names, self.relative.tolist(), strict=True)),
            "shares": self.shares.tolist(),
        }

    def verdict(self, tolerance: float = 0.0, interval: "Interval | None" = None) -> str:
        """The result in a sentence. With the `interval` of the maximizer, chance is taken into account.

        >>> certificate({"A": [0.6, 0.5, 0.4]}, [0.5, 0.5, 0.5], [0.5, 0.3, 0.2]).verdict()
        'not proportionally fair: A changes the clients by +6.00 % on average'
        """
        kind = {0.0: "utilitarian", 1.0: "proportionally fair"}.get(self.alpha, f"{self.alpha:g}-fair")
        size = f"{100 * self.maximum:+.2f} % on average" if self.alpha == 1 else f"a sum of {self.maximum:+.4g}"
        change = f"{self.maximizer} changes the clients by {size}"
        if interval is not None:
            change += f" ({100 * interval.level:g} % interval {interval})"
            if interval.low <= tolerance < interval.high:
                return f"undecided: {change}, which may be chance"
        if self.maximum > tolerance:
            return f"not {kind}: {change}"
        return f"{kind} against {'this model' if len(self.names) == 1 else f'these {len(self.names)} models'}: {change}"


def certificate(
    u: npt.ArrayLike | Mapping[str, npt.ArrayLike],
    u_star: npt.ArrayLike,
    shares: Shares,
    *,
    alpha: float = 1.0,
) -> Certificate:
    """Compare other models' utilities with those of a reference model.

    Args:
        u: the other models: one list of n utilities, a table [m, n], or a mapping from names to lists.
        u_star: [n], the utilities of the model to certify, all > 0. A client with utility 0 is an error: its relative
            change is undefined, and leaving it out would hide the client that is worst off.
        shares: [n], data sizes or shares, from the training sets as in the paper; or "uniform" (Appendix F).
        alpha: order of fairness.

    >>> certificate([0.6, 0.5, 0.4], [0.5, 0.5, 0.5], [0.5, 0.3, 0.2]).values.round(7).tolist()
    [0.06]
    """
    reference = _positive("u_star", u_star)
    if isinstance(u, Mapping):
        names = tuple(str(name) for name in u)
        table = matrix("u", [vector(f"u[{name!r}]", values, reference.size) for name, values in u.items()])
    else:
        table = matrix("u", u, reference.size)
        names = tuple(f"model {row}" for row in range(len(table)))
    p = normalized_shares(shares, reference.size)
    _check_alpha(alpha)
    return Certificate(names, _sums(table, reference, p, alpha), table / reference - 1, p, alpha)


@dataclass(frozen=True)
class Interval:
    """A bootstrap percentile interval around a certificate value.

    Attributes:
        value: from the data as they are.
        low, high: ends of the interval.
        level: e.g. 0.95.
        over: what was drawn again: "examples" or "seeds".
        num_resamples: how often.
        num_undefined: draws in which some u* was 0; they count as +inf, the end that speaks against fairness.
    """

    value: float
    low: float
    high: float
    level: float
    over: Literal["examples", "seeds"]
    num_resamples: int
    num_undefined: int = 0

    def __str__(self) -> str:
        return f"[{100 * self.low:+.2f} %, {100 * self.high:+.2f} %]"


def interval_over_examples(
    correct: npt.ArrayLike,
    correct_star: npt.ArrayLike,
    total: npt.ArrayLike,
    shares: Shares,
    *,
    both: npt.ArrayLike | None = None,
    alpha: float = 1.0,
    level: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """How far the certificate of accuracies moves if test examples are drawn again.

    Args:
        correct: [n], test examples that the other model gets right.
        correct_star: [n], those that the reference model gets right, all > 0.
        total: [n], test examples.
        shares: as in `certificate`.
        both: [n], examples that both models get right. With it, draws are paired, as they should be: both models are
            tested on the same examples, and the interval is then usually narrower. Without it, models are independent.
        alpha: order of fairness.
        level: coverage.
        num_resamples: draws.
        seed: of the draws.
    """
    size = vector("total", total)
    hits, hits_star = vector("correct", correct, size.size), _positive("correct_star", correct_star, size.size)
    _counts("correct", hits, 0 * size, size)
    _counts("correct_star", hits_star, 0 * size, size)
    p = normalized_shares(shares, size.size)
    _check_alpha(alpha)
    rng = _resampling(level, num_resamples, seed)
    shape = (num_resamples, size.size)
    if both is None:
        drawn = rng.binomial(size.astype(np.int64), hits / size, shape)
        drawn_star = rng.binomial(size.astype(np.int64), hits_star / size, shape)
    else:
        shared = vector("both", both, size.size)
        _counts("both", shared, np.maximum(hits + hits_star - size, 0), np.minimum(hits, hits_star))
        cells = np.stack([shared, hits - shared, hits_star - shared, size - hits - hits_star + shared], axis=-1)
        table = rng.multinomial(size.astype(np.int64), cells / size[:, None], shape)
        drawn, drawn_star = table[..., 0] + table[..., 1], table[..., 0] + table[..., 2]
    draws = _sums(drawn / size, drawn_star / size, p, alpha)
    value = float(_sums(hits / size, hits_star / size, p, alpha))
    return _interval(value, draws, level, "examples")


def interval_over_seeds(
    u: npt.ArrayLike,
    u_star: npt.ArrayLike,
    shares: Shares,
    *,
    alpha: float = 1.0,
    level: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """How far the mean certificate moves if seeds are drawn again; row s of both tables is the same seed.

    With three seeds, as in the paper, no draw leaves the range of the three: read the interval as that range.

    Args:
        u: [S, n], the other model's utilities, one row per seed, at least two.
        u_star: [S, n], the reference model's, all > 0.
        shares: as in `certificate`.
        alpha: order of fairness.
        level: coverage.
        num_resamples: draws.
        seed: of the draws.
    """
    reference = matrix("u_star", u_star)
    for row in reference:
        _positive("u_star", row)
    other = matrix("u", u, reference.shape[1])
    if len(other) != len(reference) or len(other) < 2:
        raise DataError(
            f"u and u_star must have one row for each of the same seeds, two or more; got {len(other)} rows "
            f"and {len(reference)} rows."
        )
    p = normalized_shares(shares, reference.shape[1])
    _check_alpha(alpha)
    by_seed = _sums(other, reference, p, alpha)
    rng = _resampling(level, num_resamples, seed)
    draws = by_seed[rng.integers(0, by_seed.size, (num_resamples, by_seed.size))].mean(axis=1)
    return _interval(float(by_seed.mean()), draws, level, "seeds")


def _sums(u: FloatArray, u_star: FloatArray, p: FloatArray, alpha: float) -> FloatArray:
    """The certificate along the last axis; +inf where a resampled u* is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        sums: FloatArray = ((u - u_star) / u_star**alpha) @ p
    undefined = (u_star <= 0).any(axis=-1) & (alpha > 0)
    return np.where(undefined, np.inf, sums)


def _interval(value: float, draws: FloatArray, level: float, over: Literal["examples", "seeds"]) -> Interval:
    ordered = np.sort(draws)
    tail = (1 - level) / 2
    low = ordered[int(np.floor(tail * (ordered.size - 1)))]
    high = ordered[int(np.ceil((1 - tail) * (ordered.size - 1)))]
    return Interval(value, float(low), float(high), level, over, ordered.size, int(np.isinf(ordered).sum()))


def _resampling(level: float, num_resamples: int, seed: int) -> np.random.Generator:
    if not 0 < level < 1:
        raise ConfigError(f"level must be a fraction with 0 < level < 1; got level={level}. Use 0.95 for 95 %.")
    if num_resamples < 1:
        raise ConfigError(f"num_resamples must be >= 1; got num_resamples={num_resamples}.")
    return np.random.default_rng(seed)


def _positive(name: str, values: npt.ArrayLike, length: int | None = None) -> FloatArray:
    x = vector(name, values, length)
    if (x <= 0).any():
        client = int(np.flatnonzero(x <= 0)[0])
        raise DataError(
            f"{name} must be > 0 for every client; got {x[client]:g} for client {client}. A relative change from 0 is "
            "undefined: use a utility that is positive (say M - loss), or report that this client gets nothing."
        )
    return x


def _counts(name: str, counts: FloatArray, low: FloatArray, high: FloatArray) -> None:
    wrong = (counts != np.round(counts)) | (counts < low) | (counts > high)
    if wrong.any():
        client = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"{name} must be whole numbers from {low[client]:g} to {high[client]:g} for client {client}; "
            f"got {counts[client]:g}."
        )


def _check_alpha(alpha: float) -> None:
    if not 0 <= alpha < np.inf:
        raise ConfigError(f"alpha must be >= 0 and finite; got alpha={alpha}. Use alpha=1 for proportional fairness.")
