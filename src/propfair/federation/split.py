"""Train, validation and test inside each client. Pure functions of (index lists, labels, seed)."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from propfair.errors import ConfigError
from propfair.federation.ragged import Ragged

SplitOrder = Literal["stratified", "per-class", "shuffled", "contiguous"]


class Splits(NamedTuple):
    """The example indices of each client, by purpose."""

    train: Ragged
    validation: Ragged
    test: Ragged


@dataclass(frozen=True, kw_only=True)
class Splitter:
    """Cuts each client's list into train, validation and test.

    Validation is carved out of train: the test part is the same with and without it, so tuning never touches it.
    Of n examples, floor((1 - test) n) are for train and validation, and test gets the rest.

    Args:
        validation: fraction for choosing hyper-parameters, 0 for none.
        test: fraction for the report; the paper has 0.2 (images) and 0.5 (Shakespeare).
        order: "stratified": the fractions hold for each client, and within one example for each of its classes;
            "per-class": the authors' way, rounding in each class of each client, so that a class with a single
            example is never trained on; "shuffled": classes play no part; "contiguous": in the order of the data, for
            text and time series.
        gap: examples left out at each cut of "contiguous"; length - 1 for windows of a text, so that none overlap.
    """

    validation: float = 0.0
    test: float = 0.2
    order: SplitOrder = "stratified"
    gap: int = 0

    def __post_init__(self) -> None:
        for name in ("validation", "test"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigError(f"{name} must be at least 0 and under 1; got {name}={value}")
        if self.validation + self.test >= 1:
            raise ConfigError(
                f"validation + test must be under 1 to leave something for training; "
                f"got validation={self.validation}, test={self.test}"
            )
        if self.gap < 0:
            raise ConfigError(f"gap must be >= 0; got gap={self.gap}")
        if self.gap and self.order != "contiguous":
            raise ConfigError(f"gap={self.gap} only makes sense with order='contiguous'; got order={self.order!r}")

    def __call__(self, clients: Ragged, labels: Tensor | None, seed: int) -> Splits:
        """Split every client; `labels` [N] of all examples, needed for "stratified"."""
        values = clients.values.numpy()
        # Millions of examples are common: whole numbers of 32 bits halve the memory of what follows.
        owner = np.repeat(np.arange(len(clients), dtype=np.int32), clients.lengths.numpy())
        group: NDArray[np.integer[Any]] = owner
        if self.order in ("stratified", "per-class"):
            if labels is None or labels.is_floating_point() or labels.ndim != 1:
                raise ConfigError(f"order={self.order!r} needs one class label per example. Use order='shuffled'.")
            classes = labels.cpu().numpy()[values]
            group = owner * np.int64(int(classes.max(initial=0)) + 1) + classes
        if self.order != "contiguous":
            # A stream of its own, apart from that of the partitioner with the same seed.
            shuffle = np.random.default_rng([seed, 0x5B1]).permutation(len(values))
            order = shuffle[np.argsort(group[shuffle], kind="stable")]
            values, owner, group = values[order], owner[order], group[order]
        rank, sizes = _places(owner if self.order == "stratified" else group)
        purposes = self._spread(rank) if self.order == "stratified" else self._blocks(rank, sizes)

        def take(keep: NDArray[np.bool_]) -> Ragged:
            return Ragged.packed(values[keep], np.bincount(owner[keep], minlength=len(clients)))

        return Splits(*map(take, purposes))

    def _spread(self, rank: NDArray[np.int32]) -> tuple[NDArray[np.bool_], ...]:
        """Every so many in the order of classes: systematic sampling, exact for the client, even over its classes."""
        used = _whole((rank + 1) * (1 - self.test))  # how many up to here are not for the test
        is_used = used > _whole(rank * (1 - self.test))
        share = self.validation / (1 - self.test)
        is_validation = is_used & (_whole(used * share) > _whole((used - 1) * share))
        return is_used & ~is_validation, is_validation, ~is_used

    def _blocks(self, rank: NDArray[np.int32], sizes: NDArray[np.int32]) -> tuple[NDArray[np.bool_], ...]:
        """First train, then validation, then test, in each group of `sizes`."""
        before_test = _whole((1 - self.test) * sizes)
        validation = np.minimum(_whole(self.validation * sizes), before_test)
        before_validation = before_test - validation
        first_validation = before_validation + np.where(validation > 0, np.int32(self.gap), np.int32(0))
        is_train = rank < np.repeat(before_validation, sizes)
        is_validation = (rank >= np.repeat(first_validation, sizes)) & (rank < np.repeat(before_test, sizes))
        return is_train, is_validation, rank >= np.repeat(before_test + np.int32(self.gap), sizes)


def _places(group: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The place of each example in its group, and the sizes of the groups, which lie end to end."""
    starts = np.flatnonzero(np.diff(group, prepend=-1)).astype(np.int32)
    sizes = np.diff(starts, append=np.int32(len(group)))
    rank = np.arange(len(group), dtype=np.int32) - np.repeat(starts, sizes)
    return rank, sizes


def _whole(numbers: NDArray[np.floating[Any]]) -> NDArray[np.int32]:
    whole: NDArray[np.int32] = np.floor(numbers + 1e-9).astype(np.int32)  # 0.8 * 5 may come out just under 4
    return whole
