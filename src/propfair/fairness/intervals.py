r"""How surely a number is known: intervals over seeds, over test examples, and over both.

A number x (a mean accuracy, a difference, a certificate) was measured under S seeds on one test set. What an interval
covers depends on what would be drawn again:

- *over seeds*: the mean of x over all seeds, on this test set. With the sample variance s^2, Student's interval
  $\bar x \pm t_{S-1} s / \sqrt S$ (Student 1908).
- *over examples*: x of these trained models on all examples of the clients. With the variance v that the test examples
  give to x, $\bar x \pm z \sqrt v$; for accuracies the limits are those of a binomial rate, x of m examples with
  $v = x (1 - x) / m$, at which what was seen, or more of it, has the mid-P probability $\alpha / 2$ (Lancaster 1961,
  Agresti and Gottard 2007): near 0 and 1 they lie unevenly around x. For measures of spread, never below 0, the
  square root has the same variance everywhere, $(\sqrt x \pm \tfrac12 z \sqrt{v / x})^2$ (Bartlett 1936).
- *over both*: the mean over seeds and examples. Each limit is as far from x as the two limits of its side together, the
  squares added (Zou and Donner 2008), with l and u the limits over examples and c the part of v that seeds share:

  $$\bar x - \sqrt{q^2 s^2 / S + c (\bar x - l)^2}, \qquad \bar x + \sqrt{q^2 s^2 / S + c (u - \bar x)^2}.$$

  Of the two variances one is known and one estimated with S - 1 degrees of freedom, so that q goes from z, where
  examples outweigh seeds, to t, where seeds outweigh examples: $q^2 = (z^2 + w t^2) / (1 + w)$,
  $w = (t / z)^{3/2} (s^2 / (S c v))^2$. This form keeps what is known at both ends (Welch 1947) and was chosen so that
  coverage is right between them, for every ratio of the variances: within 1.8 points of 95 % with two seeds, 0.6 with
  three or more. Both half-widths in full (q = t) would cover 98.7 %, Satterthwaite's degrees of freedom 87 % with two
  seeds.

Where noise moves a number to one side of its value on all examples (the Nash welfare, the certificate), the limits over
examples and over both are around the number with that taken off, seed by seed.

Where an interval would not cover what it says, none is given (`Evidence.why_not`).

Numbers from test examples move in steps, and a few seeds may agree to the last digit by luck. A standard deviation over
seeds below $(1 - 1/S)$ times that of rounding to one step, $h / \sqrt{12}$, is taken as that (Sheppard 1898 for the
last factor; the first one was found by simulation).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from propfair.errors import ConfigError, DataError
from propfair.fairness.arrays import FloatArray, vector
from propfair.fairness.noise import Answers, Draws, Noise
from propfair.fairness.quantiles import normal_quantile, student_quantile, student_tails

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
        answers: what each test example adds to the number, or the number itself with examples drawn again; None if
            that is not known. They say how much of the noise seeds, and models that are compared, have in common.
        bounds: the least and the largest value there can be.
        withheld: why no interval over "seeds", "examples" or "both" is given, where data are too few for one that
            covers what it says.
        jump: the change of the number with the last right answer of a client that may lose it under another seed.
        same: the number compares a model with itself, by all that is known: it is no comparison.
    """

    by_seed: FloatArray
    step: float = 0.0
    find_noise: Callable[[], Noise] | None = None
    answers: Answers | Draws | None = None
    bounds: tuple[float, float] = (-math.inf, math.inf)
    withheld: Mapping[str, str] = field(default_factory=dict)
    same: bool = False
    jump: float = 0.0

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
        """What intervals are drawn over unless told: seeds if there are several, else examples; None if not known."""
        usual: Over = "seeds" if self.num_seeds > 1 else "examples"
        return None if self.why_not(usual) else usual

    def why_not(self, over: Over) -> str:
        """Why there is no interval over seeds, examples or both; empty if there is one."""
        if over in ("seeds", "both") and self.num_seeds < 2:
            return "an interval over seeds needs two seeds or more; got one. Train with more seeds."
        if over in ("examples", "both") and self.find_noise is None:
            return "an interval over examples needs accuracies and the number of test examples."
        return self.withheld.get(over, "")

    def nearest(self, wanted: Over | None) -> Over | None:
        """What an interval can be drawn over if `wanted` is asked for: that; for one seed its examples; else None."""
        if wanted is None:
            return self.over
        nearest: Over = "examples" if wanted in ("seeds", "both") and self.num_seeds < 2 else wanted
        return None if self.why_not(nearest) else nearest

    @cached_property
    def noise(self) -> Noise:
        """Of the test examples, under one seed."""
        if self.find_noise is None:
            raise DataError(self.why_not("examples"))
        return self.find_noise()

    @property
    def shared(self) -> float:
        """The part of the noise of the test examples that all seeds have in common; 1 is the most there can be."""
        return 1.0 if self.answers is None else self.answers.shared

    @cached_property
    def seed_variance(self) -> float:
        """The variance of one seed's number, never below that of rounding to a step."""
        return self._variance(self.by_seed, max(self.step, self.jump))

    def interval(self, over: Over | None = None, level: float = 0.95, family: int = 1) -> Interval:
        """The interval, one of `family` that hold together at `level` (Bonferroni).

        >>> Evidence(np.array([0.61, 0.64, 0.63])).interval().low.__round__(4)
        0.5887
        """
        over = over or self.over or ("seeds" if self.num_seeds > 1 else "examples")
        if self.why_not(over):
            raise DataError(self.why_not(over))
        if not 0 < level < 1:
            raise ConfigError(f"level must be a fraction with 0 < level < 1; got level={level}. Use 0.95 for 95 %.")
        if over == "nothing":
            low = high = self.value
        else:
            low, high = self.limits_foreseen((1 - level) / family, over)
        low, high = np.clip([low, high], *self.bounds).tolist()
        return Interval(self.value, low, high, level, over, self.num_seeds, family)

    def p_value(self, over: Over | None = None) -> float:
        """The largest error probability at which an interval of its own has 0 inside: the two-sided test of 0."""
        over = over or self.over
        if self.same or over is None:
            return 1.0
        if over == "nothing":
            return float(self.value == 0)
        if over == "seeds":
            error = math.sqrt(self.seed_variance / self.num_seeds)
            return student_tails(abs(self.value) / error, self.num_seeds - 1) if error > 0 else float(self.value == 0)
        low, high = -230.0, 0.0  # of log alpha: below 1e-100 is 0
        if self._excludes_zero(low, over):
            return 0.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self._excludes_zero(middle, over) else (middle, high)
        return math.exp(high)

    def _excludes_zero(self, log_alpha: float, over: Over) -> bool:
        low, high = self.limits_foreseen(math.exp(log_alpha), over)
        return low > 0 or high < 0

    def limits_foreseen(
        self, alpha: float, over: Over, *, num_seeds: int | None = None, seed_variance: float | None = None,
        times_examples: float = 1.0,
    ) -> tuple[float, float]:  # fmt: skip
        """The limits at the top of this file, for an error probability alpha.

        With other numbers of seeds, of examples, or another variance of seeds than there are: the limits to expect.
        """
        size = num_seeds or self.num_seeds
        if over == "seeds":
            variance = (self.seed_variance if seed_variance is None else seed_variance) / size
            half = student_quantile(alpha, size - 1) * math.sqrt(variance)
            return self.value - half, self.value + half
        noise, shared = self.noise, self.shared
        by_seed = self.by_seed - np.asarray(noise.bias) / times_examples
        x, one = float(by_seed.mean()), noise.variance / times_examples
        variance, part = 0.0, shared + (1 - shared) / self.num_seeds
        if over == "both":
            part = shared
            variance = (self._variance(by_seed, self.step) if seed_variance is None else seed_variance) / size
        of_seeds = variance * _seed_quantile(alpha, size - 1, variance, part * one) if variance > 0 else 0.0
        low, high = noise.limits(x, alpha, times_examples)
        return x - math.sqrt(of_seeds + part * (x - low) ** 2), x + math.sqrt(of_seeds + part * (high - x) ** 2)

    def _variance(self, by_seed: FloatArray, step: float) -> float:
        if by_seed.size < 2:
            raise DataError(self.why_not("seeds"))
        return max(float(by_seed.var(ddof=1)), ((1 - 1 / by_seed.size) * step) ** 2 / 12)


def _seed_quantile(alpha: float, df: float, seeds: float, examples: float) -> float:
    """The square of the quantile that the variance of the seeds is multiplied with, beside one that is known."""
    t, z = student_quantile(alpha, df), normal_quantile(alpha)
    if examples <= 0:
        return t**2
    weight = (t / z) ** 1.5 * (seeds / examples) ** 2
    return float((z**2 + weight * t**2) / (1 + weight))
