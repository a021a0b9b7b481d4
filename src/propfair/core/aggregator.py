"""The round loop. What is decided comes from the `Algorithm`; what is computed, from the engine's `Session`."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Algorithm, ClientId, Cohort, Needs, Order, State, as_floats, effective_clients
from propfair.core.client import Workload
from propfair.core.messages import Block, Job, LossSource, Reports
from propfair.core.params import all_finite
from propfair.errors import ConfigError, TrainingError
from propfair.seeds import generator

_GRAM_BYTES, _GRAM_ROWS = 64 << 20, 256  # of the float64 strips that a Gram matrix is computed in

Sampling = Literal["uniform", "samples"]
Losses = Callable[[Tensor, Tensor, Sequence[ClientId]], Tensor]  # (params, buffers, clients) -> [K], see Session.losses


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How the server runs rounds.

    Args:
        participation: the clients of a round: a share in (0, 1], or how many.
        sampling: "uniform" over clients; "samples": in proportion to their data.
        server_lr: multiplies the aggregated update.
        loss_source: the loss that rules look at: "before_full", of the received model on the whole training set;
            "first_batch" or "running_mean", as seen while training (cheaper; the updates must then be kept).
        strict: stop at the first client that diverges instead of leaving it out of the round.
    """

    participation: float = 1.0
    sampling: Sampling = "uniform"
    server_lr: float = 1.0
    loss_source: LossSource = "before_full"
    strict: bool = False

    def __post_init__(self) -> None:
        if not self.participation > 0 or (self.participation > 1 and self.participation != int(self.participation)):
            raise ConfigError(
                f"participation must be a share in (0, 1] or a number of clients; got {self.participation}"
            )
        if not 0 < self.server_lr < float("inf"):
            raise ConfigError(f"server_lr must be a positive number; got server_lr={self.server_lr}")

    def cohort_size(self, num_clients: int) -> int:
        """How many clients take part in a round."""
        size = round(self.participation * num_clients) if self.participation <= 1 else int(self.participation)
        if size > num_clients:
            raise ConfigError(f"participation asks for {size} clients a round, but there are only {num_clients}")
        return max(1, size)


@dataclass(frozen=True)
class Outcome:
    """What happened in a round. Tensors run over the clients of the round, in order; nan: does not apply."""

    round: int
    clients: tuple[ClientId, ...]
    weights: Tensor  # [K], 0 for dropped clients
    loss: Tensor  # [K], of the model received
    dropped: tuple[ClientId, ...]  # loss or update not finite, or no answer
    reports: Reports
    diagnostics: Mapping[str, float]


@dataclass(frozen=True)
class Plan:
    """A round before its clients train."""

    everyone: tuple[ClientId, ...]  # sampled; the job has only those with a finite loss
    cohort: Cohort
    job: Job
    state: State | None  # the next one, of rules that weigh before training
    late: bool  # the losses come with the reports


