r"""How surely a number is known: intervals over seeds, over test examples, and over both.

A number x (a mean accuracy, a difference, a certificate) was measured under S seeds on one test set. What an interval
covers depends on what would be drawn again:

- *over seeds*: the mean of x over all seeds, on this test set. With the sample variance s^2, Student's interval
  $\bar x \pm t_{S-1} s / \sqrt S$ (Student 1908).
- *over examples*: x of these trained models on all examples of the clients. With the variance v that the test examples
  give to x, $\bar x \pm z \sqrt v$; for accuracies v follows the accuracy itself, $v = x (1 - x) / m$ with m examples,
  and the limits are Wilson's (1927), for one client with his continuity correction (Newcombe 1998).
- *over both*: the mean over seeds and examples. The two half-widths are added as sides of a right angle,
  $t_{S-1}^2 s^2 / S + z^2 v$ (the variance recovery of Zou and Donner 2008), with the part of v that seeds share. It
  does not cover less than it says; with two or three seeds, which hardly know their own variance, it covers more, see
  docs/statistics.md. With Satterthwaite's degrees of freedom it would cover 87 % with two seeds.

All three are one quadratic equation in the limit $\theta$,

$$(\bar x - \theta)^2 = t_{S-1}^2 s^2 / S + z^2 v(\theta).$$

Numbers from test examples move in steps, and a few seeds may agree to the last digit by luck. A standard deviation over
seeds below $(1 - 1/S)$ times that of rounding to one step, $h / \sqrt{12}$, is taken as that (Sheppard 1898 for the
last factor; the first one was found by simulation).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from propfair.errors import ConfigError, DataError
from propfair.fairness.arrays import FloatArray, vector
from propfair.fairness.noise import Answers, Noise

Over = Literal["seeds", "examples", "both", "nothing"]
_LEFT_OUT = {
    "seeds": "other test examples",
    "examples": "other seeds",
    "both": "",
    "nothing": "all chance: the numbers are taken as exact",
}


@dataclass(frozen=True)
class Interval:
    """An interval around a number.

    Attributes:
        value: the number, a mean over seeds where there are several.
        low, high: the ends.
        level: how often intervals like this one cover the truth; all of a family together if it has several.
        over: what would be drawn again: "seeds", "examples", "both", or "nothing" for numbers taken as exact.
        num_seeds: that the value is a mean of.
        family: intervals that hold together at this level; 1 for an interval of its own.
    """

    value: float
    low: float
    high: float
    level: float
    over: Over
    num_seeds: int
    family: int = 1

    @property
    def leaves_out(self) -> str:
        """The chance that the interval knows nothing of; empty if it knows of seeds and of examples.

        >>> Interval(0.5, 0.4, 0.6, 0.95, "examples", 1).leaves_out
        'other seeds'
        """
        return _LEFT_OUT[self.over]

    @property
    def source(self) -> str:
        """What was drawn again, in words: `over 5 seeds`."""
        seeds = f"{self.num_seeds} seed{'' if self.num_seeds == 1 else 's'}"
        return {
            "seeds": f"over {seeds}",
            "examples": "over test examples",
            "both": f"over {seeds} and test examples",
            "nothing": "numbers taken as exact",
        }[self.over]

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    def __str__(self) -> str:
        return f"[{100 * self.low:+.2f} %, {100 * self.high:+.2f} %]"


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that was measured of one number.

    Attributes:
        by_seed: [S], the number under each seed, on the same test examples.
        step: the change of the number when one test example turns, about; 0 if it is not known.
        find_noise: computes the noise of the test examples under one seed, when it is first asked for; None if it is
            not known.
        answers: what each test example adds to the number, to first order; None if it is not known. They say how much
            of the noise seeds, and models that are compared, have in common.
        is_linear: the number is a weighted mean of accuracies, or a difference of such means.
        bounds: the least and the largest value there can be.
        same: the number compares a model with itself, by all that is known: it is no comparison.
    """

    by_seed: FloatArray
    step: float = 0.0
    find_noise: Callable[[], Noise] | None = None
    answers: Answers | None = None
    is_linear: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)
    same: bool = False

    def __post_init__(self) -> None:
        vector("by_seed", self.by_seed)

    @property
    def num_seeds(self) -> int:
        """How many seeds there are."""
        return int(self.by_seed.size)

    @property
    def value(self) -> float:
        """The mean over seeds."""
        return float(self.by_seed.mean())

    @property
    def key(self) -> tuple[bytes, Noise | None]:
        """The same for two comparisons with the same numbers."""
        return self.by_seed.tobytes(), self.noise if self.over == "examples" else None

    @property
    def over(self) -> Over | None:
        """What intervals are drawn over unless told: seeds if there are several, else examples, else None."""
        if self.num_seeds > 1:
            return "seeds"
        return "examples" if self.find_noise is not None else None

    @cached_property
    def noise(self) -> Noise:
        """Of the test examples, under one seed."""
        if self.find_noise is None:
            raise DataError("an interval over examples needs accuracies and the number of test examples.")
        return self.find_noise()

    @cached_property
    def seed_variance(self) -> float:
        """The variance of one seed's number, never below that of rounding to a step."""
        size = self.num_seeds
        if size < 2:
            raise DataError("an interval over seeds needs two seeds or more; got one. Train with more seeds.")
        return max(float(self.by_seed.var(ddof=1)), ((1 - 1 / size) * self.step) ** 2 / 12)

    def interval(self, over: Over | None = None, level: float = 0.95, family: int = 1) -> Interval:
        """The interval, one of `family` that hold together at `level` (Bonferroni).

        >>> Evidence(np.array([0.61, 0.64, 0.63])).interval().low.__round__(4)
        0.5887
        """
        over = over or self.over
        if over is None:
            raise DataError(
                "one seed, and the noise of its test examples is not known: there is no interval. Train with two seeds "
                "or more, or use accuracies with the number of test examples."
            )
        if not 0 < level < 1:
            raise ConfigError(f"level must be a fraction with 0 < level < 1; got level={level}. Use 0.95 for 95 %.")
        if over == "nothing":
            low = high = self.value
        else:
            low, high = self._limits((1 - level) / family, over)
        low, high = np.clip([low, high], *self.bounds).tolist()
        return Interval(self.value, low, high, level, over, self.num_seeds, family)

    def foreseen(self, interval: Interval, more: float) -> tuple[float, float]:
        """The limits that an interval would have with `more` times the seeds (or examples), were all else the same."""
        alpha = (1 - interval.level) / interval.family
        if interval.over == "nothing":
            return interval.low, interval.high
        if interval.over == "examples":
            return self._limits(alpha, "examples", times_examples=more)
        return self._limits(alpha, interval.over, num_seeds=math.ceil(more * self.num_seeds))

    def p_value(self, over: Over | None = None) -> float:
        """The largest error probability at which an interval of its own has 0 inside: the two-sided test of 0."""
        over = over or self.over
        if self.same or over is None:
            return 1.0
        if over == "nothing":
            return float(self.value == 0)
        low, high = -230.0, 0.0  # of log alpha: below 1e-100 is 0
        if self._excludes_zero(low, over):
            return 0.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if self._excludes_zero(middle, over) else (middle, high)
        return math.exp(high)

    def _excludes_zero(self, log_alpha: float, over: Over) -> bool:
        low, high = self._limits(math.exp(log_alpha), over)
        return low > 0 or high < 0

    def _limits(
        self, alpha: float, over: Over, num_seeds: int | None = None, times_examples: float = 1.0
    ) -> tuple[float, float]:
        """Both solutions of the equation at the top, for an error probability alpha; or those foreseen."""
        width = 0.0
        if over != "examples":
            size = num_seeds or self.num_seeds
            width = student_quantile(alpha, size - 1) ** 2 * self.seed_variance / size
        if over == "seeds":
            return self.value - math.sqrt(width), self.value + math.sqrt(width)
        shared = 1.0 if self.answers is None else self.answers.shared  # 1 is the most there can be
        part = shared if over == "both" else shared + (1 - shared) / self.num_seeds
        noise = self.noise
        quantile = normal_quantile(alpha) if noise.df == math.inf else student_quantile(alpha, noise.df)
        squared = quantile**2 * part / times_examples
        if noise.num_effective is None:
            half = math.sqrt(width + squared * noise.variance)
            low, high = noise.most_bias / times_examples + half, half - noise.least_bias / times_examples
            return self.value - low, self.value + high
        ends = []
        for sign in (-1, 1):
            value = min(max(self.value + sign * noise.continuity / times_examples, 0.0), 1.0)
            ratio = squared / noise.num_effective
            center = (value + ratio / 2) / (1 + ratio)
            root = math.sqrt(max(0.0, center**2 - (value**2 - width) / (1 + ratio)))
            ends.append(center + sign * root)
        return ends[0], ends[1]


def student_quantile(alpha: float, df: float) -> float:
    """Student's t that is exceeded, in absolute value, with probability alpha."""
    from scipy import special  # here, since it takes longer to import than all of the theory

    return -float(special.stdtrit(df, alpha / 2))


def normal_quantile(alpha: float) -> float:
    """The normal z that is exceeded, in absolute value, with probability alpha."""
    from scipy import special

    return -float(special.ndtri(alpha / 2))
