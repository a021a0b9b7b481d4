"""Data sets that are read item by item when a batch is needed: larger than memory, or changed at random each time."""

import bisect
import copy
import functools
import hashlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from propfair.data.base import Examples, Inputs, Occasion, map_tensors, named_tensors
from propfair.errors import ConfigError, DataError
from propfair.seeds import hashed

Collate = Callable[[list[Any]], Any]  # from items to a batch: (inputs, targets), or a dict with the targets in it
TARGET_NAMES = ("label", "labels", "fine_label", "target", "character", "y")
_DIGEST_ITEMS = 64  # of the whole data set: reading all of it may take hours
_MEASURED_BYTES = 16 << 20  # inputs that are in memory at a time when a model is measured
_IN_EVALUATION = 0  # stands for the occasion where nothing is trained


class _Request(NamedTuple):
    """A batch to read: the examples, and what their reading draws its randomness from."""

    places: list[int]
    seed: int


class LazyExamples(Examples):
    """Examples of map-style torch data sets, end to end.

    Whatever an item draws at random, from torch, numpy or `random`, is decided by (seed, round, client, epoch) and its
    place in the data set: drawn anew in each epoch, the same whoever reads it. In evaluation every item is read as it
    was the time before.

    Args:
        parts: data sets with `__len__` and `__getitem__`; an item is (input, target), or a dict with the target in it.
        labels: [N], if they are known without reading.
        num_classes: 0: not known, or real-valued targets.
        collate: makes a batch of a list of items; None: torch's own, after images and arrays became tensors.
        target: the key of the target, if items are dicts; None: label, labels, target, y ...
        workers: processes that read ahead of the training; 0: read in its process when a batch is needed.
        user, user_names: the natural client of each example.
    """

    def __init__(
        self,
        parts: Sequence[Dataset[Any]],
        *,
        labels: Tensor | None = None,
        num_classes: int = 0,
        collate: Collate | None = None,
        target: str | None = None,
        workers: int = 0,
        user: Tensor | None = None,
        user_names: Sequence[str] = (),
    ) -> None:
        if workers < 0:
            raise ConfigError(f"workers must be >= 0; got workers={workers}. Use 0 to read without further processes.")
        self.num_classes, self.user, self.user_names = num_classes, user, user_names
        self._known_labels, self._workers, self._device = labels, workers, torch.device("cpu")
        self._reader = _Reader(parts, collate, target)
        self._loader: _Loader | None = None  # started when it is first needed, in each process by itself

    def __len__(self) -> int:
        return self._reader.ends[-1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader": None}

    @functools.cached_property
    def most_at_once(self) -> int:  # type: ignore[override]
        """As many examples as fit into a few megabytes."""
        x, _ = self._reader.read_untraced(_Request([0], _IN_EVALUATION))
        size = sum(tensor.nbytes for tensor in named_tensors(x).values())
        return max(1, min(Examples.most_at_once, _MEASURED_BYTES // max(1, size)))

    def inputs(self, index: Tensor) -> Inputs:
        return next(self.read([index]))[0]

    def targets(self, index: Tensor) -> Tensor:
        if self._known_labels is not None:
            return self._known_labels[index.cpu()].to(self._device)
        return next(self.read([index]))[1]

    def read(self, batches: Iterable[Tensor], occasion: Occasion | None = None) -> Iterator[tuple[Inputs, Tensor]]:
        def request(step: int, index: Tensor) -> _Request:
            return _Request(index.tolist(), _IN_EVALUATION if occasion is None else occasion.item_seed(step))

        requests = itertools.starmap(request, enumerate(batches))
        if self._workers and occasion is not None:
            self._loader = self._loader or _Loader(self._reader, self._workers)
            found = self._loader.read(requests)
        else:
            found = map(self._reader.read_untraced, requests)
        for x, y in found:
            yield map_tensors(lambda tensor: tensor.to(self._device), x), y.to(self._device)

    def to(self, device: torch.device | str) -> "LazyExamples":
        moved = copy.copy(self)
        moved._device = torch.device(device)
        return moved

    @property
    def labels(self) -> Tensor | None:
        return self._known_labels

    def tensors(self) -> dict[str, Tensor]:
        """Nothing is stored."""
        return {}

    def with_tensors(self, tensors: dict[str, Tensor]) -> "LazyExamples":
        return self

    def digest(self) -> str:
        """A hash of the lengths of all parts and of some items, evenly spaced."""
        total = hashlib.sha256(repr(self._reader.ends).encode())
        some = np.unique(np.linspace(0, len(self) - 1, _DIGEST_ITEMS).astype(np.int64))
        for place in some.tolist():
            x, y = self._reader.read_untraced(_Request([place], _IN_EVALUATION))
            for tensor in (*named_tensors(x).values(), y):
                total.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
                total.update(tensor.contiguous().view(torch.uint8).numpy().data if tensor.numel() else b"")
        return total.hexdigest()


class _Reader(Dataset[Any]):
    """Reads one batch at a time, here or in a process of its own."""

    def __init__(self, parts: Sequence[Dataset[Any]], collate: Collate | None, target: str | None) -> None:
        self._parts, self._collate, self._target = parts, collate, target
        self.ends = list(itertools.accumulate(len(part) for part in parts))  # type: ignore[arg-type]

    def __getitem__(self, request: _Request) -> tuple[Inputs, Tensor]:
        items = []
        for place in request.places:
            seed = hashed(request.seed, place)
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 (data sets of others draw from it)
            items.append(self._item(place))
        if self._collate is not None:
            batch = self._collate(items)
        else:
            try:
                batch = default_collate([_tensors(item) for item in items])
            except (RuntimeError, TypeError) as error:
                raise DataError(
                    f"the items of a batch do not fit together: {str(error).splitlines()[0]}. Pass collate=, which "
                    "makes a batch (inputs, targets) of a list of items, for example by padding."
                ) from None
        x, y = self._halves(batch)
        y = torch.as_tensor(y)
        return x, y.to(torch.float32) if y.is_floating_point() else y.to(torch.int64)

    def read_untraced(self, request: _Request) -> tuple[Inputs, Tensor]:
        """Read in this process and leave all generators as they were."""
        before = torch.default_generator.get_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            return self[request]
        finally:
            torch.default_generator.set_state(before[0])
            random.setstate(before[1])
            np.random.set_state(before[2])  # noqa: NPY002

    def _item(self, place: int) -> Any:
        part = bisect.bisect_right(self.ends, place)
        return self._parts[part][place - (self.ends[part - 1] if part else 0)]

    def _halves(self, batch: Any) -> tuple[Inputs, Any]:
        if isinstance(batch, Mapping):
            target = self._target or next((name for name in TARGET_NAMES if name in batch), None)
            if target not in batch:
                raise DataError(
                    f"items have the keys {', '.join(map(str, batch))}: pass target=, the key of the target"
                )
            return {name: value for name, value in batch.items() if name != target}, batch[target]
        if isinstance(batch, tuple | list) and len(batch) == 2:
            x, y = batch
            return tuple(x) if isinstance(x, list) else x, y
        count = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise DataError(
            f"every item must be a pair (input, target) or a dict; got {type(batch).__name__}{count}. Several inputs "
            "go into a tuple of their own: ((a, b), target)."
        )


class _Loader:
    """Processes that read ahead and stay for the whole run."""

    def __init__(self, reader: _Reader, workers: int) -> None:
        self._requests = _Requests()
        self._loader = DataLoader(
            reader, batch_size=None, sampler=self._requests, num_workers=workers, persistent_workers=True,
            generator=torch.Generator(),  # of its own: the global one is left alone
        )  # fmt: skip

    def read(self, requests: Iterable[_Request]) -> Iterator[tuple[Inputs, Tensor]]:
        self._requests.requests = requests
        return iter(self._loader)


class _Requests(Sampler[Any]):
    """What the loader is to read next."""

    requests: Iterable[_Request] = ()

    def __iter__(self) -> Iterator[_Request]:
        return iter(self.requests)


def _tensors(value: Any) -> Any:
    """Images and arrays as tensors that models take: pixels in [0, 1] with channels first, no float64."""
    if hasattr(value, "getbands"):  # an image of PIL
        pixels = np.array(value)
        value = torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())
    if isinstance(value, np.ndarray | np.generic):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        if value.dtype == torch.uint8 and value.ndim:
            return value.to(torch.float32).div_(255)
        return value.to(torch.float32) if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {name: _tensors(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_tensors(item) for item in value)
    return value
