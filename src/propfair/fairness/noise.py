r"""How far test examples alone move a statistic of client accuracies.

Client i has $n_i$ test examples, of which a model gets $x_i$ right. Were they drawn again, $x_i$ would be binomial with
the client's accuracy $p_i$ on all its examples. Put in for $p_i$, the measured accuracy would call a client with all
answers right free of noise, so accuracies are drawn towards their mean first, the more the more alike clients are:

$$\tilde p_i = \bar p + \sqrt{n_i / (n_i + a)} \, (x_i / n_i - \bar p), \quad a = 1 / \hat\rho - 1,$$

with the correlation $\hat\rho$ of two examples of a client from the counts themselves (Kleinman 1973) and the square
root that makes them as different as clients are, where the factor itself would make them too alike (Louis 1984).

A weighted mean then has the variance $\sum_i w_i^2 \tilde p_i (1 - \tilde p_i) / n_i$. For the worst or best clients,
quantiles, and measures of spread and equality the counts are drawn again from $\tilde p$ (the parametric bootstrap,
Efron and Tibshirani 1993, section 6.5), and their variance is that of the draws. Noise moves these to one side, and
their intervals are for the mean over test sets of this size.

The Nash welfare is a product, $W = \prod_i p_i^{w_i}$, and noise lowers it. With $\log \frac{x + 1/2}{n + 1/2}$ for
$\log \frac x n$, which has next to no bias and is finite for a client with no right answer (Pettigrew, Gart and
Thomas 1986), and half the variance of the sum taken off,

$$\log W = \sum_i w_i \log \frac{x_i + 1/2}{n_i + 1/2} - \tfrac12 r, \qquad
r = \sum_i w_i^2 \frac{1 - \tilde p_i}{n_i \check p_i + 1/2}, \quad \check p_i = \min(\tilde p_i, x_i / n_i),$$

and the variance of W is $W^2 r$ (the delta method).

Models of several seeds, and models that are compared, are tested on the same examples, and an example that is hard for
one is hard for the others. How much is seen from the answers themselves, where they are kept: the part of the variance
over a client's examples that two seeds share is their covariance over these examples. To first order (the delta
method) every smooth statistic is a weighted mean of the answers and shares as much. Seeds do not agree on who is worst,
or in the middle, though: for order statistics the counts of two seeds are drawn from $\tilde p$, with that part of the
examples in common, and the correlation of the two draws is what they share.

A difference of two models has the variance of the differences of their answers, or of their draws, relative to the sum
of both variances, with two examples added on which the models agree by chance only: one half in each cell of right and
wrong (Agresti and Min 2005). Models that agree on all of a few examples are not the same model.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from propfair.errors import DataError
from propfair.fairness.arrays import FloatArray
from propfair.fairness.quantiles import mid_p_limits, normal_quantile

NUM_DRAWS = 500  # the standard deviation then has an error of 3 %
NUM_RESAMPLES = 200  # for what models have in common, which need not be known as well
_SEED = 0  # the same numbers in, the same interval out


@dataclass(frozen=True)
class Noise:
    """How far test examples alone may move a number.

    Attributes:
        variance: of the number, if the test examples are drawn again.
        num_effective: for accuracies, the number m of examples in x (1 - x) / m that has this variance; None for
            numbers that are no accuracies, whose variance is taken to be the same wherever the truth is.
        bias: by how much the noise raises the number on average, under each seed; one number if it is the same for all.
        spread: for measures of spread, their mean over test sets: the least that their variance is in proportion to.
    """

    variance: float
    num_effective: float | None = None
    bias: tuple[float, ...] = (0.0,)
    spread: float | None = None

    def chosen(self, rows: list[int]) -> "Noise":
        """That of some seeds."""
        return dataclasses.replace(self, bias=tuple(self.bias[row] for row in rows)) if len(self.bias) > 1 else self

    @property
    def mirrored(self) -> "Noise":
        """Of the number with the other sign."""
        return dataclasses.replace(self, bias=tuple(0.0 - bias for bias in self.bias))

    def limits(self, x: float, alpha: float, times_examples: float = 1.0) -> tuple[float, float]:
        """Of the number x, measured once on so many times the examples; see the top of `intervals`."""
        if self.num_effective is not None:
            return mid_p_limits(x, self.num_effective * times_examples, alpha)
        half = normal_quantile(alpha) * math.sqrt(self.variance / times_examples)
        shift = half**2 / (4 * max(x, self.spread)) if self.spread else 0.0
        return x + shift - half, x + shift + half


@dataclass(frozen=True, eq=False)
class Answers:
    """Which test examples a model gets right, or any other number for each of them.

    Attributes:
        find: gives the numbers, [S, N], one row per seed, the examples of the first client first, when they are first
            asked for: most intervals need none of them.
        sizes: [n], examples of each client; they sum to N.
    """

    find: Callable[[], FloatArray]
    sizes: FloatArray

    @classmethod
    def of(cls, right: "npt.ArrayLike | Answers", sizes: FloatArray) -> "Answers":
        """From a table of right and wrong."""
        if isinstance(right, Answers):
            return right
        table = np.atleast_2d(np.asarray(right))
        total = int(sizes.sum())
        if table.ndim != 2 or table.shape[1] != total:
            raise DataError(f"answers must have one column for each of {total} test examples; got {table.shape}.")
        return cls(lambda: table.astype(np.float64), sizes)

    @cached_property
    def values(self) -> FloatArray:
        """[S, N]."""
        return self.find()

    @cached_property
    def by_client(self) -> FloatArray:
        """[S, n], sums over the examples of each client."""
        sums: FloatArray = np.add.reduceat(self.values, self._starts, axis=1)
        return sums

    @cached_property
    def variance(self) -> float:
        """Over the examples of a client, for one seed: a mean over seeds and examples."""
        return float((self._centred**2).mean())

    @cached_property
    def shared(self) -> float:
        """The part of that variance, from 0 to 1, that all seeds have in common; 1 for one seed."""
        return _in_common(self.variance, float((self._centred.sum(axis=0) ** 2).mean()), len(self.values))

    @cached_property
    def drawn_again(self) -> FloatArray:
        """[R, S, n], accuracies with the examples of each client drawn with replacement; the same for all models."""
        rng = np.random.default_rng(_SEED)
        found = np.empty((NUM_RESAMPLES, len(self.values), self.sizes.size))
        rows = np.arange(NUM_RESAMPLES)[:, None]
        for client, (start, size) in enumerate(zip(self._starts, self.sizes.astype(np.int64), strict=True)):
            chosen = rng.integers(size, size=(NUM_RESAMPLES, size)) + size * rows
            times = np.bincount(chosen.ravel(), minlength=NUM_RESAMPLES * size).reshape(NUM_RESAMPLES, size)
            found[:, :, client] = times @ self.values[:, start : start + size].T / size
        return found

    def weighted(self, slopes: FloatArray) -> "Answers":
        """What answers add to a number that changes with the accuracies of the clients by slopes [n] or [S, n]."""
        counts = self.sizes.astype(np.int64)
        return Answers(lambda: self.values * np.repeat(np.atleast_2d(slopes) / self.sizes, counts, axis=1), self.sizes)

    def of_clients(self, clients: slice) -> "Answers":
        """Those of some clients, one after the other."""
        ends = np.concatenate([self._starts, [int(self.sizes.sum())]])
        start, stop, _ = clients.indices(self.sizes.size)
        return Answers(lambda: self.values[:, ends[start] : ends[stop]], self.sizes[clients])

    def chosen(self, rows: list[int]) -> "Answers":
        """Those of some seeds."""
        return Answers(lambda: self.values[rows], self.sizes)

    def minus(self, other: "Answers | Draws") -> "Answers":
        """Example by example."""
        assert isinstance(other, Answers)
        return Answers(lambda: self.values - other.values, self.sizes)

    @property
    def _starts(self) -> npt.NDArray[np.int64]:
        starts: npt.NDArray[np.int64] = np.cumsum(np.concatenate([[0], self.sizes[:-1]])).astype(np.int64)
        return starts

    @cached_property
    def _centred(self) -> FloatArray:
        """Less the client's mean, and as large as if that were known."""
        counts = self.sizes.astype(np.int64)
        means = np.repeat(self.by_client / self.sizes, counts, axis=1)
        factor = np.sqrt(self.sizes / np.maximum(self.sizes - 1, 1))
        centred: FloatArray = (self.values - means) * np.repeat(factor, counts)
        return centred


