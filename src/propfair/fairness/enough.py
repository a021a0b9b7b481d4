"""Whether there are enough data for an interval that covers what it says; if not, none is given, and why.

A number that rests on a handful of answers has a handful of values, and no interval covers 95 % of such a number: the
choice is between much less and much more. The bounds below were found with `python -m benchmarks.coverage`; with them,
what is given covers 95 % within two points (docs/statistics.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from propfair.fairness.arrays import FloatArray

EXAMPLES = 20  # behind the accuracy of one client, or of the worst ones
EXAMPLES_OF_TWO_SEEDS = 100  # likewise: two seeds often agree to the last digit
ANSWERS = 5  # right and wrong ones, behind the accuracy of the worst or best clients, or a quantile
ANSWERS_OF_ONE = 10  # right and wrong ones, behind the accuracy of one client
ANSWERS_OF_EACH = 4  # right ones of every client, behind a product or a quotient
ANSWERS_OF_ALL = 20  # right and wrong ones of all clients together, behind a measure of spread or the noise of a mean
ANSWERS_OF_NOISE = 50  # likewise, for the noise of anything but a mean
_UNKNOWN = (
    "how often models are right on the same test examples is not known, and an interval for all cases would be far too "
    "wide. Use more seeds, or the answers themselves (certify --paired)."
)


@dataclass(frozen=True)
class Counts:
    """Right and wrong answers, means over seeds.

    Attributes:
        examples: test examples of the clients that a number looks at.
        right, wrong: of these clients together.
        right_of_one: of the client with the fewest right answers.
    """

    examples: float
    right: float
    wrong: float
    right_of_one: float

    @classmethod
    def of(cls, accuracy: FloatArray, sizes: FloatArray) -> "Counts":
        """From accuracies [S, n] and sizes [n]."""
        right = accuracy.mean(axis=0) * sizes
        return cls(float(sizes.sum()), float(right.sum()), float((sizes - right).sum()), float(right.min()))

    @property
    def fewer(self) -> float:
        """Right or wrong ones, whichever are fewer."""
        return min(self.right, self.wrong)


def too_few_for_some(behind: Counts, num_seeds: int, answers: int = ANSWERS) -> dict[str, str]:
    """For the accuracy of one client, or of some."""
    reason = ""
    if behind.examples < EXAMPLES:
        reason = f"it rests on {behind.examples:.0f} test examples, and {EXAMPLES} are needed."
    elif behind.fewer < answers:
        reason = f"it rests on {behind.fewer:.3g} {_which(behind)} answers, and {answers} are needed."
    if reason:
        return dict.fromkeys(("seeds", "examples", "both"), reason)
    if num_seeds == 2 and behind.examples < EXAMPLES_OF_TWO_SEEDS:
        reason = (
            f"with two seeds {EXAMPLES_OF_TWO_SEEDS} test examples are needed behind it, and it rests on "
            f"{behind.examples:.0f}. Train with a third seed."
        )
        return dict.fromkeys(("seeds", "both"), reason)
    return {}


def too_few_for_product(behind: Counts) -> dict[str, str]:
    """For what is lost with one client's last right answer, or has a client's right answers in the denominator."""
    if behind.right_of_one >= ANSWERS_OF_EACH:
        return {}
    reason = (
        f"a client has {behind.right_of_one:.2g} right answers, and {ANSWERS_OF_EACH} are needed of every one. Use "
        "more test examples, or a utility such as M - loss."
    )
    return dict.fromkeys(("seeds", "examples", "both"), reason)


def too_few_for_spread(behind: Counts) -> dict[str, str]:
    """For measures of spread and of equality."""
    if behind.fewer >= ANSWERS_OF_ALL:
        return {}
    reason = f"there are {behind.fewer:.3g} {_which(behind)} answers in all, and {ANSWERS_OF_ALL} are needed."
    return dict.fromkeys(("seeds", "examples", "both"), reason)


def too_few_for_noise(behind: Counts, *, is_mean: bool) -> dict[str, str]:
    """For how far test examples move a number."""
    least = ANSWERS_OF_ALL if is_mean else ANSWERS_OF_NOISE
    if behind.fewer < least:
        reason = f"there are {behind.fewer:.3g} {_which(behind)} answers in all, and {least} are needed."
        return dict.fromkeys(("examples", "both"), reason)
    apart = {} if is_mean else too_few_for_product(behind)
    return {over: reason for over, reason in apart.items() if over != "seeds"}


def not_agreed(*overs: str) -> dict[str, str]:
    """For numbers of several models, or of several seeds, whose answers were not kept."""
    return dict.fromkeys(overs, _UNKNOWN)


def not_the_same_clients() -> dict[str, str]:
    """For differences between the worst clients of two models, over test examples."""
    return {"examples": "the worst clients of two models are others with other test examples. Use more seeds."}


def either(*withheld: Mapping[str, str]) -> dict[str, str]:
    """What some of them withhold; the first reason stands."""
    return {over: reason for one in reversed(withheld) for over, reason in one.items()}


def _which(behind: Counts) -> str:
    return "right" if behind.right <= behind.wrong else "wrong"
