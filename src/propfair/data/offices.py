"""Offices that read handwritten digits, some of them with an old scanner: the clients of the tutorial."""

from dataclasses import dataclass
from pathlib import Path

import torch

from propfair.data.base import SOURCES, ArrayExamples, Protocol, Source
from propfair.data.digits import Digits
from propfair.errors import ConfigError


@SOURCES.register("offices")
@dataclass(frozen=True, kw_only=True)
class Offices(Source):
    """The digits of scikit-learn, dealt to offices in equal parts; an old scanner mirrors images and prints them pale.

    Args:
        num_offices: how many clients.
        num_old: how many of them, the first ones, have an old scanner.
        seed: decides who gets which images.
    """

    num_offices: int = 12
    num_old: int = 2
    seed: int = 0

    home = Digits.home

    def __post_init__(self) -> None:
        if not 0 <= self.num_old <= self.num_offices or self.num_offices < 1:
            raise ConfigError(
                f"num_old must be between 0 and num_offices, which is at least 1; got num_old={self.num_old}, "
                f"num_offices={self.num_offices}"
            )

    @property
    def protocol(self) -> Protocol:
        return Protocol(("natural", {}), None, {"validation": 0.2, "test": 0.3}, model="logistic")

    def load(self, folder: Path | None = None) -> ArrayExamples:
        """Deal the images."""
        digits = Digits().load(folder)
        order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(self.seed))
        parts = order.tensor_split(self.num_offices)
        user = torch.repeat_interleave(
            torch.arange(self.num_offices, dtype=torch.int32), torch.tensor([len(part) for part in parts])
        )
        x = digits.x[order]
        old = user < self.num_old
        x[old] = x[old].flip(-1) / 2
        names = [f"{'old scanner' if k < self.num_old else 'office'} {k}" for k in range(self.num_offices)]
        return ArrayExamples(x, digits.y[order], num_classes=10, user=user, user_names=tuple(names))