@dataclass(frozen=True, eq=False)
class Draws:
    """A number under each seed, with the test examples of every client drawn again and again.

    The same examples are drawn for all models of the same clients, so that draws can be compared one by one.

    Attributes:
        find: computes the numbers, [R, S], when they are first asked for.
        find_shared: what seeds have in common, if it is known better than from the draws.
    """

    find: Callable[[], FloatArray]
    find_shared: Callable[[], float] | None = None

    @classmethod
    def of(
        cls,
        right: npt.ArrayLike | Answers,
        sizes: FloatArray,
        statistic: Callable[[FloatArray], FloatArray],
        find_shared: Callable[[], float],
    ) -> "Draws":
        """From a table of right and wrong [S, N], and a statistic of accuracies, [..., n] -> [...]."""
        answers = Answers.of(right, sizes)
        return cls(lambda: statistic(answers.drawn_again), find_shared)

    @cached_property
    def values(self) -> FloatArray:
        """[R, S]."""
        return self.find()

    @cached_property
    def variance(self) -> float:
        """Of the number, for one seed: a mean over seeds."""
        return float(self.values.var(axis=0, ddof=1).mean())

    @cached_property
    def shared(self) -> float:
        """The part of that variance, from 0 to 1, that all seeds have in common; 1 for one seed."""
        if self.find_shared is not None:
            return self.find_shared()
        return _in_common(self.variance, float(self.values.sum(axis=1).var(ddof=1)), self.values.shape[1])

    def chosen(self, rows: list[int]) -> "Draws":
        """Those of some seeds."""
        return Draws(lambda: self.values[:, rows])

    def minus(self, other: "Answers | Draws") -> "Draws":
        """Draw by draw."""
        assert isinstance(other, Draws)
        return Draws(lambda: self.values - other.values)


