"""The rounds of a simulation: an aggregator whose clients run in an engine's session."""

import functools

from torch import Tensor

from propfair.algorithms.base import Needs
from propfair.core.aggregator import Aggregator, Outcome
from propfair.core.rounds import Rounds
from propfair.engines.session import Session
from propfair.errors import ConfigError


class Server(Aggregator):
    """The rounds of a simulation: an aggregator whose clients run in an engine's session."""

    def __init__(self, session: Session, rounds: Rounds, params: Tensor, buffers: Tensor) -> None:
        work = session.work
        sizes = work.federation.train.lengths
        super().__init__(work.algorithm, sizes, work.local, rounds, work.seed, params, buffers)
        self.session = session
        self._check_measured()

    def run_round(self) -> Outcome:
        """Sample, order, train, weigh, step."""
        own_starts = self.round == 0 and self.session.work.starts is not None
        losses = self.session.first_losses if own_starts else self.session.losses
        plan = self.plan(functools.partial(losses, split=self.rounds.measured or "train"))
        return self.conclude(plan, self.session.train(plan.job))

    def _check_measured(self) -> None:
        """A client without the examples that its loss is to be measured on is found before training."""
        if self.rounds.measured is None or not self.algorithm.needs & Needs.ANY_LOSS:
            return
        federation = self.session.work.federation
        without = (federation.split(self.rounds.measured).lengths == 0).nonzero().flatten().tolist()
        if without:
            raise ConfigError(
                f"server.loss_source={self.rounds.loss_source!r} measures the loss on {self.rounds.measured} examples, "
                f"and client {without[0]} ({federation.names[without[0]]}) has none. Set data.split.validation=0.1, or "
                "server.loss_source='before_full'."
            )
