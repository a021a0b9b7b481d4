"""Who gets which example: labels in, one index list per client out. Pure functions of (labels, seed)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from propfair.errors import ConfigError, DataError
from propfair.federation.ragged import Ragged
from propfair.registry import Registry

Counts = NDArray[np.int64]
_MOST_BETA = 1e100  # of a Dirichlet distribution: sums of more overflow


@dataclass(frozen=True)
class Partition:
    """The index list of each client, and how it came about.

    Attributes:
        clients: the example indices of each client.
        seed_used: the seed that gave them; above the seed asked for when draws were refused.
        tries: how many draws it took.
        users: the natural user behind each client, None where clients are made up.
        note: more for the record.
    """

    clients: Ragged
    seed_used: int
    tries: int = 1
    users: tuple[int, ...] | None = None
    note: str = ""


class Partitioner(ABC):
    """Deals examples to clients. Subclasses are frozen dataclasses that register themselves."""

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, labels: Tensor, num_clients: int | None, seed: int, user: Tensor | None = None) -> Partition:
        """Deal the examples with `labels` [N] to `num_clients` clients; None: as many as the data has."""


PARTITIONERS: Registry[Partitioner] = Registry("partitioner", "propfair.federation.partition", "propfair.partitioners")
register = PARTITIONERS.register


Draw = Callable[[np.random.Generator], tuple[Counts, Callable[[], Ragged]]]  # what each gets [n], and how to deal it


@dataclass(frozen=True, kw_only=True)
class Drawn(Partitioner):
    """Random proportions. A draw that leaves a client under `min_samples` is thrown away and the next seed is tried."""

    beta: float = 0.5
    min_samples: int = 10
    max_tries: int = 1000

    small_beta: ClassVar[str]  # what small values of beta do

    def __post_init__(self) -> None:
        _check_positive("beta", self.beta, self.small_beta)
        _check_retries(self.min_samples, self.max_tries)

    def __call__(self, labels: Tensor, num_clients: int | None, seed: int, user: Tensor | None = None) -> Partition:
        number = _check_number(labels, num_clients, self.min_samples)
        draw = self.drawing(labels, number)
        best = -1
        for used in range(seed, seed + self.max_tries):
            lengths, deal = draw(np.random.default_rng(used))
            smallest = int(lengths.min())
            if smallest >= max(1, self.min_samples):
                return Partition(deal(), used, used - seed + 1)
            best = max(best, smallest)
        raise _no_draw(self.max_tries, seed, number, max(1, self.min_samples), best, "a larger beta")

    @abstractmethod
    def drawing(self, labels: Tensor, number: int) -> Draw:
        """How to draw, once what is the same for all draws is done."""


@register("dirichlet")
@dataclass(frozen=True, kw_only=True)
class Dirichlet(Drawn):
    r"""Label skew: every class is dealt in proportions $q \sim \mathrm{Dir}(\beta, \dots, \beta)$ (the paper's way).

    Counts are rounded by largest remainder, and examples are shuffled inside each class. A draw that leaves a client
    under `min_samples` is thrown away and the next seed is tried; the authors' code has no such loop.

    Args:
        beta: small values give few classes per client; the paper has 0.5, 0.1 and 0.05.
        min_samples: what every client must get at least.
        max_tries: how many seeds to try before giving up.
    """

    small_beta = "Small values give few classes per client."

    def drawing(self, labels: Tensor, number: int) -> Draw:
        y = _class_labels(labels)
        order = np.argsort(y, kind="stable")
        sizes = np.bincount(y)
        sizes = sizes[sizes > 0]

        def draw(rng: np.random.Generator) -> tuple[Counts, Callable[[], Ragged]]:
            quota = rng.dirichlet(np.full(number, self.beta), size=len(sizes)) * sizes[:, None]  # [classes, n]
            counts = largest_remainder(quota, sizes)

            def deal() -> Ragged:
                for block in np.split(order, np.cumsum(sizes)[:-1]):
                    rng.shuffle(block)
                owner = np.repeat(np.tile(np.arange(number), len(sizes)), counts.ravel())
                return _by_owner(owner, order, number)

            return counts.sum(0), deal

        return draw


@register("iid")
@dataclass(frozen=True)
class Iid(Partitioner):
    """No skew: a shuffled deck, dealt in equal parts (sizes differ by at most one)."""

    def __call__(self, labels: Tensor, num_clients: int | None, seed: int, user: Tensor | None = None) -> Partition:
        number = _check_number(labels, num_clients, 1)
        deck = np.random.default_rng(seed).permutation(len(labels))
        lengths = np.full(number, len(deck) // number)
        lengths[: len(deck) % number] += 1
        return Partition(Ragged.packed(deck, lengths), seed)


@register("dirichlet-quantity")
@dataclass(frozen=True, kw_only=True)
class DirichletQuantity(Drawn):
    """Quantity skew: sizes in Dirichlet proportions, the same mixture of classes for all.

    Args:
        beta: small values give few large clients and many small ones.
        min_samples: what every client must get at least.
        max_tries: how many seeds to try before giving up.
    """

    small_beta = "Small values give unequal sizes."

    def drawing(self, labels: Tensor, number: int) -> Draw:
        total = np.array([len(labels)])

        def draw(rng: np.random.Generator) -> tuple[Counts, Callable[[], Ragged]]:
            lengths = largest_remainder(rng.dirichlet(np.full(number, self.beta), size=1) * total, total)[0]
            return lengths, lambda: Ragged.packed(rng.permutation(len(labels)), lengths)

        return draw


@register("shards")
@dataclass(frozen=True, kw_only=True)
class Shards(Partitioner):
    """Pathological label skew (McMahan et al., 2017): examples sorted by label, cut in equal shards, a few for each.

    Args:
        shards_per_client: 2 leaves most clients with about two classes.
    """

    shards_per_client: int = 2

    def __post_init__(self) -> None:
        if self.shards_per_client < 1:
            raise ConfigError(f"shards_per_client must be >= 1; got {self.shards_per_client}")

    def __call__(self, labels: Tensor, num_clients: int | None, seed: int, user: Tensor | None = None) -> Partition:
        number = _check_number(labels, num_clients, self.shards_per_client)
        rng = np.random.default_rng(seed)
        deck = rng.permutation(len(labels))
        deck = deck[np.argsort(_class_labels(labels)[deck], kind="stable")]
        num_shards = number * self.shards_per_client
        ends = np.arange(1, num_shards + 1) * len(deck) // num_shards
        owner = np.repeat(rng.permutation(num_shards) // self.shards_per_client, np.diff(ends, prepend=0))
        return Partition(_by_owner(owner, deck, number), seed)


@register("natural")
@dataclass(frozen=True, kw_only=True)
class Natural(Partitioner):
    """One client per natural user of the data (a speaking role, a writer); examples stay in order.

    With `num_clients`, that many of the users are drawn by the seed.

    Args:
        min_samples: users with fewer examples are left out (10,000 for the paper's Shakespeare).
    """

    min_samples: int = 1

    def __post_init__(self) -> None:
        _check_minimum(self.min_samples)

    def __call__(self, labels: Tensor, num_clients: int | None, seed: int, user: Tensor | None = None) -> Partition:
        if user is None:
            raise ConfigError(
                "partitioner 'natural' needs data with natural users (shakespeare, synthetic, or your own `user` "
                "array). Of a table of your own, name the column that says whose a row is: data.client=COLUMN. Use "
                "'dirichlet' or 'iid' for data without, as in data.partition=iid data.num_clients=10."
            )
        owner = user.cpu().numpy()
        lengths = np.bincount(owner)
        kept = np.flatnonzero(lengths >= max(1, self.min_samples))
        if not len(kept):
            raise DataError(f"no user has min_samples={self.min_samples} examples; the largest has {lengths.max()}")
        note = f"{len(kept)} users with at least {self.min_samples} examples"
        if num_clients is not None:
            if not 1 <= num_clients <= len(kept):
                raise DataError(
                    f"num_clients must be between 1 and the number of users with at least {self.min_samples} examples, "
                    f"which is {len(kept)}; got num_clients={num_clients}"
                )
            kept = np.sort(np.random.default_rng(seed).choice(kept, num_clients, replace=False))
        place = np.full(len(lengths), -1, dtype=np.int32)
        place[kept] = np.arange(len(kept))
        owner = place[owner]
        index = np.flatnonzero(owner >= 0)
        clients = _by_owner(owner[index], index, len(kept))
        return Partition(clients, seed, users=tuple(kept.tolist()), note=note)


def largest_remainder(quota: NDArray[np.float64], totals: Counts) -> Counts:
    """Round each row of `quota` [rows, n] to whole numbers that sum to `totals` [rows].

    Everyone gets the whole part; what is left goes to the largest fractions, ties to the first.

    >>> largest_remainder(np.array([[1.5, 0.3, 1.2]]), np.array([3]))
    array([[2, 0, 1]])
    """
    counts = np.floor(quota).astype(np.int64)
    left = totals - counts.sum(1)
    rank = np.argsort(np.argsort(-(quota - counts), axis=1, kind="stable"), axis=1, kind="stable")
    counts += rank < left[:, None]
    return counts


def _by_owner(owner: NDArray[np.integer[Any]], index: Counts, number: int) -> Ragged:
    if (owner[1:] < owner[:-1]).any():
        index = index[np.argsort(owner, kind="stable")]
    return Ragged.packed(index, np.bincount(owner, minlength=number))


def _class_labels(labels: Tensor) -> Counts:
    if labels.is_floating_point() or labels.ndim != 1:
        raise ConfigError(
            f"this partitioner needs one class label per example; got {labels.dtype} of shape {tuple(labels.shape)}. "
            "Use 'iid' or 'dirichlet-quantity' for real-valued targets."
        )
    y: Counts = labels.cpu().numpy().astype(np.int64)
    return y


def _check_positive(name: str, value: float, hint: str) -> None:
    if not 0 < value <= _MOST_BETA:
        raise ConfigError(f"{name} must be > 0 and at most {_MOST_BETA:g}; got {name}={value}. {hint}")


def _check_minimum(min_samples: int) -> None:
    if min_samples < 0:
        raise ConfigError(f"min_samples must be >= 0; got min_samples={min_samples}")


def _check_retries(min_samples: int, max_tries: int) -> None:
    _check_minimum(min_samples)
    if max_tries < 1:
        raise ConfigError(f"max_tries must be >= 1; got max_tries={max_tries}")


def _check_number(labels: Tensor, num_clients: int | None, min_samples: int) -> int:
    if num_clients is None:
        raise ConfigError("num_clients is needed by this partitioner; only 'natural' takes it from the data")
    if num_clients < 1:
        raise ConfigError(f"num_clients must be >= 1; got num_clients={num_clients}")
    need = num_clients * max(1, min_samples)
    if need > len(labels):
        raise DataError(
            f"more is asked for than there is: {num_clients} clients with at least {max(1, min_samples)} examples each "
            f"need {need}, the data has {len(labels)}. Use fewer clients or a smaller minimum."
        )
    return num_clients


def _no_draw(tries: int, seed: int, number: int, least: int, best: int, other: str) -> DataError:
    return DataError(
        f"no draw out of {tries} (seeds {seed} to {seed + tries - 1}) gives each of {number} clients "
        f"min_samples={least} examples; the best one leaves the smallest client with {best}. "
        f"Lower min_samples, raise max_tries, or use fewer clients or {other}."
    )
