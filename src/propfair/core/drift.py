"""What the server keeps against the drift of clients: a vector for each of them, and the corrections made of it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from propfair.algorithms.base import Algorithm, ClientId, Drift
from propfair.core.client import LocalTraining
from propfair.errors import ConfigError


class Variates:
    r"""The variates $c_k$ [P] of SCAFFOLD and FedDyn, held by the server.

    A client that is sent the correction $b_k$ answers with an update $\Delta_k$, and both methods then set
    $c_k \leftarrow -b_k - a_k \Delta_k$:

    - SCAFFOLD: $b_k = \bar c - c_k$ and $a_k = 1 / (\text{steps} \cdot \text{lr})$, so that $c_k$ becomes the mean
      gradient of the client's local steps (option II of the paper);
    - FedDyn: $b_k = -c_k$ and $a_k = \alpha$, and the server's step has $-\bar c / \alpha$ more.

    The papers leave $c_k$ with the client and have the server track a mean with fixed weights. Here the server knows
    each of them, since it follows from what it sent and got. So clients need no memory and send nothing more, and
    $\bar c = \sum_k q_k c_k$ can have the weights of the rule at work: with any others, corrected clients all move
    along a mean that the rule did not choose, and its weights have no effect. q are the data shares of all clients; of
    those in the last round, their common part is divided as the rule weighed them then.

    Args:
        drift: what the algorithm asks for.
        share: [n], the data shares of all clients.
    """

    def __init__(self, drift: Drift | None, share: Tensor) -> None:
        self._drift, self._share = drift, share
        self._own: dict[ClientId, Tensor] = {}
        self._mix = share  # q [n], of the last round

    @property
    def wanted(self) -> bool:
        """Whether there is anything to keep: the server then needs the single updates of a round."""
        return self._drift is not None and self._drift.variates != "none"

    def corrections(self, clients: Sequence[ClientId]) -> Tensor | None:
        """What each of these clients adds to its gradients, [K, P]; None: nothing."""
        if self._drift is None or not self._own:
            return None
        mean = self._mean() if self._drift.variates == "scaffold" else self._zeros()
        rows = mean.repeat(len(clients), 1)
        for row, client in zip(rows, clients, strict=True):
            if client in self._own:
                row -= self._own[client]
        return rows

    def learn(
        self, clients: Sequence[ClientId], weights: Tensor, updates: Tensor, corrections: Tensor | None,
        length: Sequence[float],
    ) -> Tensor | None:  # fmt: skip
        """Keep what the updates [K, P] of a round say; what the server's step has more [P], or None.

        `length` is the number of steps times the learning rate of each client.
        """
        if self._drift is None or not self.wanted:
            return None
        self._mix = self._mixed(clients, weights)
        for k, client in enumerate(clients):
            rate = self._drift.alpha if self._drift.variates == "feddyn" else 1 / length[k] if length[k] else 0.0
            own = updates[k] * -rate
            self._own[client] = own if corrections is None else own.sub_(corrections[k])
        if self._drift.variates == "feddyn":
            return self._mean().div_(-self._drift.alpha)
        return None

    def tensors(self) -> dict[str, Tensor]:
        """By name, for a checkpoint; none if nothing is kept."""
        if not self._own:
            return {}
        return {"mix": self._mix, **{str(client): own for client, own in self._own.items()}}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `tensors`."""
        self._mix = tensors.get("mix", self._share)
        self._own = {int(name): tensor for name, tensor in tensors.items() if name != "mix"}

    def _mixed(self, clients: Sequence[ClientId], weights: Tensor) -> Tensor:
        """Q [n] if the clients of the round are weighed so; the shares where such weights are no mixture."""
        if bool((weights < 0).any()) or not weights.sum() > 0:
            return self._share
        present = torch.tensor(clients)
        part = self._share[present].sum() * weights / weights.sum()
        return self._share.index_put((present,), part.to(self._share))

    def _mean(self) -> Tensor:
        mean = self._zeros()
        for client, own in sorted(self._own.items()):
            mean.add_(own, alpha=float(self._mix[client]))
        return mean

    def _zeros(self) -> Tensor:
        """Like any variate; only asked for where there is one."""
        return torch.zeros_like(next(iter(self._own.values())))


def check_drift(algorithm: Algorithm, local: LocalTraining) -> None:
    """Local training that a drift correction does not fit is found before it starts."""
    drift = algorithm.drift
    if drift is None:
        return
    if drift.variates == "scaffold" and (local.optimizer != "sgd" or local.momentum):
        found = f"momentum={local.momentum}" if local.optimizer == "sgd" else f"optimizer={local.optimizer!r}"
        raise ConfigError(
            f"{algorithm.name} takes a client's update for the sum of its gradients, which holds for plain SGD; got "
            f"{found}. Set local.optimizer=sgd and local.momentum=0."
        )
    if local.optimizer == "sgd" and not local.lr * drift.pull < 2:
        raise ConfigError(
            f"clients diverge unless lr times the pull towards the received model is below 2; got lr={local.lr} and "
            f"a pull of {drift.pull} in {algorithm.name}. Lower one of them."
        )
