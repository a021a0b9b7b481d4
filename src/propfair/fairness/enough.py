"""Whether there are enough data for an interval that covers what it says; if not, none is given, and why."""

from collections.abc import Mapping

from propfair.fairness.arrays import FloatArray

ANSWERS_OF_PRODUCT, ANSWERS_OF_QUOTIENT = 2, 6  # right ones of every client; found with `benchmarks.coverage`
_UNKNOWN = (
    "how often models are right on the same test examples is not known, and an interval for all cases would be far too "
    "wide. Use more seeds, or the answers themselves: runs keep them, and certify --paired asks the models again."
)


def too_few_for_product(accuracy: FloatArray, sizes: FloatArray) -> dict[str, str]:
    """For what is lost with a client's last right answer: accuracies [S, n] and test examples [n]."""
    return _too_few(accuracy, sizes, ANSWERS_OF_PRODUCT, "examples", "both")


def too_few_for_quotient(accuracy: FloatArray, sizes: FloatArray) -> dict[str, str]:
    """For what has a client's right answers in the denominator, likewise."""
    return _too_few(accuracy, sizes, ANSWERS_OF_QUOTIENT, "examples")


def not_agreed(*overs: str) -> dict[str, str]:
    """For numbers of several models, or of several seeds, whose answers were not kept."""
    return dict.fromkeys(overs, _UNKNOWN)


def _too_few(accuracy: FloatArray, sizes: FloatArray, needed: int, *overs: str) -> dict[str, str]:
    fewest = float((accuracy.mean(axis=0) * sizes).min())
    if fewest >= needed:
        return {}
    reason = f"a client has {fewest:.2g} right answers, and {needed} are needed of every one"
    return dict.fromkeys(overs, f"{reason}. Use several seeds, more test examples, or a utility such as M - loss.")


def either(*withheld: Mapping[str, str]) -> dict[str, str]:
    """What some of them withhold; the first reason stands."""
    return {over: reason for one in reversed(withheld) for over, reason in one.items()}
