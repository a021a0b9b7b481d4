"""Train, validation and test inside each client. Pure functions of (index lists, labels, seed)."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from propfair.errors import ConfigError
from propfair.ragged import Ragged

Order = Literal["stratified", "shuffled", "contiguous"]


class Splits(NamedTuple):
    """The example indices of each client, by purpose."""

    train: Ragged
    validation: Ragged
    test: Ragged


@dataclass(frozen=True, kw_only=True)
class Splitter:
    """Cuts each client's list into train, validation and test.

    Validation is carved out of train: the test part is the same with and without it, so tuning never touches it.
    Train and validation get the whole part of their fraction of a cell, test gets the rest, as in the authors' code.

    Args:
        validation: fraction for choosing hyper-parameters, 0 for none.
        test: fraction for the report; the paper has 0.2 (images) and 0.5 (Shakespeare).
        order: "stratified": a cell is one class of one client (the authors' way); "shuffled": a cell is a client;
            "contiguous": the same, in the order of the data, for text and time series.
        gap: examples left out at each cut of "contiguous"; length - 1 for windows of a text, so that none overlap.
    """

    validation: float = 0.0
    test: float = 0.2
    order: Order = "stratified"
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
        cell = owner
        if self.order == "stratified":
            if labels is None or labels.is_floating_point() or labels.ndim != 1:
                raise ConfigError("order='stratified' needs one class label per example. Use order='shuffled'.")
            classes = labels.cpu().numpy()[values]
            cell = owner * np.int64(int(classes.max(initial=0)) + 1) + classes
        if self.order != "contiguous":
            # A stream of its own, apart from that of the partitioner with the same seed.
            shuffle = np.random.default_rng([seed, 0x5B1]).permutation(len(values))
            order = shuffle[np.argsort(cell[shuffle], kind="stable")]
            values, owner, cell = values[order], owner[order], cell[order]

        starts = np.flatnonzero(np.diff(cell, prepend=-1)).astype(np.int32)
        sizes = np.diff(starts, append=np.int32(len(cell)))
        rank = np.arange(len(cell), dtype=np.int32) - np.repeat(starts, sizes)  # place of an example in its cell
        # 0.8 * 5 is 4.000000000000001 or 3.9999999999999996, depending on the day.
        before_test = np.floor((1 - self.test) * sizes + 1e-9).astype(np.int32)
        validation = np.minimum(np.floor(self.validation * sizes + 1e-9).astype(np.int32), before_test)

        def take(first: NDArray[np.int32], end: NDArray[np.int32]) -> Ragged:
            keep = (rank >= np.repeat(first, sizes)) & (rank < np.repeat(end, sizes))
            return Ragged.packed(values[keep], np.bincount(owner[keep], minlength=len(clients)))

        before_validation = before_test - validation
        return Splits(
            train=take(np.zeros_like(sizes), before_validation),
            validation=take(before_validation + np.where(validation > 0, self.gap, 0).astype(np.int32), before_test),
            test=take(before_test + np.int32(self.gap), sizes),
        )
