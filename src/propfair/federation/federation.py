"""Who holds what: one shared data set and, for each client and split, the indices of its examples."""

import hashlib
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from propfair.data.base import Examples
from propfair.errors import DataError
from propfair.federation.partition import Partitioner
from propfair.federation.ragged import Ragged
from propfair.federation.split import Splitter

__all__ = ["SPLITS", "Federation", "Ragged", "Split", "federate"]

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


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

    def label_counts(self, split: Split) -> Tensor:
        """How many examples of each class each client has in a split, [n, classes]."""
        part, classes = self.split(split), self.examples.num_classes
        owner = torch.repeat_interleave(torch.arange(len(part)), part.lengths)
        cells = owner * classes + self.examples.targets(part.values).cpu()
        return torch.bincount(cells, minlength=len(part) * classes).view(len(part), classes)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the data and of who holds what: runs that share it can be compared client by client."""
        digest = hashlib.sha256(self.examples.digest().encode())
        for split in SPLITS:
            part = self.split(split)
            digest.update(part.values.numpy().data)
            digest.update(part.offsets.numpy().data)
        return digest.hexdigest()[:16]


def federate(
    examples: Examples,
    partitioner: Partitioner,
    num_clients: int | None = None,
    splitter: Splitter | None = None,
    seed: int = 0,
) -> Federation:
    """Deal a data set to clients and split each client's part.

    Args:
        examples: the data of all clients.
        partitioner: who gets what.
        num_clients: None where the data says it (partitioner "natural").
        splitter: train, validation and test inside each client; None: 80 % / 0 / 20 %, stratified.
        seed: decides the partition and the split, and nothing else.
    """
    splitter = splitter or Splitter()
    if examples.overlap > splitter.gap:
        warnings.warn(
            f"examples overlap with the next {examples.overlap}, so training input leaks into the test part. "
            f"Split with order='contiguous' and gap={examples.overlap}.",
            stacklevel=2,
        )
    labels = examples.labels
    if labels is None:  # as many as there are examples, of no class
        labels = torch.zeros(len(examples))
    dealt = partitioner(labels, num_clients, seed, examples.user)
    parts = splitter(dealt.clients, labels, seed)
    if dealt.users is not None and examples.user_names:
        names = tuple(examples.user_names[user] for user in dealt.users)
    else:
        names = tuple(map(str, range(len(dealt.clients))))
    notes = [f"{partitioner}, seed {dealt.seed_used}", f"{dealt.tries} {'try' if dealt.tries == 1 else 'tries'}"]
    note = "; ".join([", ".join([*notes, *filter(None, [dealt.note])]), str(splitter)])
    return Federation(examples, names, *parts, note=note)
