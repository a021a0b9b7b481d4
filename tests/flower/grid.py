"""A Flower grid inside one process whose clients misbehave as a test likes, and the run to compare with."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.flower_grid import InProcessGrid
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional

from propfair.algorithms.base import Algorithm
from propfair.core.aggregator import Outcome
from propfair.core.client import LocalTraining, Workload
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.engines.inprocess import InProcess
from propfair.engines.server import Server
from propfair.federation.federation import Federation
from propfair.flower.whole import Data
from tests.builders import random_federation, seeded

SIZES = [24, 40, 16, 32]
LOCAL = LocalTraining(lr=0.1, batch_size=8, epochs=2)
SEED = 3


class LocalGrid(InProcessGrid):
    """Replies come in any order unless `shuffled` is off. `away` clients are offline; `silent` ones never answer."""

    def __init__(
        self, app: ClientApp, num_clients: int = len(SIZES), *, shuffled: bool = True,
        run_config: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.shuffled = shuffled
        nodes = random.sample(range(10, 10**9), num_clients) if shuffled else range(10, 10 + num_clients)
        super().__init__(app, nodes, run_config)
        self.away: set[int] = set()
        self.silent: set[int] = set()
        self.tampered: Callable[[Message], None] = lambda _: None
        self.sent: list[Message] = []

    def get_node_ids(self) -> Iterable[int]:
        return [node for client, node in enumerate(self.nodes) if client not in self.away]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for message in messages if self.shuffled else sorted(messages, key=lambda m: m.metadata.dst_node_id):
            self.sent.append(message)
            if self.nodes.index(message.metadata.dst_node_id) not in self.silent:
                reply = self.reply(message)
                if not reply.has_error():
                    self.tampered(reply)
                replies.append(reply)
        if self.shuffled:
            random.shuffle(replies)
        return replies


def network() -> nn.Module:
    """With buffers, an integer one among them."""
    return seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))


def own_data(context: Context) -> Data:
    """The training data of a client, and half of them again as test data."""
    whole = federation()
    client = int(context.node_config["partition-id"])

    def held(index: Tensor) -> tuple[Tensor, Tensor]:
        return whole.examples.inputs(index), whole.examples.targets(index)

    return {"train": held(whole.train[client]), "test": held(whole.test[client])}


def federation() -> Federation:
    return random_federation(SIZES, features=6, seed=5, test=lambda index: index[::2])


def simulated(
    algorithm: Algorithm, num_rounds: int, rounds: Rounds | None = None, local: LocalTraining = LOCAL
) -> tuple[dict[str, Tensor], list[Outcome], Tensor]:
    """The run in one process: final model, outcomes, test losses (personal ones if there are)."""
    model = FlatModel(network())
    with InProcess().start(model, Workload(federation(), algorithm, local, SEED)) as session:
        server = Server(session, rounds or Rounds(), model.params, model.buffers)
        outcomes = [server.run_round() for _ in range(num_rounds)]
        if algorithm.personal is None:
            evaluation = session.evaluate(server.released, server.buffers, "test", range(len(SIZES)))
        else:
            evaluation = session.evaluate_personal("test", range(len(SIZES)))
        return model.state_dict(server.released, server.buffers), outcomes, evaluation.loss


def scalar_loss(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target)
