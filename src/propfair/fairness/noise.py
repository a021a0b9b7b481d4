r"""How far test examples alone move a statistic of client accuracies.

Client i has $n_i$ test examples, of which a model gets $x_i$ right. Were they drawn again, $x_i$ would be binomial with
the client's accuracy $p_i$ on all its examples. Put in for $p_i$, the measured accuracy would call a client with all
answers right free of noise, so accuracies are drawn towards their mean first, the more the more alike clients are:

$$\tilde p_i = \bar p + \sqrt{n_i / (n_i + a)} \, (x_i / n_i - \bar p), \quad a = 1 / \hat\rho - 1,$$

with the correlation $\hat\rho$ of two examples of a client from the counts themselves (Kleinman 1973) and the square
root that makes them as different as clients are, where the factor itself would make them too alike (Louis 1984).

A weighted mean then has the variance $\sum_i w_i^2 \tilde p_i (1 - \tilde p_i) / n_i$. For any other statistic the
counts are drawn again from $\tilde p$ (the parametric bootstrap, Efron and Tibshirani 1993, section 6.5), and its
variance is that of the draws. Only the variance is taken from them: the interval stays around the number measured, and
is one for its mean over test sets of this size. The variance of a measure of spread is known no better than from n
clients: Student's quantile with n - 1 degrees of freedom takes the place of the normal one.

Models of several seeds, and models that are compared, are tested on the same examples, and an example that is hard for
one is hard for the others. How much is seen from the answers themselves, where they are kept: the part of the variance
over a client's examples that two seeds share is their covariance over these examples, and a difference of two models
has the variance of the differences of their answers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from propfair.errors import DataError
from propfair.fairness.arrays import FloatArray

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
        df: degrees of freedom that the variance is known with.
        least_bias, most_bias: by how much the noise raises the number on average: bounds, equal if it is known.
    """

    variance: float
    num_effective: float | None = None
    df: float = math.inf
    least_bias: float = 0.0
    most_bias: float = 0.0


@dataclass(frozen=True, eq=False)
class Answers:
    """Which test examples a model gets right, or any other number for each of them.

    Attributes:
        values: [S, N], one row per seed, the examples of the first client first; each times what it counts for.
        sizes: [n], examples of each client; they sum to N.
    """

    values: FloatArray
    sizes: FloatArray

    @classmethod
    def of(cls, right: "npt.ArrayLike | Answers", sizes: FloatArray) -> "Answers":
        """From a table of right and wrong."""
        if isinstance(right, Answers):
            return right
        values = np.atleast_2d(np.asarray(right, dtype=np.float64))
        total = int(sizes.sum())
        if values.ndim != 2 or values.shape[1] != total:
            raise DataError(f"answers must have one column for each of {total} test examples; got {values.shape}.")
        return cls(values, sizes)

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
        return Answers(self.values * np.repeat(np.atleast_2d(slopes) / self.sizes, counts, axis=1), self.sizes)

    def chosen(self, rows: list[int]) -> "Answers":
        """Those of some seeds."""
        return Answers(self.values[rows], self.sizes)

    def minus(self, other: "Answers | Draws") -> "Answers":
        """Example by example."""
        assert isinstance(other, Answers)
        return Answers(self.values - other.values, self.sizes)

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
        least_shared: what seeds have in common at least.
    """

    find: Callable[[], FloatArray]
    least_shared: Callable[[], float] = lambda: 0.0

    @classmethod
    def of(
        cls, right: npt.ArrayLike | Answers, sizes: FloatArray, statistic: Callable[[FloatArray], FloatArray]
    ) -> "Draws":
        """From a table of right and wrong [S, N], and a statistic of accuracies, [..., n] -> [...]."""
        answers = Answers.of(right, sizes)
        return cls(lambda: statistic(answers.drawn_again))

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
        own = _in_common(self.variance, float(self.values.sum(axis=1).var(ddof=1)), self.values.shape[1])
        return max(own, self.least_shared())

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


def drawn_noise(
    statistic: Callable[[FloatArray], FloatArray],
    accuracy: FloatArray,
    size: FloatArray,
    *,
    is_accuracy: bool,
    df: float = math.inf,
) -> Noise:
    """Of any statistic of the rows of [R, n].

    Args:
        statistic: [R, n] -> [R].
        accuracy: [n].
        size: [n].
        is_accuracy: the statistic is one itself, like that of the worst client.
        df: degrees of freedom of the variance.
    """
    rng = np.random.default_rng(_SEED)
    counts = rng.binomial(size.astype(np.int64), smoothed(accuracy, size), (NUM_DRAWS, size.size))
    draws = statistic(counts / size)
    variance, center = float(draws.var(ddof=1)), float(draws.mean())
    bounded = is_accuracy and variance > 0
    return Noise(variance, center * (1 - center) / variance if bounded else None, df=df)


def check_sizes(name: str, size: FloatArray) -> None:
    """Test sets must have examples, whole ones."""
    wrong = (size < 1) | (size != np.round(size))
    if wrong.any():
        client = int(np.flatnonzero(wrong)[0])
        raise DataError(f"{name} must be whole numbers >= 1; got {size[client]:g} for client {client}.")
