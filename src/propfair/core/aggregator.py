"""The round loop. What is decided comes from the `Algorithm`; what is computed, from the engine's `Session`."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from propfair.algorithms.base import Algorithm, ClientId, Cohort, Needs, Order, State, as_floats, effective_clients
from propfair.core.client import LocalTraining
from propfair.core.drift import Variates, check_drift
from propfair.core.messages import Block, Job, Reports
from propfair.core.optimizers import Moments
from propfair.core.params import all_finite
from propfair.core.rates import rate_factor
from propfair.core.rounds import Rounds
from propfair.core.updates import PastUpdates, Sums, gram_matrix
from propfair.core.weighing import weigh
from propfair.errors import ConfigError, TrainingError
from propfair.seeds import generator

Losses = Callable[[Tensor, Tensor, Sequence[ClientId]], Tensor]  # (params, buffers, clients) -> [K], see Session.losses


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
class RoundPlan:
    """A round before its clients train."""

    everyone: tuple[ClientId, ...]  # sampled; the job has only those with a finite loss
    cohort: Cohort
    job: Job
    state: State | None  # the next one, of rules that weigh before training
    late: bool  # the losses come with the reports


class Aggregator:
    """Holds the global model and the algorithm's state; `plan` and `conclude` are the two halves of a round.

    It knows no engine and no data, so that clients behind a network are weighed by the same code as simulated ones.

    Args:
        algorithm: what decides orders and weights.
        sizes: [n], the training examples of each client.
        local: how clients train; rules look at the learning rate and the numbers of steps.
        rounds: how the server runs rounds.
        seed: decides who takes part.
        params, buffers: the model to start from.

    Attributes:
        round: rounds done so far.
        params, buffers: the global model.
        state: of the algorithm.
    """

    def __init__(
        self, algorithm: Algorithm, sizes: Tensor, local: LocalTraining, rounds: Rounds, seed: int,
        params: Tensor, buffers: Tensor,
    ) -> None:  # fmt: skip
        if algorithm.remember and not algorithm.needs & Needs.GRAM:
            raise ConfigError(
                f"{algorithm.name} remembers updates for {algorithm.remember} rounds, but does not need GRAM, the "
                "matrix that they are rows of. Let `needs` include Needs.GRAM, or `remember` be 0."
            )
        self.algorithm, self.local, self.rounds, self.seed = algorithm, local, rounds, seed
        self.round = 0
        self.params, self.buffers = params.clone(), buffers.clone()
        self._sizes, self._share = sizes.numpy(), as_floats(sizes) / float(sizes.sum())
        self.state: State = algorithm.init(self._share)
        self._cohort_size = rounds.cohort_size(len(sizes))
        self._past = PastUpdates.none(self.params)
        self._rate_factor = rate_factor(rounds.lr_schedule)
        check_drift(algorithm, local)
        self._variates = Variates(algorithm.drift, self._share)
        self._optimizer, self._moments = rounds.make_optimizer(), Moments()
        self._num_iterates = 0
        self._iterate_mean: Tensor | None = None  # of the global models that are averaged

    def plan(self, losses: Losses | None) -> RoundPlan:
        """Sample and order, and weigh if the rule can before training.

        `losses` measures the model on clients' examples; None: clients do it themselves and report it.
        """
        algorithm, number = self.algorithm, self.round + 1
        late = bool(algorithm.needs & Needs.ANY_LOSS) and (losses is None or self.rounds.measured is None)
        everyone = self._sample(number)
        cohort = self._cohort(number, *self._measured(everyone, None if late else losses))
        early, state = (None, None) if late or self._variates.wanted else self._early_weights(cohort)
        job = Job(
            round=number, params=self.params, buffers=self.buffers, clients=cohort.clients,
            orders=self._scheduled(number, _orders(algorithm, cohort.clients, self.state)),
            weights=early, share=cohort.share,
            corrections=self._variates.corrections(cohort.clients),
        )  # fmt: skip
        return RoundPlan(everyone, cohort, job, state, late)

    def conclude(self, plan: RoundPlan, blocks: Iterable[Block]) -> Outcome:
        """Weigh what the clients of the planned round sent back, and step."""
        algorithm, job, early, state = self.algorithm, plan.job, plan.job.weights, plan.state
        sums = Sums(job)
        for block in blocks:
            sums.add(block)
            del block  # it may be as large as the model

        reports = Reports.joined(sums.reports)
        self._check_alive(job.round, plan.everyone, reports)
        alive = torch.from_numpy(reports.finite)
        cohort = self._with_reports(plan.cohort.select(alive), reports, plan.late)
        self._past = past = self._past.absent(cohort.clients)  # those of the others are not needed again
        if algorithm.needs & Needs.GRAM:
            cohort = replace(cohort, gram=gram_matrix(sums.updates, past.updates), past=past.rows)
        if early is None:
            weights, state = weigh(algorithm, cohort, self.state)
            update = weights[: len(cohort)].to(sums.updates) @ sums.updates
            if len(cohort.past):
                update += weights[len(cohort) :].to(past.updates) @ past.updates
        else:
            summed = early if len(cohort) == len(early) else early[alive]
            if state is None:  # the weights were known up to a factor
                weights, state = weigh(algorithm, cohort, self.state)
            else:  # known since before training: those who are left share the weight of those who are not
                weights = summed * _ratio(early, summed)
            assert sums.total is not None
            update = sums.total.mul_(_ratio(weights, summed))
        if self._variates.wanted:
            self._oppose_drift(job, cohort, weights, alive, update, sums.updates)
        params, moments = self._optimizer.step(self.params, update, self._moments)
        if not all_finite(params):
            raise TrainingError(
                f"round {job.round}: the step is not finite, though every update is: the weights sum to "
                f"{float(weights.sum()):.3g}. The model of round {job.round - 1} is kept. Choose hyper-parameters of "
                f"{algorithm.name} that are less extreme, or lower server.server_lr (now {self._optimizer.lr})."
            )
        self.params, self._moments = params, moments
        if self.buffers.numel():
            self.buffers = sums.buffers / float(job.share[alive].sum())
        self.state, self.round = algorithm.learn(cohort, state), job.round
        self._keep(sums, cohort)
        return self._outcome(plan.everyone, cohort, weights, reports)

    def _oppose_drift(
        self, job: Job, cohort: Cohort, weights: Tensor, alive: Tensor, update: Tensor, updates: Tensor
    ) -> None:
        """Let the variates learn from the clients' updates [K, P], and add to the `update` [P] what they ask for."""
        scale = [order.lr_scale for order, there in zip(job.orders, alive.tolist(), strict=True) if there]
        length = [steps * self.local.lr * own for steps, own in zip(cohort.num_steps.tolist(), scale, strict=True)]
        corrections = None if job.corrections is None else job.corrections[alive.to(job.corrections.device)]
        more = self._variates.learn(cohort.clients, weights[: len(cohort)], updates, corrections, length)
        if more is not None:
            update += more

    @property
    def released(self) -> Tensor:
        """The model [P] to evaluate and to hand out: `params`, or the average of all iterates if that is asked for."""
        return self.params if self._iterate_mean is None else self._iterate_mean

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint must hold to go on with the same bits, by name."""
        kept = {"params": self.params, "buffers": self.buffers}
        kept |= {f"state.{name}": tensor for name, tensor in self.state.items()}
        kept |= {f"past.{name}": tensor for name, tensor in self._past.tensors().items()}
        kept |= {f"variate.{name}": tensor for name, tensor in self._variates.tensors().items()}
        kept |= {f"moment.{name}": tensor for name, tensor in self._moments.items()}
        if self._iterate_mean is not None:
            kept |= {"iterates.mean": self._iterate_mean, "iterates.count": torch.tensor(self._num_iterates)}
        return kept

    def restore(self, round_: int, tensors: Mapping[str, Tensor]) -> None:
        """Go on after `round_` with what `tensors` gave then; tensors of other names are left alone."""
        tensors = _as_named_today(tensors)
        self.round, self.params, self.buffers = round_, tensors["params"], tensors["buffers"]
        self.state = _under("state.", tensors)
        self._past = PastUpdates.of(_under("past.", tensors), self.params)
        self._variates.restore(_under("variate.", tensors))
        self._moments = _under("moment.", tensors)
        self._iterate_mean = tensors.get("iterates.mean")
        self._num_iterates = int(tensors.get("iterates.count", 0))

    def _keep(self, sums: Sums, cohort: Cohort) -> None:
        """What later rounds and the released model need of this one."""
        if self.algorithm.remember:
            if len(cohort) < len(self._sizes):
                self._past = self._past.followed_by(sums.updates, cohort, self.algorithm.remember)
            else:  # nobody is absent
                self._past = PastUpdates.none(self.params)
        if self.rounds.average_iterates or self.algorithm.average_iterates:
            self._num_iterates += 1
            mean = torch.zeros_like(self.params) if self._iterate_mean is None else self._iterate_mean
            self._iterate_mean = mean + (self.params - mean) / self._num_iterates

    def _scheduled(self, number: int, orders: tuple[Order, ...]) -> tuple[Order, ...]:
        """Orders with the learning rate of the round."""
        factor = self._rate_factor(number)
        if not 0 <= factor < float("inf"):
            raise ConfigError(f"lr_schedule must give a finite number >= 0; in round {number} it gave {factor}")
        if factor == 1:
            return orders
        return tuple(order._replace(lr_scale=order.lr_scale * factor) for order in orders)

    def _sample(self, number: int) -> tuple[ClientId, ...]:
        total = len(self._sizes)
        if self._cohort_size == total:
            return tuple(range(total))
        rng = generator(self.seed, "cohort", number)
        if self.rounds.sampling == "samples":
            chosen = torch.multinomial(self._share, self._cohort_size, generator=rng)
        else:
            chosen = torch.randperm(total, generator=rng)[: self._cohort_size]
        return tuple(sorted(chosen.tolist()))

    def _measured(self, clients: tuple[ClientId, ...], losses: Losses | None) -> tuple[tuple[ClientId, ...], Tensor]:
        """The clients whose loss is finite, and their losses; all clients and nan where no loss is asked for."""
        if losses is None or not self.algorithm.needs & Needs.ANY_LOSS:
            return clients, torch.full((len(clients),), torch.nan, dtype=torch.float64)
        loss = losses(self.params, self.buffers, clients)
        finite = loss.isfinite()
        if not finite.any():
            raise TrainingError(
                f"round {self.round + 1}: no client has a finite loss. The model of round {self.round} is kept. "
                f"Lower local.lr (now {self.local.lr})."
            )
        return tuple(c for c, ok in zip(clients, finite.tolist(), strict=True) if ok), loss[finite]

    def _cohort(self, number: int, clients: tuple[ClientId, ...], loss: Tensor) -> Cohort:
        sizes = self._sizes[list(clients)]
        local = self.local
        return Cohort(
            round=number, clients=clients, share=as_floats(sizes / sizes.sum()),
            num_steps=as_floats(local.steps_of(clients, sizes)), lr=local.lr * self._rate_factor(number), loss=loss,
        )  # fmt: skip

    def _early_weights(self, cohort: Cohort) -> tuple[Tensor | None, State | None]:
        """Weights that are known before training, with the next state; or the prior of a rule, without."""
        algorithm = self.algorithm
        if not algorithm.needs & (Needs.NORMS | Needs.GRAM):
            return weigh(algorithm, cohort, self.state)
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
        way_out = f"Lower local.lr (now {self.local.lr})" if diverged else "See the events of this round"
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
            weights=_spread(weights[: len(cohort)], place, 0.0),
            loss=_spread(cohort.loss, place, torch.nan),
            dropped=() if place is None else tuple(itertools.compress(everyone, ~place)),
            reports=reports,
            diagnostics={
                "weight_sum": float(weights[: len(cohort)].sum()),
                "effective_clients": effective_clients(weights[: len(cohort)]),
                "num_dropped": float(len(everyone) - len(there)),
                **{name: float(values.mean()) for name, values in cohort.observed.items()},
                **self.algorithm.diagnose(cohort, weights, self.state),
            },
        )


def _orders(algorithm: Algorithm, clients: tuple[ClientId, ...], state: State) -> tuple[Order, ...]:
    if algorithm.order is None:
        return (Order(),) * len(clients)
    orders = tuple(algorithm.order(client, state) for client in clients)
    names = orders[0].numbers.keys()
    for client, order in zip(clients, orders, strict=True):
        if order.numbers.keys() != names:
            raise ConfigError(
                f"{algorithm.name}.order must name the same numbers for all clients of a round; got {sorted(names)} "
                f"for client {clients[0]} and {sorted(order.numbers)} for client {client}"
            )
    return orders


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


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that beginning."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _as_named_today(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint by the names of `Aggregator.tensors`.

    In version 0.1.0 the state of AFL held the average of its iterates, and that of FedFV the updates of absent clients.
    Their step counts were not kept, since updates were rescaled by them already where that mattered (FedNova).
    """
    names = {
        "state.num_iterates": "iterates.count", "state.iterate_mean": "iterates.mean",
        "state.past_updates": "past.updates", "state.past_clients": "past.clients", "state.past_rounds": "past.rounds",
    }  # fmt: skip
    found = {names.get(name, name): tensor for name, tensor in tensors.items() if name != "state.num_clients"}
    if "past.clients" in found and "past.num_steps" not in found:
        found["past.num_steps"] = torch.ones(len(found["past.clients"]), dtype=torch.float64)
    return found
