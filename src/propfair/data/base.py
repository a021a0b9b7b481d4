"""What every data source gives: labels, and model-ready batches by index."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from propfair.errors import DataError
from propfair.registry import Registry
from propfair.split import Splitter

Augment = Callable[[Tensor, torch.Generator], Tensor]  # training batches only


class Examples(ABC):
    """A data set in memory.

    Attributes:
        num_classes: labels are 0 .. num_classes - 1; 0 for real-valued targets.
        user: [N], the natural client of each example (a speaking role, a writer), or None.
        user_names: the names that `user` points at.
        augment: changes a training batch at random, or None.
        default_split: how to split clients where the user does not say, None for the general default.
    """

    num_classes: int
    user: Tensor | None = None
    user_names: Sequence[str] = ()
    augment: Augment | None = None
    default_split: Splitter | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def inputs(self, index: Tensor) -> Tensor:
        """The model-ready inputs of the examples `index` [B]."""

    @abstractmethod
    def targets(self, index: Tensor) -> Tensor:
        """The targets of the examples `index` [B]."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The storage itself, by name: what is hashed, shared between processes and moved to a device."""

    @abstractmethod
    def with_tensors(self, tensors: dict[str, Tensor]) -> "Examples":
        """The same examples on other storage (shared memory, another device)."""

    @property
    def labels(self) -> Tensor:
        """All targets, [N]."""
        return self.targets(torch.arange(len(self)))


class ArrayExamples(Examples):
    """Examples held as one array.

    uint8 inputs are scaled to [0, 1] batch by batch, so that images stay small in memory; other types are used as
    they are. `mean` and `std` [channels] normalise after that.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        num_classes: int,
        user: Tensor | None = None,
        user_names: Sequence[str] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        augment: Augment | None = None,
    ) -> None:
        if len(x) != len(y):
            raise DataError(f"inputs and labels must have the same length; got {len(x)} inputs and {len(y)} labels")
        self.x, self.y = x, y
        self.num_classes = num_classes
        self.user, self.user_names = user, user_names
        self.mean, self.std, self.augment = mean, std, augment

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, index: Tensor) -> Tensor:
        batch = self.x[index]
        if batch.dtype == torch.uint8:
            batch = batch.to(torch.float32).mul_(1 / 255)
        if self.mean is not None and self.std is not None:
            shape = (-1,) + (1,) * (batch.ndim - 2)
            batch = (batch - batch.new_tensor(self.mean).view(shape)) / batch.new_tensor(self.std).view(shape)
        return batch

    def targets(self, index: Tensor) -> Tensor:
        return self.y[index]

    def tensors(self) -> dict[str, Tensor]:
        return {"x": self.x, "y": self.y}

    def with_tensors(self, tensors: dict[str, Tensor]) -> "ArrayExamples":
        return ArrayExamples(
            tensors["x"], tensors["y"], num_classes=self.num_classes, user=self.user, user_names=self.user_names,
            mean=self.mean, std=self.std, augment=self.augment,
        )  # fmt: skip


class Source(ABC):
    """A named data set: a frozen dataclass whose fields are its options. Subclasses register themselves."""

    name: ClassVar[str]
    home: ClassVar[str] = ""  # where it comes from, for `propfair list`

    @abstractmethod
    def load(self, folder: Path | None) -> Examples:
        """Read the examples; `folder` is the data folder, None for the default one."""


SOURCES: Registry[Source] = Registry("data set", "propfair.data", "propfair.data")
