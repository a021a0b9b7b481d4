"""The rounds of a simulation: an aggregator whose clients run in an engine's session."""

from torch import Tensor

from propfair.core.aggregator import Aggregator, Outcome, Rounds
from propfair.engines.session import Session


class Server(Aggregator):
    """The rounds of a simulation: an aggregator whose clients run in an engine's session."""

    def __init__(self, session: Session, rounds: Rounds, params: Tensor, buffers: Tensor) -> None:
        work = session.work
        sizes = work.federation.train.lengths
        super().__init__(work.algorithm, sizes, work.local, rounds, work.seed, params, buffers)
        self.session = session

    def run_round(self) -> Outcome:
        """Sample, order, train, weigh, step."""
        own_starts = self.round == 0 and self.session.work.starts is not None
        plan = self.plan(self.session.first_losses if own_starts else self.session.losses)
        return self.conclude(plan, self.session.train(plan.job))
