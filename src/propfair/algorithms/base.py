"""The contract of an algorithm: K numbers from shares, losses and the Gram matrix, and a transform of the batch loss.

Every algorithm here is

    params <- params + server_lr * sum_k weights_k * delta_k,      delta_k = local_k - received,

so an algorithm is a rule for `weights` on the server and a scalar transform of the batch-mean loss on the client.
K is the number of clients in the cohort of a round, n of all clients, P of parameters.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from propfair.errors import ConfigError, shown
from propfair.registry import Registry, check_fields, fields_of, import_class, make_part

ClientId = int
State = dict[str, Tensor]  # of the server between rounds: named tensors, so that a checkpoint is one safetensors file
Privacy = Literal["sums", "losses", "updates"]
Presets = Mapping[str, Mapping[str, Any]]  # name -> option values


class Advice(NamedTuple):
    """What somebody who chooses an algorithm wants to know, in a few words each. The rest follows from the class."""

    optimises: str
    tune: str  # what needs tuning, beside the learning rate
    epochs: str  # what becomes of it when clients take many local steps
    participation: str  # and when only some clients take part in a round


class Needs(enum.Flag):
    """What a rule looks at beside the data shares. Costs are paid only for what is asked."""

    NOTHING = 0
    LOSS = enum.auto()  # of the received model over each client's whole training set, by `reduce`
    OWN_LOSS = enum.auto()  # the same, of which each client looks at its own; the server sees no more than sums
    NORMS = enum.auto()  # ||delta_k||^2
    GRAM = enum.auto()  # <delta_j, delta_k>; the server then holds one update per client of the cohort
    ANY_LOSS = LOSS | OWN_LOSS  # it must be measured


class Order(NamedTuple):
    """What the server tells one client beside the parameters.

    All clients of a round are told numbers of the same names. Where clients are trained in stacks, both fields hold
    tensors [C] instead of floats, so that whatever looks at an order must be elementwise.
    """

    lr_scale: float = 1.0  # multiplies the client's learning rate in this round
    numbers: Mapping[str, float] = {}  # whatever else `objective` and `watch` want to know, by name


class Reduce(Protocol):
    """One number from the losses of a batch [B]. `weight` [B] sums to 1 and is 0 for padding; None: no padding."""

    def __call__(self, losses: Tensor, weight: Tensor | None = None, /) -> Tensor: ...


MakeOrder = Callable[[ClientId, State], Order]
Objective = Callable[[Tensor, Order], Tensor]  # batch loss, order -> what is differentiated instead
Watch = Callable[[Tensor, Order], dict[str, Tensor]]  # batch losses, order -> named numbers of the same shape


class Personal(NamedTuple):
    """Asks clients to keep a personal model v_k: v <- v - lr (grad f_k(v) + lam (v - received))."""

    lam: float
    lr: float | None = None  # None: the learning rate of the global model
    candidates: tuple[float, ...] = ()  # instead of lam: each is tried, and the least validation loss decides


class Drift(NamedTuple):
    """Keeps the local steps of clients together: gradient + pull (params - received) + correction.

    The correction is a vector [P] for each client that the server makes of variates, see `propfair.core.drift`.
    """

    pull: float = 0.0  # mu of FedProx
    variates: Literal["none", "scaffold", "feddyn"] = "none"
    alpha: float = 0.0  # of FedDyn


@dataclass(frozen=True)
class PastRows:
    """Whose updates of earlier rounds the Gram matrix has as further rows: the latest of each client that is absent.

    They are there for rules that ask for them by `remember`.
    """

    clients: tuple[ClientId, ...] = ()
    rounds: tuple[int, ...] = ()  # in which each update was sent
    num_steps: tuple[float, ...] = ()  # local SGD steps behind each update

    def __len__(self) -> int:
        return len(self.clients)


@dataclass(frozen=True)
class Cohort:
    """All that a server rule may look at. Tensors are float64 on the CPU. R is the number of past rows, mostly 0."""

    round: int
    clients: tuple[ClientId, ...]
    share: Tensor  # [K], n_k over the cohort's total: sums to 1
    num_steps: Tensor  # [K], local SGD steps; those planned where a rule weighs before training
    lr: float  # the local learning rate
    loss: Tensor  # [K], of the model received; nan unless the rule needs it
    norm2: Tensor | None = None  # [K], squared norms of the updates; for NORMS and GRAM
    gram: Tensor | None = None  # [K + R, K + R], the clients of the round first; for GRAM
    past: PastRows = PastRows()
    observed: Mapping[str, Tensor] = field(default_factory=dict)  # [K] each, means of what `watch` gave on the clients

    @staticmethod
    def of(
        share: Sequence[float],
        loss: Sequence[float] | None = None,
        deltas: Sequence[Sequence[float]] | None = None,
        *,
        clients: tuple[ClientId, ...] | None = None,
        num_steps: Sequence[float] | None = None,
        lr: float = 0.1,
        round_: int = 1,
        past: PastRows | None = None,
    ) -> "Cohort":
        """A cohort from plain numbers, to look at a rule without training.

        `deltas` give norms and Gram matrix: [K, P], or [K + R, P] with the R updates of `past` at the end.

        >>> Cohort.of([0.5, 0.3, 0.2], deltas=[[1, 0], [0, 1], [-1, 1]]).norm2
        tensor([1., 1., 2.], dtype=torch.float64)
        """
        updates = None if deltas is None else as_floats(deltas)
        gram = None if updates is None else updates @ updates.T
        return Cohort(
            round=round_,
            clients=tuple(range(len(share))) if clients is None else clients,
            share=as_floats(share),
            num_steps=as_floats([1.0] * len(share) if num_steps is None else num_steps),
            lr=lr,
            loss=as_floats([torch.nan] * len(share) if loss is None else loss),
            norm2=None if gram is None else gram.diagonal()[: len(share)],
            gram=gram,
            past=past or PastRows(),
        )

    def __len__(self) -> int:
        return len(self.clients)

    def shares(self, weighting: Literal["samples", "uniform", "none"]) -> Tensor:
        """The data shares [K] for "samples", else equal parts."""
        return self.share if weighting == "samples" else torch.full_like(self.share, 1 / len(self))

    def select(self, keep: Tensor) -> "Cohort":
        """The cohort without the clients where `keep` [K] is False; shares sum to 1 again."""
        if bool(keep.all()):
            return self
        share, rows = self.share[keep], torch.cat([keep, keep.new_ones(len(self.past))])
        return dataclasses.replace(
            self,
            clients=tuple(client for client, kept in zip(self.clients, keep.tolist(), strict=True) if kept),
            share=share / share.sum(),
            num_steps=self.num_steps[keep],
            loss=self.loss[keep],
            norm2=None if self.norm2 is None else self.norm2[keep],
            gram=None if self.gram is None else self.gram[rows][:, rows],
            observed={name: values[keep] for name, values in self.observed.items()},
        )


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The contract, and at the same time FedAvg: every default is that of plain averaging.

    Subclasses are frozen dataclasses with pure methods. Fields are the hyper-parameters, under the paper's symbols.

    `order`, `reduce`, `objective` and `watch` are None where a rule has none, so that nothing is spent on them. A rule
    that always has one just defines the method; one that has it under some options only defines a property that
    returns the method or None.
    """

    name: ClassVar[str]
    presets: ClassVar[Presets] = {}
    advice: ClassVar[Advice | None] = None

    def __init_subclass__(cls) -> None:
        if "name" not in cls.__dict__:
            cls.name = cls.__name__  # until it is registered, or asked for by its path

    @classmethod
    def as_named_today(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options in a run folder, which spells all of them out, in today's words; it may be of version 0.1.0."""
        return options

    @property
    def needs(self) -> Needs:
        """What `weigh` looks at.

        With OWN_LOSS a weight must be one that clients and sums can make: a client's share times a function of its own
        loss, of the single numbers in the state and of its own place in the vectors [n] of the state, which stand for
        what clients keep; and the next single numbers must come from sums over clients.
        """
        return Needs.NOTHING

    @property
    @final
    def privacy(self) -> Privacy:
        """What the server must see of a single client: nothing but sums, its loss, or its update."""
        variates = self.drift is not None and self.drift.variates != "none"  # each made of the client's own update
        if self.needs & (Needs.NORMS | Needs.GRAM) or variates:
            return "updates"
        return "losses" if self.needs & Needs.LOSS else "sums"

    @property
    def personal(self) -> Personal | None:
        """How clients train a model of their own beside the global one; None: they don't."""
        return None

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        """The main hyper-parameter and the values worth trying first, for comparisons that tune; empty: none."""
        return {}

    @property
    def drift(self) -> Drift | None:
        """What holds clients back from drifting apart in their local steps; None: nothing."""
        return None

    @property
    def remember(self) -> int:
        """For rules that need GRAM: for how many rounds the server keeps the last update of an absent client.

        The updates are further rows of the Gram matrix, and `weigh` gives weights for them, too.
        """
        return 0

    @property
    def average_iterates(self) -> bool:
        """Evaluate and hand out the average of all global models, as `Rounds.average_iterates` does for any rule."""
        return False

    def init(self, share: Tensor) -> State:
        """The server state before round 1; `share` [n] is over all clients."""
        return {}

    @property
    def order(self) -> MakeOrder | None:
        """(client, state at the start of the round) -> what one client is told; None: nothing, all train alike."""
        return None

    @property
    def reduce(self) -> Reduce | None:
        """(losses [B] of the examples of a batch, weight [B] or None) -> the loss of the batch; None: the mean.

        `weight` sums to 1 and masks padding. The same function makes the loss of a client from all its examples.
        """
        return None

    @property
    def objective(self) -> Objective | None:
        """phi: (batch loss, order) -> what the client differentiates instead; None: the batch loss itself.

        Elementwise, and without branches that depend on data: clients may be trained many at a time.
        """
        return None

    @property
    def watch(self) -> Watch | None:
        """(batch losses, order) -> numbers for the record, by name; elementwise, as `objective`; None: none.

        The server sees their means over the batches of a client, in `Cohort.observed`.
        """
        return None

    def prior(self, cohort: Cohort, state: State) -> Tensor | None:
        """For rules that need NORMS: the weights up to one common factor, known before the updates arrive.

        With it the server adds updates up as they come instead of keeping them.
        """
        return None

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        """The weights [K] on the updates, or [K + R] if the cohort has past rows, and the next state."""
        return cohort.share, state

    def learn(self, cohort: Cohort, state: State) -> State:
        """Called once a round when all reports are in: what the state keeps of what clients observed."""
        return state

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        """Numbers about the round for the record, beside the sum of the weights and the effective number of clients.

        `weights` are those that `weigh` returned, `state` is the one after `learn`.
        """
        return {}

    def __str__(self) -> str:
        fields = ", ".join(f"{key}={value}" for key, value in fields_of(self).items())
        return f"{self.name}({fields})" if fields else self.name


ALGORITHMS: Registry[Algorithm] = Registry("algorithm", "propfair.algorithms", "propfair.algorithms")
register = ALGORITHMS.register


_IMPORTED: dict[str, type[Algorithm]] = {}  # by path, what the user has asked for


def make_algorithm(name: str, options: Mapping[str, Any] | None = None) -> Algorithm:
    """The algorithm called `name`: a registered one, or a class of yours as `package.module:ClassName`.

    Paths, also those inside wrappers, are imported here and nowhere else: call it with what the user has said. What
    arrives in a message goes through `ALGORITHMS.make`, which imports nothing.
    """
    _import_paths(name, options or {})
    return build_algorithm(name, options)


def checked_algorithm(algorithm: Any) -> Algorithm:
    """An algorithm that was made in Python, with the names of its choices checked; anything else is an error."""
    if not isinstance(algorithm, Algorithm):
        found = f"the class {algorithm.__name__}" if isinstance(algorithm, type) else shown(algorithm)
        raise ConfigError(f"algorithm must be a name, or an object such as PropFair(M=3.0); got {found}")
    check_fields(algorithm, only_text=True)
    return algorithm


def build_algorithm(name: str, options: Mapping[str, Any] | None = None) -> Algorithm:
    """An algorithm that is registered, or whose path the user has asked for before."""
    if name in _IMPORTED:
        return make_part(_IMPORTED[name], options or {}, f"algorithm {name!r}")
    return ALGORITHMS.make(name, options)


def _import_paths(name: str, options: Mapping[str, Any]) -> None:
    if ":" in name:
        _IMPORTED[name] = import_class(name, "algorithm", Algorithm, "propfair.algorithms.Algorithm")
        _IMPORTED[name].name = name
    inner, further = options.get("over"), options.get("options")
    if isinstance(inner, str):
        _import_paths(inner, further if isinstance(further, Mapping) else {})


def order_for(algorithm: Algorithm, client: ClientId, state: State) -> Order:
    """What the algorithm tells one client; an empty order if it has nothing to say."""
    return Order() if algorithm.order is None else algorithm.order(client, state)


def effective_clients(weights: Tensor) -> float:
    """(sum w)^2 / sum w^2: how many equally weighted clients would have the same spread; 0 if all weights are 0."""
    total, squares = float(weights.sum()), float(weights.square().sum())
    return total * total / squares if squares > 0 else 0.0


def as_floats(values: Sequence[float] | Sequence[Sequence[float]] | NDArray[np.number] | Tensor) -> Tensor:
    """float64 on the CPU: the number type of every server rule."""
    return torch.as_tensor(values, dtype=torch.float64, device="cpu")