class Aggregator:
    """Holds the global model and the algorithm's state; `plan` and `conclude` are the two halves of a round.

    It knows no engine, so that clients behind a network are weighed by the same code as simulated ones.

    Attributes:
        round: rounds done so far.
        params, buffers: the global model.
        state: of the algorithm.
    """

    def __init__(self, work: Workload, rounds: Rounds, params: Tensor, buffers: Tensor) -> None:
        self.work, self.rounds = work, rounds
        self.round = 0
        self.params, self.buffers = params.clone(), buffers.clone()
        self.state: State = self.work.algorithm.init(self.work.federation.share)
        self._size = rounds.cohort_size(self.work.federation.num_clients)

    def plan(self, losses: Losses | None) -> Plan:
        """Sample and order, and weigh if the rule can before training.

        `losses` measures the model on clients' training sets; None: clients do it themselves and report it.
        """
        algorithm, number = self.work.algorithm, self.round + 1
        late = bool(algorithm.needs & Needs.LOSS) and (losses is None or self.rounds.loss_source != "before_full")
        everyone = self._sample(number)
        cohort = self._cohort(number, *self._measured(everyone, None if late else losses))
        early, state = (None, None) if late else self._early_weights(cohort)
        job = Job(
            round=number, params=self.params, buffers=self.buffers, clients=cohort.clients,
            orders=_orders(algorithm, cohort.clients, self.state),
            weights=early, share=cohort.share,
        )  # fmt: skip
        return Plan(everyone, cohort, job, state, late)

    def conclude(self, plan: Plan, blocks: Iterable[Block]) -> Outcome:
        """Weigh what the clients of the planned round sent back, and step."""
        algorithm, job, early, state = self.work.algorithm, plan.job, plan.job.weights, plan.state
        sums = _Sums(job)
        for block in blocks:
            sums.add(block)
            del block  # it may be as large as the model

        reports = Reports.joined(sums.reports)
        self._check_alive(job.round, plan.everyone, reports)
        alive = torch.from_numpy(reports.finite)
        cohort = self._with_reports(plan.cohort.select(alive), reports, plan.late)
        if algorithm.needs & Needs.GRAM:
            cohort = replace(cohort, gram=_gram(sums.updates))
        if early is None:
            weights, state = algorithm.weigh(cohort, self.state)
            update = weights.to(sums.updates) @ sums.updates
            update, state = algorithm.amend(update, sums.updates, cohort, state)
        else:
            summed = early if len(cohort) == len(early) else early[alive]
            if state is None:  # the weights were known up to a factor
                weights, state = algorithm.weigh(cohort, self.state)
            else:  # known since before training: those who are left share the weight of those who are not
                weights = summed * _ratio(early, summed)
            assert sums.total is not None
            update = sums.total.mul_(_ratio(weights, summed))
        params = torch.add(self.params, update, alpha=self.rounds.server_lr)
        if not all_finite(params):
            raise TrainingError(
                f"round {job.round}: the step is not finite, though every update is: the weights sum to "
                f"{float(weights.sum()):.3g}. The model of round {job.round - 1} is kept. Choose hyper-parameters of "
                f"{algorithm.name} that are less extreme, or lower server.server_lr (now {self.rounds.server_lr})."
            )
        self.params = params
        if self.buffers.numel():
            self.buffers = sums.buffers / float(job.share[alive].sum())
        self.state, self.round = algorithm.absorb(self.params, algorithm.learn(cohort, state)), job.round
        return self._outcome(plan.everyone, cohort, weights, reports)

    @property
    def released(self) -> Tensor:
        """The model [P] to evaluate and to hand out: `params`, unless the algorithm averages its iterates."""
        return self.work.algorithm.released(self.params, self.state)

    def _sample(self, number: int) -> tuple[ClientId, ...]:
        total = self.work.federation.num_clients
        if self._size == total:
            return tuple(range(total))
        rng = generator(self.work.seed, "cohort", number)
        if self.rounds.sampling == "samples":
            chosen = torch.multinomial(self.work.federation.share, self._size, generator=rng)
        else:
            chosen = torch.randperm(total, generator=rng)[: self._size]
        return tuple(sorted(chosen.tolist()))

    def _measured(self, clients: tuple[ClientId, ...], losses: Losses | None) -> tuple[tuple[ClientId, ...], Tensor]:
        """The clients whose loss is finite, and their losses; all clients and nan where no loss is asked for."""
        if losses is None or not self.work.algorithm.needs & Needs.LOSS:
            return clients, torch.full((len(clients),), torch.nan, dtype=torch.float64)
        loss = losses(self.params, self.buffers, clients)
        finite = loss.isfinite()
        if not finite.any():
            raise TrainingError(
                f"round {self.round + 1}: no client has a finite loss. The model of round {self.round} is kept. "
                f"Lower local.lr (now {self.work.local.lr})."
            )
        return tuple(c for c, ok in zip(clients, finite.tolist(), strict=True) if ok), loss[finite]

    def _cohort(self, number: int, clients: tuple[ClientId, ...], loss: Tensor) -> Cohort:
        sizes = self.work.federation.train.lengths.numpy()[list(clients)]
        local = self.work.local
        return Cohort(
            round=number, clients=clients, share=as_floats(sizes / sizes.sum()),
            num_steps=as_floats(local.steps_of(clients, sizes)), lr=local.lr, loss=loss,
        )  # fmt: skip

    def _early_weights(self, cohort: Cohort) -> tuple[Tensor | None, State | None]:
        """Weights that are known before training, with the next state; or the prior of a rule, without."""
        algorithm = self.work.algorithm
        if not algorithm.needs & (Needs.NORMS | Needs.GRAM):
            return algorithm.weigh(cohort, self.state)
        return algorithm.prior(cohort, self.state), None

    def _with_reports(self, cohort: Cohort, reports: Reports, late: bool) -> Cohort:
        """The cohort with what its clients reported."""
        loss = as_floats(reports.received_loss(self.rounds.loss_source)[reports.finite]) if late else cohort.loss
        observed = {name: as_floats(values[reports.finite]) for name, values in reports.observed.items()}
        return replace(cohort, loss=loss, norm2=as_floats(reports.norm2[reports.finite]), observed=observed)

    def _check_alive(self, number: int, everyone: tuple[ClientId, ...], reports: Reports) -> None:
        num_alive = int(reports.finite.sum())
        if num_alive == len(everyone) or (num_alive and not self.rounds.strict):
            return
        lost = sorted(set(everyone) - set(itertools.compress(reports.clients, reports.finite)))
        who = f"client {lost[0]}" if len(lost) < len(everyone) else "every client"
        diverged = set(lost) - set(itertools.compress(reports.clients, ~reports.answered))
        what = "diverged (loss or update not finite)" if diverged else "gave no answer"
        way_out = f"Lower local.lr (now {self.work.local.lr})" if diverged else "See the events of this round"
        raise TrainingError(
            f"round {number}: {who} {what}. The model of round {number - 1} is kept. "
            f"{way_out}{' or set strict=false' if self.rounds.strict else ''}."
        )

    def _outcome(self, everyone: tuple[ClientId, ...], cohort: Cohort, weights: Tensor, reports: Reports) -> Outcome:
        there = frozenset(cohort.clients)
        place = None if len(there) == len(everyone) else torch.tensor([client in there for client in everyone])
        return Outcome(
            round=cohort.round,
            clients=everyone,
            weights=_spread(weights, place, 0.0),
            loss=_spread(cohort.loss, place, torch.nan),
            dropped=() if place is None else tuple(itertools.compress(everyone, ~place)),
            reports=reports,
            diagnostics={
                "weight_sum": float(weights.sum()),
                "effective_clients": effective_clients(weights),
                "num_dropped": float(len(everyone) - len(there)),
                **{name: float(values.mean()) for name, values in cohort.observed.items()},
                **self.work.algorithm.diagnose(cohort, weights, self.state),
            },
        )


