"""What is told about a training after each round."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from propfair.core.evaluation import Evaluation
from propfair.fairness.arrays import FloatArray
from propfair.fairness.statistics import ClientStatistics
from propfair.federation.federation import Split
from propfair.runs.measures import Measure, ordered, summarize_clients


@dataclass(frozen=True)
class Progress:
    """What is told after each round.

    Attributes:
        round: the round that is done.
        rounds: how many there will be.
        dropped: clients that diverged in this round.
        evaluations: of this round, by split, the first one evaluated first; empty between evaluations. Of the models
            that clients are served by: their own where the algorithm trains them.
        shares: of the data, [n].
        seconds: since the start, breaks left out.
        directions: of metrics, by name: whether more is better; of others their name says so.
    """

    round: int
    rounds: int
    dropped: int
    evaluations: Mapping[Split, Evaluation]
    shares: FloatArray
    seconds: float
    directions: Mapping[str, bool] = field(default_factory=dict)

    @property
    def evaluation(self) -> Evaluation | None:
        """On the first of the evaluated splits."""
        return next(iter(self.evaluations.values()), None)

    def summary(self, split: Split, measure: Measure | None = None) -> ClientStatistics:
        """Statistics over clients of this round: what `Run.summary` would say if the run ended here.

        Without a measure: of accuracies, or of what the task has in their place.
        """
        values = self.evaluations[split].values()
        chosen = measure or self.leading(split)
        return summarize_clients(values[chosen.metric].numpy(), self.shares, chosen)

    def leading(self, split: Split) -> Measure:
        """The most telling measure of this round on a split: accuracy where the task has it."""
        return self.measures(split)[0]

    def measures(self, split: Split) -> list[Measure]:
        """What was measured of this round on a split, the most telling first."""
        return [Measure(split, name, self.directions.get(name)) for name in ordered(self.evaluations[split].values())]


AfterRound = Callable[[Progress], None]
