"""Any algorithm as a Flower strategy. Flower carries the messages; `Aggregator` plans and concludes the rounds."""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import SupportsIndex

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn

from propfair.algorithms.base import ALGORITHMS, Algorithm, ClientId, Needs, checked_algorithm
from propfair.core.aggregator import Aggregator, Outcome, RoundPlan
from propfair.core.client import LocalTraining, observe
from propfair.core.messages import Block, Reply, Report, reduce_block
from propfair.core.params import FlatModel, all_finite
from propfair.core.rounds import Rounds
from propfair.engines.session import Event
from propfair.errors import ConfigError, TrainingError, shown
from propfair.fairness.statistics import summarize
from propfair.flower.arrays import module_of
from propfair.flower.events import EventLog, kind_of, log, named
from propfair.flower.limits import Limits
from propfair.flower.members import Members
from propfair.flower.messages import ARRAYS, CONFIG, CORRECTION, NUM_EXAMPLES, Instruction, correction_record, instruct
from propfair.flower.recording import Recording, clients_of, higher_is_better
from propfair.flower.replies import (
    RefusedError,
    only_metrics,
    own_numbers,
    read_arrays,
    read_num_examples,
    read_report,
)
from propfair.runs.run import EndState

STATISTICS = ("weighted_mean", "mean", "std", "worst", "worst10", "best10")


