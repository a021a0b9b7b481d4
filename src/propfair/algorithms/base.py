"""The contract of an algorithm: K numbers from shares, losses and the Gram matrix, and a transform of the batch loss.

Every algorithm here is

    params <- params + server_lr * sum_k weights_k * delta_k,      delta_k = local_k - received,

so an algorithm is a rule for `weights` on the server and a scalar transform of the batch-mean loss on the client.
K is the number of clients in the cohort of a round, n of all clients, P of parameters.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from propfair.registry import Registry, fields_of

ClientId = int
State = dict[str, Tensor]  # of the server between rounds: named tensors, so that a checkpoint is one safetensors file
Privacy = Literal["sums", "losses", "updates"]
Presets = Mapping[str, Mapping[str, Any]]  # name -> option values


class Needs(enum.Flag):
    """What a rule looks at beside the data shares. Costs are paid only for what is asked."""

    NOTHING = 0
    LOSS = enum.auto()  # `batch_loss` of the received model over each client's whole training set
    NORMS = enum.auto()  # ||delta_k||^2
    GRAM = enum.auto()  # <delta_j, delta_k>; the server then holds one update per client of the cohort


class Order(NamedTuple):
    """What the server tells one client beside the parameters."""

    lr_scale: float = 1.0  # multiplies the client's learning rate in this round
    baseline: float = 0.0  # the client's own M_k, for rules that have one


class Personal(NamedTuple):
    """Asks clients to keep a personal model v_k: v <- v - lr (grad f_k(v) + lam (v - received))."""

    lam: float
    lr: float | None = None  # None: the learning rate of the global model
    candidates: tuple[float, ...] = ()  # instead of lam: each is tried, and the least validation loss decides


@dataclass(frozen=True)
class Cohort:
    """All that a server rule may look at. Tensors are float64 on the CPU."""

    round: int
    clients: tuple[ClientId, ...]
    share: Tensor  # [K], n_k over the cohort's total: sums to 1
    num_steps: Tensor  # [K], local SGD steps; those planned where a rule weighs before training
    lr: float  # the local learning rate
    loss: Tensor  # [K], of the model received; nan unless the rule needs it
    norm2: Tensor | None = None  # [K], squared norms of the updates; for NORMS and GRAM
    gram: Tensor | None = None  # [K, K]; for GRAM
    observed: Mapping[str, Tensor] = field(default_factory=dict)  # [K] each, what `observe` returned on the clients

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
    ) -> "Cohort":
        """A cohort from plain numbers, to look at a rule without training. `deltas` [K, P] give norms and Gram matrix.

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
            norm2=None if gram is None else gram.diagonal(),
            gram=gram,
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
        share = self.share[keep]
        return dataclasses.replace(
            self,
            clients=tuple(client for client, kept in zip(self.clients, keep.tolist(), strict=True) if kept),
            share=share / share.sum(),
            num_steps=self.num_steps[keep],
            loss=self.loss[keep],
            norm2=None if self.norm2 is None else self.norm2[keep],
            gram=None if self.gram is None else self.gram[keep][:, keep],
            observed={name: values[keep] for name, values in self.observed.items()},
        )


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """The contract, and at the same time FedAvg: every default is that of plain averaging.

    Subclasses are frozen dataclasses with pure methods. Fields are the hyper-parameters, under the paper's symbols.
    """

    name: ClassVar[str]
    presets: ClassVar[Presets] = {}

    @property
    def needs(self) -> Needs:
        """What `weigh` looks at."""
        return Needs.NOTHING

    @property
    def privacy(self) -> Privacy:
        """What the server must see of a single client: nothing but sums, its loss, or its update."""
        if self.needs & (Needs.NORMS | Needs.GRAM):
            return "updates"
        return "losses" if self.needs & Needs.LOSS else "sums"

    @property
    def personal(self) -> Personal | None:
        """How clients train a model of their own beside the global one; None: they don't."""
        return None

    def init(self, share: Tensor) -> State:
        """The server state before round 1; `share` [n] is over all clients."""
        return {}

    def order(self, client: ClientId, state: State) -> Order:
        """The message to one client of the round; `state` is that at the start of the round."""
        return Order()

    def batch_loss(self, losses: Tensor, weight: Tensor | None = None) -> Tensor:
        """The loss of one batch from its examples' losses [B]: the mean. `weight` [B] sums to 1 and masks padding."""
        return losses.mean() if weight is None else (losses * weight).sum()

    def objective(self, batch_loss: Tensor, order: Order) -> Tensor:
        """phi: what the client differentiates instead of the batch loss. Elementwise, no data-dependent branches."""
        return batch_loss

    def watch(self, batch_loss: Tensor, order: Order) -> dict[str, Tensor]:
        """Numbers for the record from batch losses that clients saw in training. Elementwise, as `objective`."""
        return {}

    def observe(self, batch_losses: Tensor, order: Order) -> dict[str, float]:
        """The means of what `watch` gives for all batch losses [S] that a client saw in the round."""
        return {name: float(values.mean()) for name, values in self.watch(batch_losses, order).items()}

    def prior(self, cohort: Cohort, state: State) -> Tensor | None:
        """For rules that need NORMS: the weights up to one common factor, known before the updates arrive.

        With it the server adds updates up as they come instead of keeping them.
        """
        return None

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        """The weights [K] on the updates, and the next state."""
        return cohort.share, state

    def amend(self, update: Tensor, deltas: Tensor, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        """For rules that need GRAM: the last word on the weighted sum `update` [P], while `deltas` [K, P] are at hand.

        Called once a round between `weigh` and the step, with the state that `weigh` returned.
        """
        return update, state

    def learn(self, cohort: Cohort, state: State) -> State:
        """Called once a round when all reports are in: what the state keeps of what clients observed."""
        return state

    def absorb(self, params: Tensor, state: State) -> State:
        """Called once a round after the step, with the new parameters [P]: what the state keeps of them."""
        return state

    def released(self, params: Tensor, state: State) -> Tensor:
        """The model [P] to evaluate and to hand out; the next round goes on from `params` all the same."""
        return params

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        """Numbers about the round for the record, beside the sum of the weights and the effective number of clients.

        `state` is the one that `weigh` returned.
        """
        return {}

    def __str__(self) -> str:
        fields = ", ".join(f"{key}={value}" for key, value in fields_of(self).items())
        return f"{self.name}({fields})" if fields else self.name


ALGORITHMS: Registry[Algorithm] = Registry("algorithm", "propfair.algorithms", "propfair.algorithms")
register = ALGORITHMS.register


def effective_clients(weights: Tensor) -> float:
    """(sum w)^2 / sum w^2: how many equally weighted clients would have the same spread; 0 if all weights are 0."""
    total, squares = float(weights.sum()), float(weights.square().sum())
    return total * total / squares if squares > 0 else 0.0


def as_floats(values: Sequence[float] | Sequence[Sequence[float]] | NDArray[np.number] | Tensor) -> Tensor:
    """float64 on the CPU: the number type of every server rule."""
    return torch.as_tensor(values, dtype=torch.float64, device="cpu")
