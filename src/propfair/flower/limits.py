"""What the server believes of its clients: what is implausible is refused, and some things may be cut."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from propfair.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a client may say and send.

    A reply beyond the first three is refused: the client takes no part in the round, and the others share its weight.
    The last three cut instead, are off by default, and cost fairness: a client whose data are many, whose loss is large
    or whose update is long may well be honest, and the worst-off are. docs/flower.md says what each does.

    Args:
        max_examples: the training examples that a client may say it has.
        max_loss: the largest loss, up or down, that a client may report.
        max_growth: how many times as long as the model (or as 1, if the model is shorter) an update may be.
        clip_norm: updates that are longer are shortened to this.
        share_cap: the largest share of all data that a client counts for, whatever it says it has.
        loss_cap: losses that are larger count as this.
    """

    max_examples: int = 10**8
    max_loss: float = 1e12
    max_growth: float = 1e6
    clip_norm: float | None = None
    share_cap: float | None = None
    loss_cap: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be a positive number; got {name}={value}")
        if self.share_cap is not None and self.share_cap > 1:
            raise ConfigError(f"share_cap is a share of all data, at most 1; got share_cap={self.share_cap}")

    def cut_sizes(self, sizes: Sequence[int]) -> list[int]:
        """The data sizes of the clients, the largest cut to one size, so that none is above `share_cap` of the sum."""
        present = sorted((size for size in sizes if size), reverse=True)
        if self.share_cap is None or not present:
            return list(sizes)
        if self.share_cap * len(present) < 1:
            raise ConfigError(
                f"share_cap={self.share_cap} is below what {len(present)} clients hold if all have the same: set it to "
                f"{1 / len(present):.3g} or more"
            )
        largest: float = present[0]
        for num_cut, next_size in enumerate(present):
            largest = self.share_cap * sum(present[num_cut:]) / (1 - num_cut * self.share_cap)
            if next_size <= largest:
                break
        return [min(size, max(1, math.floor(largest))) for size in sizes]
