"""Flower inside one process: real messages and apps, no network and no Ray."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

from propfair.federation import Federation, Split
from propfair.flower import client_app


class InProcessGrid(Grid):
    """Every client has an app and a context, and is run when it is sent a message."""

    def __init__(
        self, app: ClientApp, nodes: Sequence[int], run_config: dict[str, Any] | None = None,
        names: Sequence[str] = (),
    ) -> None:  # fmt: skip
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app, self.nodes = app, list(nodes)
        self.contexts = {}
        for client, node in enumerate(self.nodes):
            place: dict[str, Any] = {"partition-id": client, "num-partitions": len(self.nodes)}
            place |= {"name": names[client]} if names else {}
            self.contexts[node] = Context(1, node, place, RecordDict(), dict(run_config or {}))

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [self.reply(message) for message in messages]

    def reply(self, message: Message) -> Message:
        """What the client at the message's destination answers."""
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(0, str(error)), reply_to=message)

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


def grid_of(federation: Federation, network: Callable[[], nn.Module]) -> InProcessGrid:
    """The clients of a federation as those of a deployment, each with its own examples."""
    examples = federation.examples

    def data(context: Context) -> dict[Split, tuple[Tensor, Tensor]]:
        client = int(context.node_config["partition-id"])
        held: dict[Split, Tensor] = {"train": federation.train[client], "test": federation.test[client]}
        return {split: (examples.inputs(index), examples.targets(index)) for split, index in held.items()}

    return InProcessGrid(client_app(network, data), range(10, 10 + federation.num_clients), names=federation.names)