class _Sums:
    """Adds blocks up as they come. Only rules that look at single updates make it keep them."""

    def __init__(self, job: Job) -> None:
        self.reports: list[Reports] = []
        self.buffers = torch.zeros_like(job.buffers)
        self.total: Tensor | None = None  # [P]
        self._rows = None if job.weights is not None else job.params.new_empty(len(job.clients), len(job.params))
        self._filled = 0

    def add(self, block: Block) -> None:
        self.reports.append(block.reports)
        self.buffers += block.buffers
        if self._rows is None:
            self.total = block.update if self.total is None else self.total.add_(block.update)
        else:
            self._rows[self._filled : self._filled + len(block.update)] = block.update
            self._filled += len(block.update)

    @property
    def updates(self) -> Tensor:
        """[K', P], one row for each client that did not diverge."""
        assert self._rows is not None
        return self._rows[: self._filled]


def _orders(algorithm: Algorithm, clients: tuple[ClientId, ...], state: State) -> tuple[Order, ...]:
    if type(algorithm).order is Algorithm.order:  # the same for all
        return (Order(),) * len(clients)
    return tuple(algorithm.order(client, state) for client in clients)


def _spread(values: Tensor, place: Tensor | None, missing: float) -> Tensor:
    """Values of those whose `place` [K] is True, and `missing` for the others; None: all of them are there."""
    if place is None:
        return as_floats(values)
    return as_floats(torch.full((len(place),), missing, dtype=values.dtype).masked_scatter(place, values))


def _ratio(numerator: Tensor, denominator: Tensor) -> float:
    """Sum a / sum b; 1 where b sums to 0, since then nothing is to be scaled."""
    if numerator is denominator:
        return 1.0
    total = float(denominator.sum())
    return float(numerator.sum()) / total if total else 1.0


def _gram(updates: Tensor) -> Tensor:
    """<delta_j, delta_k> in float64: strip by strip of parameters, so that float64 copies stay small."""
    gram = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    width = max(1, _GRAM_BYTES // (8 * max(1, len(updates))))
    for strip in torch.split(updates, width, dim=1):
        wide = strip.double()
        for first in range(0, len(wide), _GRAM_ROWS):  # each pair of clients once: the rest is symmetric
            gram[first : first + _GRAM_ROWS, first:] += (wide[first : first + _GRAM_ROWS] @ wide[first:].T).cpu()
    return gram.triu() + gram.triu(1).T