def _in_common(variance: float, of_sum: float, seeds: int) -> float:
    """What seeds share of their variance, from that of their sum."""
    if seeds == 1 or variance == 0:
        return 1.0
    return float(np.clip((of_sum / seeds - variance) / ((seeds - 1) * variance), 0.0, 1.0))


def smoothed(accuracy: FloatArray, size: FloatArray) -> FloatArray:
    """Accuracies [n] drawn towards their mean, by what the counts say of how much clients differ; never 0 or 1.

    >>> smoothed(np.array([1.0, 1.0, 0.9]), np.array([10.0, 10.0, 10.0])).round(3).tolist()
    [0.969, 0.969, 0.919]
    """
    total = float(size.sum())
    mean = float((accuracy @ size + 1) / (total + 2))
    spread = float(size @ (accuracy - mean) ** 2) / (mean * (1 - mean))
    degrees = accuracy.size - 1
    room = total - float(size @ size) / total - degrees
    alike = (spread - degrees) / room if room > 0 else 0.0  # rho: 0 if clients differ by chance only, 1 at most
    prior = 1 / min(max(alike, 1 / (1 + total)), 1 / 2) - 1
    drawn: FloatArray = mean + np.sqrt(size / (size + prior)) * (accuracy - mean)
    return drawn


def linear_noise(accuracy: FloatArray, size: FloatArray, weights: FloatArray) -> Noise:
    """Of sum w accuracy, with weights w that sum to 1."""
    p = smoothed(accuracy, size)
    variance = float((weights**2 / size) @ (p * (1 - p)))
    center = float(weights @ p)
    return Noise(variance, center * (1 - center) / variance)


def product_noise(table: FloatArray, size: FloatArray, weights: FloatArray) -> Noise:
    """Of prod accuracy^w, with weights w that sum to 1; accuracies [S, n]; see the top of this file."""
    accuracy = table.mean(axis=0)
    drawn = smoothed(accuracy, size)
    least = np.minimum(accuracy, drawn)  # a client that fails is not taken for a better one
    relative = float(weights**2 @ ((1 - drawn) / (size * least + 0.5)))
    with np.errstate(divide="ignore"):  # a product with a 0 is 0
        measured = np.exp(np.log(table) @ weights)
    whole = np.exp(np.log(_off_zero(table, size)) @ weights - relative / 2)
    center = float(np.exp(np.log(drawn) @ weights))
    variance = center**2 * relative
    return Noise(variance, center * (1 - center) / variance, tuple((measured - whole).tolist()))


