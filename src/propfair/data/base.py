"""What every data source gives: labels, and model-ready batches by index."""

import copy
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from propfair.errors import DataError
from propfair.registry import Registry
from propfair.seeds import derive, generator

Augment = Callable[[Tensor, torch.Generator], Tensor]  # training batches only
IGNORED = -100  # the label of a position that does not count, as in torch
Inputs = Any  # what a model takes: a tensor, or a tuple, a list or a dict of tensors


class Occasion(NamedTuple):
    """When a client reads its training batches, which decides all randomness in them."""

    seed: int
    round: int
    client: int
    batches_per_epoch: int

    def item_seed(self, step: int) -> int:
        """From which the reading of the items of a step draws; the same for all steps of an epoch."""
        return derive(self.seed, "reading", self.round, self.client, step // self.batches_per_epoch)


class Examples(ABC):
    """A data set, in memory or read when it is needed.

    Attributes:
        num_classes: labels are 0 .. num_classes - 1; 0 for real-valued targets.
        user: [N], the natural client of each example (a speaking role, a writer), or None.
        user_names: the names that `user` points at.
        augment: changes a training batch at random, or None.
        overlap: how many of the following examples share input with one (windows of a text); 0 for none.
        most_at_once: how many examples may be read together when a model is measured.
    """

    num_classes: int
    user: Tensor | None = None
    user_names: Sequence[str] = ()
    augment: Augment | None = None
    overlap: int = 0
    most_at_once: int = 1024

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def inputs(self, index: Tensor) -> Inputs:
        """The model-ready inputs of the examples `index` [B]: a tensor, or a tuple or dict of tensors."""

    @abstractmethod
    def targets(self, index: Tensor) -> Tensor:
        """The targets of the examples `index` [B]."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The storage itself, by name: what is hashed, shared between processes and moved to a device."""

    @abstractmethod
    def with_tensors(self, tensors: dict[str, Tensor]) -> "Examples":
        """The same examples on other storage (shared memory, another device)."""

    def read(self, batches: Iterable[Tensor], occasion: Occasion | None = None) -> Iterator[tuple[Inputs, Tensor]]:
        """Inputs and targets of each batch of indices; with an occasion, changed at random as in training."""
        rng = None
        if self.augment is not None and occasion is not None:
            rng = generator(occasion.seed, "batches", occasion.round, occasion.client, 1)
        for index in batches:
            x, y = self.inputs(index), self.targets(index)
            yield (x if rng is None or self.augment is None else self.augment(x, rng)), y

    def to(self, device: torch.device | str) -> "Examples":
        """The same examples, on the device when they are read."""
        return self.with_tensors({name: tensor.to(device) for name, tensor in self.tensors().items()})

    @property
    def labels(self) -> Tensor | None:
        """All targets, [N, ...]; None where they are not known without reading everything."""
        return self.targets(torch.arange(len(self)))

    def digest(self) -> str:
        """A hash of the stored data; takes a tenth of a second for CIFAR-10."""
        total = hashlib.sha256()
        for name, tensor in self.tensors().items():
            total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            total.update(tensor.cpu().contiguous().numpy().data)
        return total.hexdigest()


class ArrayExamples(Examples):
    """Examples held as one array, or as a tuple or dict of arrays for models with several inputs.

    uint8 inputs are scaled to [0, 1] batch by batch, so that images stay small in memory; other types are used as
    they are. `mean` and `std` [channels] normalise after that. `known_digest` saves hashing what was hashed before.
    """

    def __init__(
        self,
        x: Inputs,
        y: Tensor,
        *,
        num_classes: int,
        user: Tensor | None = None,
        user_names: Sequence[str] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        augment: Augment | None = None,
        known_digest: str | None = None,
    ) -> None:
        for name, tensor in named_tensors(x).items():
            if len(tensor) != len(y):
                raise DataError(
                    f"inputs and labels must have the same length; got {len(tensor)} inputs and {len(y)} labels"
                    + (f" (in {name})" if name != "x" else "")
                )
        self.x, self.y = x, y
        self.num_classes = num_classes
        self.user, self.user_names = user, user_names
        self.mean, self.std, self.augment = mean, std, augment
        self.known_digest = known_digest

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, index: Tensor) -> Inputs:
        return map_tensors(lambda x: self._rows(x, index), self.x)

    def _rows(self, x: Tensor, index: Tensor) -> Tensor:
        batch = x.index_select(0, index)  # many times faster than x[index] for short rows
        if batch.dtype == torch.uint8:
            batch = batch.to(torch.float32).div_(255)
        if self.mean is not None and self.std is not None:
            shape = (-1,) + (1,) * (batch.ndim - 2)
            batch = (batch - batch.new_tensor(self.mean).view(shape)) / batch.new_tensor(self.std).view(shape)
        return batch

    def targets(self, index: Tensor) -> Tensor:
        return self.y.index_select(0, index)

    @property
    def labels(self) -> Tensor:
        return self.y

    def tensors(self) -> dict[str, Tensor]:
        return {**named_tensors(self.x), "y": self.y}

    def with_tensors(self, tensors: dict[str, Tensor]) -> "ArrayExamples":
        moved = copy.copy(self)
        others = iter(tensors[name] for name in named_tensors(self.x))
        moved.x, moved.y = map_tensors(lambda _: next(others), self.x), tensors["y"]
        return moved

    def digest(self) -> str:
        return self.known_digest or super().digest()


