"""Who holds what: one shared data set and, for each client and split, the indices of its examples."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from propfair.data.base import Examples
from propfair.errors import DataError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class Ragged:
    """Lists of unequal length in two tensors, so that 100,000 clients cost two allocations."""

    values: Tensor  # [total]
    offsets: Tensor  # [n + 1]

    @staticmethod
    def of(lists: Sequence[Tensor]) -> "Ragged":
        """Pack a list of index tensors."""
        lengths = torch.tensor([0, *(len(item) for item in lists)])
        values = torch.cat([torch.as_tensor(item, dtype=torch.int64) for item in lists]) if lists else torch.empty(0)
        return Ragged(values.to(torch.int64), lengths.cumsum(0))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> Tensor:
        return self.values[self.offsets[position] : self.offsets[position + 1]]

    @cached_property
    def lengths(self) -> Tensor:
        """[n]."""
        return self.offsets.diff()


@dataclass(frozen=True)
class Federation:
    """The clients of an experiment.

    Attributes:
        examples: the data of all clients.
        names: a name for each client, for people; clients are otherwise known by position.
        train, validation, test: the example indices of each client.
        note: what the partitioner wants recorded (seed used, tries).
    """

    examples: Examples
    names: tuple[str, ...]
    train: Ragged
    validation: Ragged
    test: Ragged
    note: str = ""

    def __post_init__(self) -> None:
        for split in SPLITS:
            if len(self.split(split)) != len(self.names):
                raise DataError(f"{split} has {len(self.split(split))} clients, but there are {len(self.names)} names")
        empty = (self.train.lengths == 0).nonzero().flatten().tolist()
        if empty:
            raise DataError(
                f"client {empty[0]} ({self.names[empty[0]]}) has no training examples"
                f"{f', nor have {len(empty) - 1} others' if len(empty) > 1 else ''}. Leave it out, use fewer clients, "
                "or ask the partitioner for min_samples."
            )

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.names)

    def split(self, split: Split) -> Ragged:
        """The index lists of one split."""
        parts: dict[Split, Ragged] = {"train": self.train, "validation": self.validation, "test": self.test}
        return parts[split]

    @cached_property
    def share(self) -> Tensor:
        """p_k = n_k / N over all clients, from training sizes; float64 [n]."""
        sizes = self.train.lengths.to(torch.float64)
        return sizes / sizes.sum()

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the data and of who holds what: runs that share it can be compared client by client."""
        digest = hashlib.sha256()
        for tensor in self.examples.tensors().values():
            digest.update(tensor.cpu().contiguous().numpy().data)
        for split in SPLITS:
            part = self.split(split)
            digest.update(part.values.numpy().data)
            digest.update(part.offsets.numpy().data)
        return digest.hexdigest()[:16]