def product_slopes(table: FloatArray, size: FloatArray, weights: FloatArray) -> FloatArray:
    """By how much the same product changes with the accuracies, [S, n]."""
    rates = _off_zero(table, size)
    slopes: FloatArray = np.exp(np.log(rates) @ weights)[:, None] * weights / rates
    return slopes


def _off_zero(table: FloatArray, size: FloatArray) -> FloatArray:
    """Accuracies whose logarithms are finite, and right on average."""
    rates: FloatArray = (table * size + 0.5) / (size + 0.5)
    return rates


def drawn_noise(
    statistic: Callable[[FloatArray], FloatArray],
    accuracy: FloatArray,
    size: FloatArray,
    *,
    step: float,
    is_accuracy: bool,
    is_spread: bool,
) -> Noise:
    """Of any statistic of the rows of [R, n].

    Args:
        statistic: [R, n] -> [R].
        accuracy: [n].
        size: [n].
        step: the change of the statistic when one test example turns: where no draw differs from another, as with the
            median of thousands of clients, its variance is that of rounding to a step.
        is_accuracy: the statistic is one itself, like that of the worst client.
        is_spread: it is 0 where all clients are equal, and never below.
    """
    draws = statistic(_tested_again(accuracy.tobytes(), size.tobytes()))
    variance, center = float(draws.var(ddof=1)), float(draws.mean())
    if np.ptp(draws) < step / 2:
        variance = step**2 / 12
    bounded = is_accuracy and 0 < center < 1
    return Noise(variance, center * (1 - center) / variance if bounded else None, spread=center if is_spread else None)


def drawn_agreement(
    statistic: Callable[[FloatArray], FloatArray], accuracy: FloatArray, size: FloatArray, agreed: float
) -> float:
    """The part of a statistic's noise that two seeds share, if they share the part `agreed` of that of the mean."""
    first, second = (statistic(rows) for rows in _tested_twice(accuracy.tobytes(), size.tobytes(), agreed))
    spread = first.std() * second.std()
    if spread == 0:
        return agreed
    return float(np.clip(np.mean((first - first.mean()) * (second - second.mean())) / spread, 0.0, agreed))


@lru_cache(maxsize=4)
def _tested_twice(accuracy: bytes, size: bytes, agreed: float) -> tuple[FloatArray, FloatArray]:
    """[NUM_DRAWS, n] each, accuracies of two seeds that get the same answers to a part of the examples."""
    sizes = np.frombuffer(size)
    rates = smoothed(np.frombuffer(accuracy), sizes)
    rng = np.random.default_rng(_SEED)
    same = rng.binomial(sizes.astype(np.int64), agreed, (NUM_DRAWS, sizes.size))
    common = rng.binomial(same, rates)
    rest = sizes.astype(np.int64) - same
    return (common + rng.binomial(rest, rates)) / sizes, (common + rng.binomial(rest, rates)) / sizes


@lru_cache(maxsize=4)  # several statistics look at the same table
def _tested_again(accuracy: bytes, size: bytes) -> FloatArray:
    """[NUM_DRAWS, n], accuracies on other test sets of the same sizes; from the bytes of float64 arrays [n]."""
    sizes = np.frombuffer(size)
    rates = smoothed(np.frombuffer(accuracy), sizes)
    counts = np.random.default_rng(_SEED).binomial(sizes.astype(np.int64), rates, (NUM_DRAWS, sizes.size))
    drawn: FloatArray = counts / sizes
    drawn.setflags(write=False)
    return drawn


def check_sizes(name: str, size: FloatArray) -> None:
    """Test sets must have examples, whole ones."""
    wrong = (size < 1) | (size != np.round(size))
    if wrong.any():
        client = int(np.flatnonzero(wrong)[0])
        raise DataError(f"{name} must be whole numbers >= 1; got {size[client]:g} for client {client}.")