def map_tensors(change: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The same structure with every tensor changed.

    >>> map_tensors(len, (torch.zeros(2), {"a": torch.zeros(3)}))
    (2, {'a': 3})
    """
    if isinstance(inputs, Tensor):
        return change(inputs)
    if isinstance(inputs, Mapping):
        return {name: map_tensors(change, value) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(map_tensors(change, value) for value in inputs)
    raise DataError(f"inputs must be a tensor, or a tuple or dict of tensors; got {type(inputs).__name__}")


def named_tensors(inputs: Inputs, name: str = "x") -> dict[str, Tensor]:
    """The tensors in a structure of inputs, by place.

    >>> list(named_tensors((torch.zeros(2), {"a": torch.zeros(3)})))
    ['x.0', 'x.1.a']
    """
    if isinstance(inputs, Tensor):
        return {name: inputs}
    items = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    return {key: tensor for at, value in items for key, tensor in named_tensors(value, f"{name}.{at}").items()}


@dataclass(frozen=True)
class Protocol:
    """How a data set is used unless the user says otherwise; for the data sets of the paper, its way.

    Parts are named rather than built: who deals examples to clients, and which networks there are, data sets need not
    know.

    Attributes:
        partition: the name of the partitioner, with its options.
        num_clients: None where the data says it.
        split: options of the split inside each client.
        model: the name of the network.
    """

    partition: tuple[str, Mapping[str, Any]] = ("dirichlet", {})
    num_clients: int | None = 10
    split: Mapping[str, Any] = field(default_factory=dict)
    model: str = "mlp"


@dataclass(frozen=True)
class Remote:
    """One file of an official distribution: where it is, and its place in the data folder."""

    url: str
    name: str
    checksum: str  # "md5:..." or "sha256:..."
    unpacks_to: str = ""  # for archives: the one folder that is in it


class Source(ABC):
    """A named data set: a frozen dataclass whose fields are its options. Subclasses register themselves."""

    name: ClassVar[str]
    home: ClassVar[str] = ""  # where it comes from, for `propfair list`
    remotes: ClassVar[tuple[Remote, ...]] = ()  # what `propfair data get` downloads

    @property
    def protocol(self) -> Protocol:
        """How the data set is used unless the user says otherwise."""
        return Protocol()

    @abstractmethod
    def load(self, folder: Path | None = None) -> Examples:
        """Read the examples; `folder` is the data folder, None for the default one."""


SOURCES: Registry[Source] = Registry("data set", "propfair.data", "propfair.data")
