"""What the best hyper-parameters are best at: one number from what was measured of the clients."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from propfair.errors import ConfigError, unknown
from propfair.fairness.statistics import ClientStatistics
from propfair.runs.measures import ACCURACY, Measure
from propfair.runs.run import Run

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
_OF = " of "


@dataclass(frozen=True)
class Criterion:
    """A weighted mix of named statistics of one metric.

    Args:
        weights: by name, see `CRITERIA`; positive.
        metric: of the clients; empty: the most telling of the task, which is the accuracy where there is one.

    >>> Criterion.parse("worst10")
    Criterion(weights={'worst10': 1.0}, metric='')
    >>> str(Criterion.parse("mean=0.5,worst10=0.5 of rmse"))
    '0.5 mean + 0.5 worst10 of rmse'
    """

    weights: dict[str, float]
    metric: str = ""

    @classmethod
    def parse(cls, given: str | Mapping[str, float]) -> "Criterion":
        """Read `worst10`, `mean=0.5,worst10=0.5`, `worst10 of f1`, or a table of weights."""
        metric = ""
        if isinstance(given, str):
            mix, _, metric = (part.strip() for part in given.partition(_OF))
            pairs = [part.partition("=") for part in mix.split(",")]
            try:
                given = {name.strip(): float(weight) if equals else 1.0 for name, equals, weight in pairs}
            except ValueError:
                raise ConfigError(
                    f"a mix of criteria looks like mean=0.5,worst10=0.5, or mean=0.5,worst10=0.5 of f1; got {given!r}"
                ) from None
        if not given:
            raise ConfigError(f"criterion must name at least one of: {', '.join(CRITERIA)}")
        for name, weight in given.items():
            if name not in CRITERIA:
                raise unknown("criterion", name, CRITERIA)
            if not 0 < weight < float("inf"):
                raise ConfigError(f"the weight of criterion {name!r} must be a positive number; got {weight}")
        return cls(dict(given), metric)

    def measure(self, measures: Iterable[Measure], split: str) -> Measure:
        """What it looks at, among what was measured, the most telling first."""
        there = [one for one in measures if one.split == split]
        found = next((one for one in there if self.metric in ("", one.metric)), None)
        if found is None:
            known = [one.metric for one in there]
            raise ConfigError(
                f"the criterion {str(self)!r} has no value on the {split} split, where there is: "
                f"{', '.join(known) or 'nothing'}. Name one of these after 'of', or list more under metrics=."
            )
        if "nash" in self.weights and not found.higher_is_better:
            raise ConfigError(
                f"the criterion nash is a product of utilities, and of {found.metric} less is better: choose mean, "
                "worst10 or another of them"
            )
        return found

    def of(self, statistics: ClientStatistics, measure: Measure = ACCURACY) -> float:
        """The number to maximise: the negative where less is better."""
        values = statistics.as_dict()
        value = sum(weight * values[CRITERIA[name]] for name, weight in self.weights.items())
        return value if measure.higher_is_better else -value

    def of_run(self, run: Run, split: str) -> float:
        """The number to maximise, of a run that is done."""
        measure = self.measure(run.measures, split)
        return self.of(run.summary(measure), measure)

    def __str__(self) -> str:
        single = len(self.weights) == 1 and next(iter(self.weights.values())) == 1
        mix = [name if single else f"{weight:g} {name}" for name, weight in self.weights.items()]
        return " + ".join(mix) + (f"{_OF}{self.metric}" if self.metric else "")