class FairStrategy(Strategy):
    """Runs an algorithm of propfair on the clients of a Flower grid.

    A client is known by its partition id, not by its node id, which changes with every run: cohorts, weights and
    batches are a function of the seed. The first round waits until all clients are there, because the state of an
    algorithm is over all of them; later, clients that are away, late or broken take no part in a round.

    Nothing that a client sends is believed unchecked, see `Limits`. A reply that is refused is an event, and the round
    goes on; if no reply of a round can be used because all failed, the run ends with the error of the first client.

    The losses that a rule looks at come with the updates, so a round is one message to each client. The server holds
    all replies of a round in memory, as every Flower strategy does.

    Args:
        algorithm: any algorithm, or its name.
        model: a module whose state dict has the names of the arrays that travel. It says which of them are parameters,
            to be weighed by the algorithm, and which are buffers, to be averaged by data share. If only a part of a
            model travels, such as adapters: that part, tensors by name.
        local: how clients train. `client_app` follows it; with a training loop of their own, tell it the loop's
            learning rate, batch size and epochs, which some rules look at (q-FedAvg, FedNova).
        rounds: participation, sampling, server learning rate, source of the losses, strictness.
        seed: of all randomness.
        evaluate_every: rounds between evaluations on all clients, the last round always included; 0: never.
        patience: seconds that the first round waits for all clients and for their answers, and that a server which is
            to go on waits for another that still works in `out`.
        limits: what is believed of a client, and what is cut.
        out: a folder that becomes a run as those of simulations are, for `propfair report`, `watch`, `certify` and the
            like. If it holds a run of the same settings that was cut off, that one goes on: `num_rounds` of `start` are
            all rounds, those before the break included.

    Attributes:
        outcomes: what each round did: weights, losses, dropped clients, diagnostics.
        evaluations: for each evaluated round the metrics of each client, {round: {metric: {client: value}}}.
    """

    def __init__(
        self,
        algorithm: Algorithm | str,
        model: nn.Module | Mapping[str, Tensor],
        *,
        local: LocalTraining | None = None,
        rounds: Rounds | None = None,
        seed: int = 0,
        evaluate_every: int = 1,
        patience: float = 120.0,
        limits: Limits | None = None,
        out: str | Path | None = None,
    ) -> None:
        self.algorithm = ALGORITHMS.make(algorithm) if isinstance(algorithm, str) else checked_algorithm(algorithm)
        self.local = LocalTraining() if local is None else local
        self.rounds = Rounds() if rounds is None else rounds
        self.limits = Limits() if limits is None else limits
        _check_kinds(model, self.local, self.rounds, self.limits)
        if not isinstance(seed, SupportsIndex) or seed.__index__() < 0:
            raise ConfigError(f"seed must be a whole number of at least 0; got seed={shown(seed)}")
        self.seed, self.evaluate_every = seed, evaluate_every
        self.outcomes: list[Outcome] = []
        self.evaluations: dict[int, dict[str, dict[ClientId, float]]] = {}
        whole = copy.deepcopy(model) if isinstance(model, nn.Module) else module_of(model)
        self._model = FlatModel(whole.cpu())
        self._names = dict(self._model.module.state_dict())
        self._log = EventLog()
        self._members = Members(self.limits, self._log, patience)
        self._server: Aggregator | None = None
        self._plan: RoundPlan | None = None
        self._sent: set[ClientId] = set()
        self._tested: dict[ClientId, int] = {}
        self._before = self._last = 0  # rounds before a break; the last round, if we know it
        self._recording: Recording | None = None
        if out is not None:
            self._recording = Recording(Path(out), self.algorithm, self.local, self.rounds, self.limits, seed, patience)
            self._go_on(self._recording)

    def _go_on(self, recording: Recording) -> None:
        """Take up a run that was cut off, if there is one."""
        if recording.known is None:
            return
        self._members.expect(recording.known.names, recording.known.sizes["train"])
        if recording.checkpoint is not None:
            self._server = self._make_server(self._model.params, self._model.buffers)
            self._server.restore(recording.checkpoint.round, recording.checkpoint.tensors)
            self._before = self._server.round
            if self.algorithm.personal is not None:
                self._log.say("personal", "the clients' personal models begin anew: they ended with the run before")

    @property
    def arrays(self) -> ArrayRecord:
        """The model reached so far; to be passed as `initial_arrays` where a wrapper goes on with a run."""
        server = self._server
        if server is None:
            return ArrayRecord(dict(self._names))
        return ArrayRecord(self._model.state_dict(server.released, server.buffers))

    @property
    def events(self) -> list[Event]:
        """What went wrong and was dealt with, oldest first: clients that were absent, failed, refused or clipped."""
        return self._log.events

    def summary(self) -> None:
        log.info("\t├──> Algorithm: %s (the server sees %s)", self.algorithm, self.algorithm.privacy)
        log.info("\t├──> Rounds: %s", self.rounds)
        log.info("\t└──> Seed: %d", self.seed)

    def start(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, timeout: float = 3600,
        train_config: ConfigRecord | None = None, evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:  # fmt: skip
        """Run all rounds, as every strategy does. If nobody answers in any, that is an error and not an empty model."""
        done, self._last = self._before, num_rounds
        begin = self.arrays if done else initial_arrays
        evaluate = None if evaluate_fn is None else (lambda number, arrays: evaluate_fn(number + done, arrays))
        if done:
            log.info("Going on after round %d with the run that was cut off", done)
        try:
            result = super().start(
                grid, begin, max(0, num_rounds - done), timeout, train_config, evaluate_config, evaluate
            )
            if not result.arrays and num_rounds > done:
                raise TrainingError(f"no client answered in any of the {num_rounds} rounds, and no model was trained")
        except TrainingError as error:
            self.finish("interrupted", str(error))
            raise
        result.arrays = result.arrays or begin
        for metrics in (
            result.train_metrics_clientapp, result.evaluate_metrics_clientapp, result.evaluate_metrics_serverapp
        ):  # fmt: skip
            shifted = {number + done: record for number, record in metrics.items()}
            metrics.clear()
            metrics.update(shifted)
        self.finish()
        return result

    def finish(self, state: EndState = "finished", reason: str = "") -> None:
        """End the run in `out`. `start` does so; where a wrapper's `start` was called instead, call it afterwards."""
        if self._recording is not None and self._server is not None:
            model = self._model.state_dict(self._server.released, self._server.buffers)
            self._recording.end(state, self._server.round, reason, model)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        server_round += self._before
        self._log.round = server_round
        if self._plan is not None:
            self._log.say("skipped", f"round {self._plan.cohort.round} was left out by what is around FairStrategy")
        nodes = self._members.meet(grid)
        server = self._take_over(server_round, arrays)
        self._plan = plan = server.plan(None)
        measure = self.rounds.measured if self.algorithm.needs & Needs.ANY_LOSS else None
        config["server-round"] = server_round
        sent = ArrayRecord(self._model.state_dict(plan.job.params, plan.job.buffers))
        self._log.add("absent", set(plan.job.clients) - nodes.keys(), "not connected")
        messages = []
        for position, (client, order) in enumerate(zip(plan.job.clients, plan.job.orders, strict=True)):
            if client not in nodes:
                continue
            text = Instruction(server_round, client, self.seed, self.algorithm, order, self.local, measure).text()
            content = RecordDict({ARRAYS: sent, CONFIG: instruct(config, text)})
            if (correction := plan.job.correction(position)) is not None:
                content[CORRECTION] = correction_record(correction)
            messages.append(Message(content, nodes[client], MessageType.TRAIN))
        self._sent = nodes.keys() & set(plan.job.clients)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        server_round += self._before
        server, plan = self._server, self._plan
        assert server is not None
        assert plan is not None
        self._plan = None
        contents = self._by_client(replies)
        wrong = self._log.of_round(server_round, "failed")
        if not contents and not wrong:
            log.warning("round %d: no client answered; the model stays as it is", server_round)
            return None, None
        try:
            outcome = server.conclude(plan, self._blocks(plan, contents))
        except TrainingError as error:
            wrong = self._log.of_round(server_round, "failed", "refused")
            if not wrong:
                raise
            first = min(wrong, key=lambda event: event.clients)
            everyone = {client for event in wrong for client in event.clients} >= self._sent
            who = f"every client failed, {named(first.clients[:1])}" if everyone else named(first.clients)
            raise TrainingError(
                f"round {server_round}: {who} {first.kind}: {first.detail.rstrip('.')}. "
                f"The model of round {server_round - 1} is kept."
            ) from error
        self.outcomes.append(outcome)
        if self._recording is not None:
            self._recording.add_outcome(outcome)
        means = {name: self._by_data(of_clients) for name, of_clients in _by_metric(contents).items()}
        metrics = MetricRecord({**means, **outcome.diagnostics})
        return ArrayRecord(self._model.state_dict(server.released, server.buffers)), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        server_round += self._before
        self._take_over(server_round + 1, arrays)
        first = self._recording is not None and not self._recording.begun  # who has which test examples is recorded
        due = server_round % (self.evaluate_every or 1) == 0 or first or server_round == self._last
        if not self.evaluate_every or not due:
            self._sent = set()
            return []
        config["server-round"] = server_round
        content = RecordDict({ARRAYS: arrays, CONFIG: config})
        nodes = self._members.online(grid)
        self._sent = set(nodes)
        return [Message(content, nodes[client], MessageType.EVALUATE) for client in sorted(nodes)]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        server_round += self._before
        contents, weights = self._by_client(replies), {}
        for client, content in contents.items():
            try:
                weights[client] = self._num_tested(client, only_metrics(content))
            except RefusedError as refusal:
                self._log.add("refused", [client], f"its evaluation: {refusal}")
        values = _by_metric({client: contents[client] for client, number in weights.items() if number})
        self._tested |= weights
        if values:
            self.evaluations[server_round] = values
        if self._recording is not None:
            assert self._server is not None
            clients = clients_of(self._members.names, self._members.all_sizes, self._tested)
            events = [event for event in (*self.events, *self._log.remarks) if event.round == server_round]
            self._recording.end_round(server_round, self._server, clients, values, events)
        metrics = MetricRecord()
        for name, of_clients in values.items():
            numbers = summarize(
                list(of_clients.values()),
                [weights[client] for client in of_clients],
                higher_is_better=higher_is_better(name),
            ).as_dict()
            metrics[name] = numbers["weighted_mean"]
            for statistic in STATISTICS[1:]:
                metrics[f"{name}.{statistic}"] = numbers[statistic]
        return metrics if values else None

    def _take_over(self, server_round: int, arrays: ArrayRecord) -> Aggregator:
        """The server with the model of this round, which others (differential privacy) may have changed on its way."""
        params, buffers = self._vectors(arrays)
        server = self._server
        if server is None:
            self._server = server = self._make_server(params, buffers)
        else:
            if not self.outcomes and self._before and not torch.equal(params, server.released):
                raise ConfigError("the run goes on from another model: pass initial_arrays=strategy.arrays to start")
            server.params = server.params + (params - server.released)
            server.buffers = buffers
        server.round = server_round - 1
        return server

    def _make_server(self, params: Tensor, buffers: Tensor) -> Aggregator:
        sizes = torch.tensor(self._members.sizes)
        return Aggregator(self.algorithm, sizes, self.local, self.rounds, self.seed, params, buffers)

    def _vectors(self, arrays: ArrayRecord) -> tuple[Tensor, Tensor]:
        try:
            return self._model.vectors(arrays.to_torch_state_dict())
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"initial_arrays do not fit the model of the strategy: {reason}") from None

    def _by_client(self, replies: Iterable[Message]) -> dict[ClientId, RecordDict]:
        """The contents of the replies in the order of the clients, whatever order they came in."""
        found: dict[ClientId, RecordDict] = {}
        failed: dict[tuple[str, str], list[ClientId]] = {}
        for reply in replies:
            client = self._members.client(reply.metadata.src_node_id)  # None: the SuperLink answers for a lost node
            if client is None or client not in self._sent:
                reason = reply.error.reason if reply.has_error() else "nobody asked it"
                self._log.say("stranger", f"a reply of an unknown node is not used: {reason}")
            elif reply.has_error():
                failed.setdefault((kind_of(reply.error), str(reply.error.reason)), []).append(client)
            else:
                found.setdefault(client, reply.content)
        for (kind, reason), clients in failed.items():
            self._log.add(kind, clients, reason)
        said_so = {client for clients in failed.values() for client in clients}
        self._log.add("absent", self._sent - found.keys() - said_so, "no answer in time")
        return dict(sorted(found.items()))

    def _blocks(self, plan: RoundPlan, contents: Mapping[ClientId, RecordDict]) -> Iterable[Block]:
        longest = self.limits.max_growth * max(1.0, float(plan.job.params.norm()))
        for block in plan.job.blocks():
            positions = range(block.start, block.stop)
            yield reduce_block(plan.job, positions, (self._reply(plan, p, contents, longest) for p in positions))

    def _reply(self, plan: RoundPlan, position: int, contents: Mapping[ClientId, RecordDict], longest: float) -> Reply:
        job, client = plan.job, plan.job.clients[position]
        nothing = Report.none(client), job.params[:0], job.buffers[:0]
        if client not in contents:
            return nothing
        try:
            report, delta, buffers = self._believed(plan, position, contents[client])
            length = math.sqrt(report.norm2)
            if report.finite and length > longest:
                raise RefusedError(f"its update has length {length:.3g}, and the model {float(job.params.norm()):.3g}")
        except RefusedError as refusal:
            self._log.add("refused", [client], str(refusal))
            return nothing
        clip = self.limits.clip_norm
        if clip is not None and report.finite and length > clip:
            self._log.add("clipped", [client], f"updates longer than {clip:g} are shortened to it")
            delta, report = delta * (clip / length), report._replace(norm2=clip * clip)
        if not report.finite:
            self._log.add("diverged", [client], "its update, its buffers or its loss is not finite")
        return report, delta, buffers

    def _believed(self, plan: RoundPlan, position: int, content: RecordDict) -> Reply:
        """A reply that is whole; its numbers may still be infinite, as those of a client that diverged."""
        job, client = plan.job, plan.job.clients[position]
        watched = observe(self.algorithm, torch.ones(1), job.orders[position])
        report = read_report(client, only_metrics(content), watched, self.limits)
        params, buffers = self._model.vectors(read_arrays(content, self._names))
        delta = params - job.params
        norm2 = float(torch.dot(delta, delta))
        finite = report.finite and norm2 < math.inf and all_finite(buffers)
        if plan.late and not math.isfinite(report.received_loss(self.rounds.loss_source)):
            finite = False
        return report._replace(norm2=norm2, finite=finite), delta, buffers

    def _num_tested(self, client: ClientId, metrics: MetricRecord) -> int:
        """How many examples a client evaluated on; its training examples, if it does not say."""
        size = self._members.size(client)
        return read_num_examples(metrics, self.limits, least=0) if NUM_EXAMPLES in metrics else size

    def _by_data(self, of_clients: Mapping[ClientId, float]) -> float:
        """What clients say of their training, averaged by data as Flower's own strategies do."""
        weights = [self._members.size(client) for client in of_clients]
        return summarize(list(of_clients.values()), weights).weighted_mean


def _check_kinds(model: object, local: object, rounds: object, limits: object) -> None:
    """Refuse arguments that would break the first round, when all clients are there."""
    if not isinstance(model, nn.Module | Mapping):
        raise ConfigError(f"model must be a torch.nn.Module, or tensors by name; got {shown(model)}")
    for name, value, kind in (("local", local, LocalTraining), ("rounds", rounds, Rounds), ("limits", limits, Limits)):
        if not isinstance(value, kind):
            hint = " How many there are goes to start(num_rounds=...)." if name == "rounds" else ""
            raise ConfigError(f"{name} must be of class {kind.__name__}; got {shown(value)}.{hint}")


def _by_metric(contents: Mapping[ClientId, RecordDict]) -> dict[str, dict[ClientId, float]]:
    """{metric: {client: value}} of the clients' own single numbers."""
    values: dict[str, dict[ClientId, float]] = {}
    for client, content in contents.items():
        for record in content.metric_records.values():
            for name, value in own_numbers(record).items():
                values.setdefault(name, {})[client] = value
    return values
