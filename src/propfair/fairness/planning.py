r"""How many seeds, or test examples, would decide what is undecided: a power calculation.

What there is says how large the change is and how much it varies from seed to seed. With N seeds that look like them, a
limit $\bar x \mp h$ with the half-width $h = t_{N-1} \sigma / \sqrt N$ is on the right side of a bound b with
probability $\Phi((|\theta - b| - h) \sqrt N / \sigma)$. The least N at which that is 80 % for the limits that a verdict
needs is the answer (Cohen 1988, section 2.3, with Student's t in the half-width).

A few seeds hardly know their $\sigma$, and half of all plans made with the estimate itself fall short. In its place
stands the limit that it exceeds in one case of five, $s \sqrt{(S - 1) / \chi^2_{0.2, S - 1}}$ (Browne 1995).
"""

import math
from collections.abc import Mapping

from propfair.fairness.intervals import Evidence, Interval

POWER = 0.8
MOST = 100  # times the examples, or seeds: more is no plan


def seeds_to_decide(found: Mapping[str, tuple[Evidence, Interval]], tolerance: float) -> int | None:
    """The least number of seeds that would decide with the probability `POWER`; None if it is above `MOST`.

    Args:
        found: model to the evidence on its certificate and the interval over seeds, or over both, that it has now.
        tolerance: an average change up to this counts as none.
    """
    most_seeds = max(interval.num_seeds for _, interval in found.values())
    for number in range(most_seeds + 1, MOST + 1):
        limits = {name: _foreseen(evidence, interval, number) for name, (evidence, interval) in found.items()}
        if _decides(limits, tolerance):
            return number
    return None


def examples_to_decide(found: Mapping[str, tuple[Evidence, Interval]], tolerance: float) -> float | None:
    """As `seeds_to_decide`, for intervals over examples: how many times the test examples."""
    times = 1.1
    while times <= MOST:
        limits = {}
        for name, (evidence, interval) in found.items():
            alpha = (1 - interval.level) / interval.family
            low, high = evidence.limits_foreseen(alpha, "examples", times_examples=times)
            limits[name] = low, high, math.sqrt(evidence.noise.variance / times)
        if _decides(limits, tolerance):
            return times
        times *= 1.1
    return None


def _foreseen(evidence: Evidence, interval: Interval, num_seeds: int) -> tuple[float, float, float]:
    """Both limits with so many seeds, and the standard deviation of their middle."""
    alpha = (1 - interval.level) / interval.family
    variance = evidence.seed_variance * _doubt(evidence.num_seeds)
    low, high = evidence.limits_foreseen(alpha, interval.over, num_seeds=num_seeds, seed_variance=variance)
    noise = evidence.noise.variance if interval.over == "both" else 0.0
    return low, high, math.sqrt(variance / num_seeds + noise)


def _doubt(num_seeds: int) -> float:
    """By how much a variance over seeds may exceed its estimate: in four cases of five by no more."""
    from scipy import special

    return (num_seeds - 1) / float(special.chdtri(num_seeds - 1, POWER))


def _decides(limits: Mapping[str, tuple[float, float, float]], tolerance: float) -> bool:
    """Some model would refute, or none would leave room for a refutation, with the probability `POWER`."""
    refuted = max(_chance(low, std) for low, _, std in limits.values())
    open_still = sum(1 - _chance(tolerance - high, std) for _, high, std in limits.values())
    return refuted >= POWER or open_still <= 1 - POWER


def _chance(distance: float, std: float) -> float:
    """That a limit which is expected at a distance on the right side of a bound falls there."""
    from scipy import special

    return float(special.ndtr(distance / std)) if std > 0 else float(distance > 0)
