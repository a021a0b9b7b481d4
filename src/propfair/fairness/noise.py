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
is one for its mean over test sets of this size. The variance of a number that all clients add to unevenly, such as
their spread or the Nash welfare, is known no better than from n clients: Student's quantile with n - 1 degrees of
freedom takes the place of the normal one.

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
_SEED = 0  # the same numbers in, the same interval out


@dataclass(frozen=True)
class Noise:
    """How far test examples alone may move a number.

    Attributes:
        variance: of the number, if the test examples are drawn again.
        num_effective: for accuracies, the number m of examples in x (1 - x) / m that has this variance; None for
            numbers that are no accuracies, whose variance is taken to be the same wherever the truth is.
        continuity: half the distance of two values that the number can take, if it takes so few that it matters.
        df: degrees of freedom that the variance is known with.
        least_bias, most_bias: by how much the noise raises the number on average: bounds, equal if it is known.
    """

    variance: float
    num_effective: float | None = None
    continuity: float = 0.0
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
    def of(cls, right: npt.ArrayLike, sizes: FloatArray) -> "Answers":
        """From a table of right and wrong."""
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
        seeds = len(self.values)
        if seeds == 1 or self.variance == 0:
            return 1.0
        together = float((self._centred.sum(axis=0) ** 2).mean())
        return float(np.clip((together / seeds - self.variance) / ((seeds - 1) * self.variance), 0.0, 1.0))

    def weighted(self, slopes: FloatArray) -> "Answers":
        """What answers add to a number that changes with the accuracies of the clients by slopes [n] or [S, n]."""
        counts = self.sizes.astype(np.int64)
        return Answers(self.values * np.repeat(np.atleast_2d(slopes) / self.sizes, counts, axis=1), self.sizes)

    def minus(self, other: "Answers") -> "Answers":
        """Example by example."""
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
    """Of sum w accuracy, with weights w that sum to 1. One client's accuracy has few values and is corrected for it."""
    p = smoothed(accuracy, size)
    variance = float((weights**2 / size) @ (p * (1 - p)))
    center = float(weights @ p)
    return Noise(variance, center * (1 - center) / variance, continuity=1 / (2 * size[0]) if size.size == 1 else 0.0)


def drawn_noise(
    statistic: Callable[[FloatArray], FloatArray],
    accuracy: FloatArray,
    size: FloatArray,
    *,
    is_accuracy: bool,
    df: float,
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
