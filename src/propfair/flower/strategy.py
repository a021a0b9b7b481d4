"""Any algorithm as a Flower strategy. Flower carries the messages; `Aggregator` plans and concludes the rounds."""

import copy
import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor, nn

from propfair.algorithms.base import Algorithm, ClientId, Needs
from propfair.core.aggregator import Aggregator, Outcome, RoundPlan
from propfair.core.client import LocalTraining
from propfair.core.messages import Block, Reply, Report, reduce_block
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.errors import ConfigError, TrainingError
from propfair.fairness.statistics import summarize
from propfair.flower.messages import (
    ARRAYS,
    CONFIG,
    CORRECTION,
    KEY,
    NUM_EXAMPLES,
    QUESTION,
    Instruction,
    correction_record,
    instruct,
    read_answer,
    read_report,
)

POLL_SECONDS = 1.0
TIMES_ASKED = 3
STATISTICS = ("weighted_mean", "mean", "std", "worst", "worst10", "best10")
log = logging.getLogger("flwr")  # so that our lines stand among Flower's, also in the log of a run


class FairStrategy(Strategy):
    """Runs an algorithm of propfair on the clients of a Flower grid.

    A client is known by its partition id, not by its node id, which changes with every run: cohorts, weights and
    batches are a function of the seed. The first round waits until all clients are there, because the state of an
    algorithm is over all of them; later, clients that are away, late or broken take no part in a round.

    The losses that a rule looks at come with the updates, so a round is one message to each client. The server holds
    all replies of a round in memory, as every Flower strategy does.

    Args:
        algorithm: any algorithm.
        model: a module whose state dict has the names of the arrays that travel. It says which of them are parameters,
            to be weighed by the algorithm, and which are buffers, to be averaged by data share.
        local: how clients train. `client_app` follows it; with a training loop of their own, tell it the loop's
            learning rate, batch size and epochs, which some rules look at (q-FedAvg, FedNova).
        rounds: participation, sampling, server learning rate, source of the losses, strictness.
        seed: of all randomness.
        evaluate_every: rounds between evaluations on all clients; 0: never.
        patience: seconds that the first round waits for all clients, and for their answers.

    Attributes:
        outcomes: what each round did: weights, losses, dropped clients, diagnostics.
        evaluations: for each evaluated round the metrics of each client, {round: {metric: {client: value}}}.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module,
        *,
        local: LocalTraining | None = None,
        rounds: Rounds | None = None,
        seed: int = 0,
        evaluate_every: int = 1,
        patience: float = 120.0,
    ) -> None:
        self.algorithm, self.seed = algorithm, seed
        self.local, self.rounds = local or LocalTraining(), rounds or Rounds()
        self.evaluate_every, self.patience = evaluate_every, patience
        self.outcomes: list[Outcome] = []
        self.evaluations: dict[int, dict[str, dict[ClientId, float]]] = {}
        self._model = FlatModel(copy.deepcopy(model).cpu())
        self._members: dict[int, ClientId] = {}  # by node id
        self._asked: Counter[int] = Counter()
        self._complaint = ""
        self._sizes: dict[ClientId, int] = {}
        self._num_clients = 0  # unknown before the first answer
        self._server: Aggregator | None = None
        self._plan: RoundPlan | None = None

    def summary(self) -> None:
        log.info("\t├──> Algorithm: %s (the server sees %s)", self.algorithm, self.algorithm.privacy)
        log.info("\t├──> Rounds: %s", self.rounds)
        log.info("\t└──> Seed: %d", self.seed)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        nodes = self._meet(grid)
        server = self._take_over(server_round, arrays)
        self._plan = plan = server.plan(None)
        measure = self.rounds.measured if self.algorithm.needs & Needs.ANY_LOSS else None
        config["server-round"] = server_round
        sent = ArrayRecord(self._model.state_dict(plan.job.params, plan.job.buffers))
        messages = []
        for position, (client, order) in enumerate(zip(plan.job.clients, plan.job.orders, strict=True)):
            if client not in nodes:
                log.warning("round %d: client %d is away", server_round, client)
                continue
            text = Instruction(server_round, client, self.seed, self.algorithm, order, self.local, measure).text()
            content = RecordDict({ARRAYS: sent, CONFIG: instruct(config, text)})
            if (correction := plan.job.correction(position)) is not None:
                content[CORRECTION] = correction_record(correction)
            messages.append(Message(content, nodes[client], MessageType.TRAIN))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        server, plan = self._server, self._plan
        assert server is not None
        assert plan is not None
        contents = self._by_client(server_round, replies)
        if not contents:
            log.warning("round %d: no client answered; the model stays as it is", server_round)
            return None, None
        outcome = server.conclude(plan, self._blocks(plan, contents))
        self.outcomes.append(outcome)
        metrics = MetricRecord({**outcome.diagnostics, **_weighted_means(contents, self._sizes)})
        return ArrayRecord(self._model.state_dict(server.released, server.buffers)), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if not self.evaluate_every or server_round % self.evaluate_every:
            return []
        config["server-round"] = server_round
        content = RecordDict({ARRAYS: arrays, CONFIG: config})
        nodes = self._online(grid)
        return [Message(content, nodes[client], MessageType.EVALUATE) for client in sorted(nodes)]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        contents = self._by_client(server_round, replies)
        if not contents:
            return None
        values = _by_metric(contents)
        self.evaluations[server_round] = values
        metrics = MetricRecord()
        for name, of_clients in values.items():
            weights = [_number(contents[client], NUM_EXAMPLES, self._sizes[client]) for client in of_clients]
            numbers = summarize(list(of_clients.values()), weights, higher_is_better="loss" not in name).as_dict()
            metrics[name] = numbers["weighted_mean"]
            for statistic in STATISTICS[1:]:
                metrics[f"{name}.{statistic}"] = numbers[statistic]
        return metrics

    def _meet(self, grid: Grid) -> dict[ClientId, int]:
        """The nodes of the clients that are online; the first time, of all clients."""
        deadline = time.monotonic() + self.patience
        while True:
            self._ask(grid)
            nodes = self._online(grid)
            if self._server is not None or (nodes and len(nodes) == self._num_clients):
                return nodes
            if time.monotonic() > deadline:
                missing = [client for client in range(self._num_clients) if client not in nodes]
                raise TrainingError(
                    f"{len(nodes)} of {self._num_clients or 'an unknown number of'} clients are there after "
                    f"{self.patience:g} s{f', missing: {missing[:10]}' if missing else ''}. Start a SuperNode for "
                    "each, with --node-config 'partition-id=... num-partitions=...' and fair_mod in its ClientApp."
                    f"{self._complaint}"
                )
            time.sleep(POLL_SECONDS)

    def _ask(self, grid: Grid) -> None:
        """Ask nodes that we have not met who they are; one that does not say so is asked a few times only."""
        online = sorted(set(grid.get_node_ids()) - set(self._members))
        new = [node for node in online if self._asked[node] < TIMES_ASKED]
        if not new:
            return
        self._asked.update(new)
        question = RecordDict({CONFIG: ConfigRecord({KEY: QUESTION})})
        messages = [Message(question, node, MessageType.TRAIN) for node in new]
        for reply in grid.send_and_receive(messages, timeout=self.patience):
            node = reply.metadata.src_node_id
            if reply.has_error():
                self._complaint = f" Node {node} answered: {reply.error.reason}"
                log.warning("node %d does not say which client it is: %s", node, reply.error.reason)
                continue
            client, num_clients, num_examples = read_answer(next(iter(reply.content.metric_records.values())))
            if not self._sizes:
                self._num_clients = num_clients
            if num_clients != self._num_clients:
                raise ConfigError(
                    f"node {node} says that it is one of {num_clients} clients, others that they are "
                    f"{self._num_clients}: give all SuperNodes the same num-partitions"
                )
            if self._server is not None and self._sizes[client] != num_examples:
                log.warning("client %d comes back with %d training examples", client, num_examples)
            else:
                self._sizes[client] = num_examples
            self._members[node] = client

    def _online(self, grid: Grid) -> dict[ClientId, int]:
        """Node ids by client. The newest counts: a client that came back may have two for a while."""
        online, nodes = set(grid.get_node_ids()), {}
        for node, client in self._members.items():
            if node in online:
                if client in nodes and self._server is None:
                    raise ConfigError(f"two SuperNodes are client {client}: give each its own partition-id")
                nodes[client] = node
        return nodes

    def _take_over(self, server_round: int, arrays: ArrayRecord) -> Aggregator:
        """The server with the model of this round, which others (differential privacy) may have changed on its way."""
        params, buffers = self._vectors(arrays, "initial_arrays")
        if self._server is None:
            sizes = torch.tensor([self._sizes[client] for client in range(self._num_clients)])
            self._server = Aggregator(self.algorithm, sizes, self.local, self.rounds, self.seed, params, buffers)
        else:
            self._server.params = self._server.params + (params - self._server.released)
            self._server.buffers = buffers
        self._server.round = server_round - 1
        return self._server

    def _vectors(self, arrays: ArrayRecord, whose: str) -> tuple[Tensor, Tensor]:
        try:
            return self._model.vectors(arrays.to_torch_state_dict())
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"{whose} do not fit the model of the strategy: {reason}") from None

    def _by_client(self, server_round: int, replies: Iterable[Message]) -> dict[ClientId, RecordDict]:
        """The contents of the replies in the order of the clients, whatever order they came in."""
        found: dict[ClientId, RecordDict] = {}
        for reply in replies:
            client = self._members.get(reply.metadata.src_node_id)  # None: the SuperLink answers for a lost node
            if reply.has_error():
                who = "a client" if client is None else f"client {client}"
                log.warning("round %d: %s failed: %s", server_round, who, reply.error.reason)
            elif client is not None:
                found[client] = reply.content
        return dict(sorted(found.items()))

    def _blocks(self, plan: RoundPlan, contents: Mapping[ClientId, RecordDict]) -> Iterable[Block]:
        for block in plan.job.blocks():
            positions = range(block.start, block.stop)
            found = (self._reply(plan, plan.job.clients[position], contents) for position in positions)
            yield reduce_block(plan.job, positions, found)

    def _reply(self, plan: RoundPlan, client: ClientId, contents: Mapping[ClientId, RecordDict]) -> Reply:
        job = plan.job
        if client not in contents:
            return Report.none(client), job.params[:0], job.buffers[:0]
        content = contents[client]
        params, buffers = self._vectors(next(iter(content.array_records.values())), f"the arrays of client {client}")
        delta = params - job.params
        report = read_report(client, next(iter(content.metric_records.values())), float(torch.dot(delta, delta)))
        if plan.late and not math.isfinite(report.received_loss(self.rounds.loss_source)):
            report = report._replace(finite=False)
        return report, delta, buffers


def _by_metric(contents: Mapping[ClientId, RecordDict]) -> dict[str, dict[ClientId, float]]:
    """{metric: {client: value}} of the clients' own single numbers."""
    values: dict[str, dict[ClientId, float]] = {}
    for client, content in contents.items():
        for record in content.metric_records.values():
            for name, value in record.items():
                if not isinstance(value, list) and name != NUM_EXAMPLES and not name.startswith(f"{KEY}."):
                    values.setdefault(name, {})[client] = float(value)
    return values


def _weighted_means(contents: Mapping[ClientId, RecordDict], sizes: Mapping[ClientId, int]) -> dict[str, float]:
    """What clients say of their training, averaged by data as Flower's own strategies do."""
    means = {}
    for name, of_clients in _by_metric(contents).items():
        weights = [sizes[client] for client in of_clients]
        means[name] = summarize(list(of_clients.values()), weights).weighted_mean
    return means


def _number(content: RecordDict, name: str, otherwise: float) -> float:
    for record in content.metric_records.values():
        value = record.get(name)
        if isinstance(value, int | float):
            return float(value)
    return otherwise
