"""What the best hyper-parameters are best at: one number from the accuracies of the clients."""

from collections.abc import Mapping
from dataclasses import dataclass

from propfair.errors import ConfigError, unknown
from propfair.fairness.statistics import ClientStatistics

CRITERIA = {
    "mean": "mean",
    "weighted_mean": "weighted_mean",
    "median": "median",
    "worst": "worst",
    "worst10": "worst10",
    "worst20": "worst20",
    "worst30": "worst30",
    "nash": "nash_welfare",
}


@dataclass(frozen=True)
class Criterion:
    """A weighted mix of named statistics; more is better.

    Args:
        weights: by name, see `CRITERIA`; positive.

    >>> Criterion.parse("worst10")
    Criterion(weights={'worst10': 1.0})
    >>> str(Criterion.parse("mean=0.5,worst10=0.5"))
    '0.5 mean + 0.5 worst10'
    """

    weights: dict[str, float]

    @classmethod
    def parse(cls, given: str | Mapping[str, float]) -> "Criterion":
        """Read `worst10`, `mean=0.5,worst10=0.5`, or a table of weights."""
        if isinstance(given, str):
            pairs = [part.partition("=") for part in given.split(",")]
            try:
                given = {name.strip(): float(weight) if equals else 1.0 for name, equals, weight in pairs}
            except ValueError:
                raise ConfigError(f"a mix of criteria looks like mean=0.5,worst10=0.5; got {given!r}") from None
        if not given:
            raise ConfigError(f"criterion must name at least one of: {', '.join(CRITERIA)}")
        for name, weight in given.items():
            if name not in CRITERIA:
                raise unknown("criterion", name, CRITERIA)
            if not 0 < weight < float("inf"):
                raise ConfigError(f"the weight of criterion {name!r} must be a positive number; got {weight}")
        return cls(dict(given))

    def of(self, statistics: ClientStatistics) -> float:
        """The number to maximise."""
        values = statistics.as_dict()
        return sum(weight * values[CRITERIA[name]] for name, weight in self.weights.items())

    def __str__(self) -> str:
        if len(self.weights) == 1 and next(iter(self.weights.values())) == 1:
            return next(iter(self.weights))
        return " + ".join(f"{weight:g} {name}" for name, weight in self.weights.items())
