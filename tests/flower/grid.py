"""A Flower grid inside one process: real messages and apps, no network. Replies come in any order."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
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


class LocalGrid(Grid):
    """Every client has an app and a context. `away` clients are offline; `silent` ones never answer."""

    def __init__(
        self, app: ClientApp, num_clients: int = len(SIZES), *, shuffled: bool = True,
        run_config: dict[str, Any] | None = None, **node_config: Any,
    ) -> None:  # fmt: skip
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app, self.shuffled = app, shuffled
        self.nodes = random.sample(range(10, 10**9), num_clients) if shuffled else list(range(10, 10 + num_clients))
        self.contexts = {
            node: Context(
                1,
                node,
                {"partition-id": client, "num-partitions": num_clients, **node_config},
                RecordDict(),
                dict(run_config or {}),
            )
            for client, node in enumerate(self.nodes)
        }
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
            node = message.metadata.dst_node_id
            if self.nodes.index(node) not in self.silent:
                try:
                    reply = self.app(message, self.contexts[node])
                    self.tampered(reply)
                except Exception as error:
                    reply = Message(Error(0, str(error)), reply_to=message)
                replies.append(reply)
        if self.shuffled:
            random.shuffle(replies)
        return replies

    def set_run(self, run: Run) -> None: ...

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


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
