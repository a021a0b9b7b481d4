"""Who is there: which Flower node is which client, and how much data each client has."""

import time
from collections import Counter
from collections.abc import Sequence

from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from propfair.algorithms.base import ClientId
from propfair.errors import ConfigError, TrainingError
from propfair.flower.events import EventLog
from propfair.flower.limits import Limits
from propfair.flower.messages import CONFIG, KEY, QUESTION
from propfair.flower.replies import Answer, RefusedError, only_metrics, read_name, read_num_examples, read_place

POLL_SECONDS = 1.0
TIMES_ASKED = 3


class Members:
    """The clients of a federation. A client is its partition, whatever node it runs on.

    Until `begun`, settings that do not fit are an error, since nothing is lost yet; afterwards whoever does not fit is
    left out.

    Args:
        limits: what is believed.
        events: told of those who are refused.
        patience: seconds that the first round waits for all clients, and for their answers.

    Attributes:
        num_clients: 0 before the first answer.
        begun: the first round has begun, and with it who the clients are.
    """

    def __init__(self, limits: Limits, events: EventLog, patience: float) -> None:
        self.limits, self.events, self.patience = limits, events, patience
        self.num_clients = 0
        self.begun = False
        self._expected = False  # it is known who the clients are, from before a break
        self._names: dict[ClientId, str] = {}
        self._clients: dict[int, ClientId] = {}  # by node
        self._sizes: dict[ClientId, int] = {}
        self._refused: dict[int, ClientId | None] = {}  # nodes, and who they say they are
        self._asked: Counter[int] = Counter()
        self._complaint = ""

    def expect(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        """Take these as the clients, those of a run that goes on: the first round waits for them, but not for ever."""
        self._expected, self.num_clients = True, len(names)
        self._names = dict(enumerate(names))
        self._sizes = {client: size for client, size in enumerate(sizes) if size}

    @property
    def names(self) -> list[str]:
        """Of all clients, each its own: what their node config calls them, or their number."""
        given = [self._names.get(client, str(client)) for client in range(self.num_clients)]
        return [name if given.count(name) == 1 else f"{name} ({client})" for client, name in enumerate(given)]

    @property
    def all_sizes(self) -> list[int]:
        """Of all clients, as they say."""
        return [self.size(client) for client in range(self.num_clients)]

    def client(self, node: int) -> ClientId | None:
        """The client that runs on a node; None: we have not met it."""
        return self._clients.get(node)

    def size(self, client: ClientId) -> int:
        """The training examples of a client; 0 for one whose answer was not believed."""
        return self._sizes.get(client, 0)

    @property
    def sizes(self) -> list[int]:
        """Of all clients, cut where the limits say so."""
        return self.limits.cut_sizes(self.all_sizes)

    def meet(self, grid: Grid) -> dict[ClientId, int]:
        """The nodes of the clients that are online; the first time, of all clients."""
        deadline = time.monotonic() + self.patience
        while True:
            self._ask(grid)
            nodes = self.online(grid)
            late = time.monotonic() > deadline
            if self.begun or (nodes and self._complete(nodes, late)):
                self.begun = True
                return nodes
            if late or self._nobody_will_say(grid):
                missing = [client for client in range(self.num_clients) if client not in nodes]
                known, waited = (
                    self.num_clients or "an unknown number of",
                    f" after {self.patience:g} s" if late else "",
                )
                raise TrainingError(
                    f"{len(nodes)} of {known} clients are there{waited}"
                    f"{f', missing: {missing[:10]}' if missing else ''}. Start a SuperNode for "
                    "each, with --node-config 'partition-id=... num-partitions=...' and fair_mod in its ClientApp."
                    f"{self._complaint}"
                )
            time.sleep(POLL_SECONDS)

    def online(self, grid: Grid) -> dict[ClientId, int]:
        """Node ids by client. The newest counts: a client that came back may have two for a while."""
        there, nodes = set(grid.get_node_ids()), {}
        for node, client in self._clients.items():
            if node in there:
                if client in nodes and not self.begun:
                    raise ConfigError(f"two SuperNodes are client {client}: give each its own partition-id")
                nodes[client] = node
        return nodes

    @property
    def _fixed(self) -> bool:
        """Who the clients are, and what they have, is settled."""
        return self.begun or self._expected

    def _complete(self, nodes: dict[ClientId, int], late: bool) -> bool:
        """Everybody is there, or is not believed; what does not say who it is may be anybody, which is waited for."""
        if self._expected and late:
            return True
        refused = {client for client in self._refused.values() if client is not None} - nodes.keys()
        nameless = sum(client is None for client in self._refused.values()) if late else 0
        return len(nodes) + len(refused) + nameless >= self.num_clients

    def _nobody_will_say(self, grid: Grid) -> bool:
        """There are nodes, none of them says which client it is, and none will be asked again."""
        there = set(grid.get_node_ids())
        return bool(there) and not self._clients and all(self._asked[node] >= TIMES_ASKED for node in there)

    def _ask(self, grid: Grid) -> None:
        """Ask nodes that we have not met who they are; one that does not say so is asked a few times only."""
        strangers = set(grid.get_node_ids()) - self._clients.keys() - self._refused.keys()
        new = sorted(node for node in strangers if self._asked[node] < TIMES_ASKED)
        if not new:
            return
        self._asked.update(new)
        question = RecordDict({CONFIG: ConfigRecord({KEY: QUESTION})})
        messages = [Message(question, node, MessageType.TRAIN) for node in new]
        for reply in grid.send_and_receive(messages, timeout=self.patience):
            node = reply.metadata.src_node_id
            if reply.has_error():
                self._complaint = f" Node {node} answered: {reply.error.reason}"
                self.events.say("failed", f"node {node} does not say which client it is: {reply.error.reason}")
                continue
            self._refused[node] = None  # until it is believed
            try:
                answer = self._read(node, only_metrics(reply.content))
            except RefusedError as refusal:
                who = self._refused[node]
                name = f"node {node}" if who is None else f"client {who}"
                self._complaint = f" {name.capitalize()} was refused: {refusal}"
                self.events.refuse(who, f"{name} was refused when it was asked who it is: {refusal}")
                continue
            del self._refused[node]
            self._clients[node] = answer.client
            if not self._fixed:
                self._sizes[answer.client] = answer.num_examples
                if (called := read_name(reply.content)) is not None:
                    self._names[answer.client] = called
            elif self._sizes[answer.client] != answer.num_examples:
                self.events.say("kept", f"client {answer.client} comes back with {answer.num_examples} examples")

    def _read(self, node: int, metrics: MetricRecord) -> Answer:
        """What a node says of itself, if it is believed."""
        client, num_clients = read_place(metrics)
        if self.num_clients and num_clients != self.num_clients:
            if self._fixed:
                raise RefusedError(f"it says that it is one of {num_clients} clients; there are {self.num_clients}")
            raise ConfigError(
                f"node {node} says that it is one of {num_clients} clients, others that they are "
                f"{self.num_clients}: give all SuperNodes the same num-partitions"
            )
        self._refused[node] = client
        num_examples = read_num_examples(metrics, self.limits)
        if self._fixed and client not in self._sizes:
            raise RefusedError("it was refused before the first round, and the others share its weight since")
        self.num_clients = num_clients
        return Answer(client, num_clients, num_examples)
