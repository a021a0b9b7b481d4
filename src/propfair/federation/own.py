"""A user's own data: arrays, data frames, files, torch data sets, ready-made splits."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from torch.utils.data import Dataset

from propfair.data.base import IGNORED, ArrayExamples, Examples, map_tensors, named_tensors
from propfair.data.hub import partitions, read_table
from propfair.data.lazy import Collate, LazyExamples
from propfair.errors import ConfigError, DataError, shown
from propfair.federation.federation import SPLITS, Federation
from propfair.federation.ragged import Ragged
from propfair.federation.reading import Arrays, ClientReader, Later, checked, tensor_of
from propfair.federation.split import Splitter


def from_arrays(
    x: Any, y: Any, *, num_classes: int | None = None, user: Any = None, user_names: Sequence[str] = ()
) -> ArrayExamples:
    """Examples from arrays or tensors, checked; deal them to clients with `federate`.

    Args:
        x: [N, ...] inputs, or a tuple or dict of such for models with several inputs. uint8 is taken for pixels and
            scaled to [0, 1] batch by batch; float64 becomes float32.
        y: [N] class labels 0 .. num_classes - 1, real-valued targets [N] or [N, outputs], or one target per position.
        num_classes: None: the largest label plus one.
        user: [N], the natural client of each example, for the partitioner "natural".
        user_names: the names that `user` points at.
    """
    arrays = checked(x, y, "data")
    if user is not None:
        user = tensor_of(user, "user").to(torch.int32)
        if user.shape != (len(arrays.y),) or (len(user) and int(user.min()) < 0):
            raise DataError(f"user must be {len(arrays.y)} numbers >= 0, one per example; got shape {list(user.shape)}")
    classes = _check_classes(arrays.y, num_classes, "data")
    return ArrayExamples(arrays.x, arrays.y, num_classes=classes, user=user, user_names=user_names)


def from_table(table: Any, *, inputs: str | Sequence[str] | None = None, target: str | None = None) -> ArrayExamples:
    """Examples from a Hugging Face `datasets.Dataset`.

    Args:
        table: the data set.
        inputs: the column of inputs, or several: numbers become a matrix, arrays and images a dict by column. None:
            image, img, x, features or pixel_values, or the only one left.
        target: the column of labels; None: label, labels, fine_label, target, character or y.
    """
    columns = read_table(table, "table", inputs, target)
    return from_arrays(columns.x, columns.y, num_classes=columns.num_classes)


def from_datasets(
    clients: Sequence[Any] | Mapping[str, Any],
    *,
    num_classes: int | None = None,
    splitter: Splitter | None = None,
    seed: int = 0,
    inputs: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    collate: Collate | None = None,
    workers: int = 0,
    image_size: int | None = None,
) -> Federation:
    """A federation from one data set per client.

    A client is one of

    - `(x, y)`: arrays, tensors or lists; x may be a tuple or dict of them for models with several inputs;
    - a data frame of pandas or polars, a Hugging Face `Dataset`, or the path of a CSV or Parquet file, with a target
      column;
    - a folder of images, with a folder for each class;
    - a map-style torch `Dataset` of (input, target): read batch by batch, so that it may be larger than memory and
      change its items at random, which is drawn anew in each epoch;
    - ready-made splits: a dict or named tuple with `train` and, if any, `validation` and `test`, each of them one of
      the above. Use them where items change at random, or the test would see changed items too.

    Args:
        clients: a list, a mapping from names, or a `flwr_datasets.FederatedDataset`.
        num_classes: None: the largest label of all clients plus one.
        splitter: for clients without ready-made splits; None: 80 % train, 20 % test, stratified where labels are known.
        seed: decides that split.
        inputs: of tables, the columns of inputs; None: all but the target.
        target: of tables, the column of targets, or several columns; None: label, labels, target or y.
        collate: of torch data sets, makes (inputs, targets) of a list of items, for sequences of unequal length say.
        workers: of torch data sets, processes that read ahead of training.
        image_size: of folders of images, pixels of each side after resizing.

    >>> x, y = torch.rand(10, 4), torch.arange(10) % 2
    >>> from_datasets({"ann": (x, y), "bob": {"train": (x, y), "test": (x, y)}}).train.lengths.tolist()
    [8, 10]
    """
    counts = {"num_classes": (num_classes, 0), "image_size": (image_size, 1), "workers": (workers, 0)}
    for name, (number, least) in counts.items():
        if number is not None and (not isinstance(number, SupportsIndex) or number.__index__() < least):
            raise ConfigError(f"{name} must be a whole number of at least {least}; got {name}={shown(number)}")
    named = _by_name(partitions(clients) or clients)
    pieces = [  # (client, split, data, where)
        (k, split, data, f"client {name}" + (f" ({split})" if split != _WHOLE else ""))
        for k, (name, client) in enumerate(named.items())
        for split, data in (_ready_splits(client) or {_WHOLE: client}).items()
    ]
    reader, opened = ClientReader.of(
        [data for _, _, data, _ in pieces], [where for *_, where in pieces],
        inputs=inputs, target=target, image_size=image_size,
    )  # fmt: skip
    parts = [reader.read(data, where) for data, (*_, where) in zip(opened, pieces, strict=True)]
    for part in parts:
        if isinstance(part, Arrays):
            _check_classes(part.y, num_classes, part.where)
    lists = {split: [torch.empty(0, dtype=torch.int64)] * len(named) for split in (*SPLITS, _WHOLE)}
    start = 0
    for (k, split, *_), part in zip(pieces, parts, strict=True):
        length = len(part.y) if isinstance(part, Arrays) else len(part.data)  # type: ignore[arg-type]
        lists[split][k] = torch.arange(start, start + length)
        start += length
    examples = _together(parts, num_classes, collate, target, workers)
    cut = (splitter or _default_splitter(examples))(Ragged.of(lists[_WHOLE]), examples.labels, seed)
    train, validation, test = (
        Ragged.of([torch.cat([ready, getattr(cut, split)[k]]) for k, ready in enumerate(lists[split])])
        for split in SPLITS
    )
    return Federation(examples, tuple(named), train, validation, test, note="own data")


def _by_name(clients: Any) -> dict[str, Any]:
    """The data sets by the names of their clients, which are texts from here on: keys are often numbers."""
    several = hasattr(clients, "__iter__") or hasattr(clients, "__getitem__")
    if not several or isinstance(clients, str | Path | Tensor) or hasattr(clients, "columns"):
        raise DataError(
            f"clients must be a list, or a mapping from names, with one data set for each client; got "
            f"{type(clients).__name__}. One data frame with a column of clients is taken apart by "
            "dict(list(frame.groupby(column)))."
        )
    pairs = list(clients.items() if isinstance(clients, Mapping) else enumerate(clients))
    if not pairs:
        raise DataError("there are no clients. Pass at least one data set.")
    named = {str(name): data for name, data in pairs}
    if len(named) < len(pairs):
        names = [str(name) for name, _ in pairs]
        raise DataError(f"two clients are called {next(name for name in names if names.count(name) > 1)!r}")
    return named


_WHOLE = "whole"  # data of a client that comes without splits


def _together(
    parts: Sequence[Arrays | Later], num_classes: int | None, collate: Collate | None,
    target: str | Sequence[str] | None, workers: int,
) -> Examples:  # fmt: skip
    """All parts end to end: in memory if all of them are, else read when they are needed."""
    arrays = [part for part in parts if isinstance(part, Arrays)]
    for part in arrays[1:]:
        if part.kind != arrays[0].kind:
            raise DataError(
                f"all clients must have the same kind of examples: {arrays[0].where} has {arrays[0].kind}, "
                f"{part.where} has {part.kind}"
            )
    declared = [part.num_classes for part in parts if part.num_classes is not None]
    if num_classes is None and len(declared) == len(parts):
        num_classes = max(declared)
    if len(arrays) == len(parts):
        flat = iter(
            [torch.cat(same) for same in zip(*(named_tensors(part.x).values() for part in arrays), strict=True)]
        )
        y = torch.cat([part.y for part in arrays])
        x = map_tensors(lambda _: next(flat), arrays[0].x)
        return ArrayExamples(x, y, num_classes=_check_classes(y, num_classes, "data"))
    labels = [part.labels if isinstance(part, Later) else part.y for part in parts]
    known = None
    if all(found is not None and found.ndim == 1 and not found.is_floating_point() for found in labels):
        known = torch.cat([found for found in labels if found is not None])
        num_classes = _check_classes(known, num_classes, "data")
    return LazyExamples(
        [_Rows(part) if isinstance(part, Arrays) else part.data for part in parts],
        labels=known, num_classes=num_classes or 0, collate=collate,
        target=target if isinstance(target, str) else None, workers=workers,
    )  # fmt: skip


class _Rows(Dataset[Any]):
    """Data in memory among clients whose data are read later."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays.y)

    def __getitem__(self, place: int) -> tuple[Any, Tensor]:
        return map_tensors(lambda x: x[place], self._arrays.x), self._arrays.y[place]


def _default_splitter(examples: Examples) -> Splitter:
    y = examples.labels
    stratified = y is not None and y.ndim == 1 and not y.is_floating_point()
    return Splitter(order="stratified" if stratified else "shuffled")


def _ready_splits(client: Any) -> dict[str, Any] | None:
    if hasattr(client, "_fields") and "train" in client._fields:
        client = client._asdict()
    if not isinstance(client, Mapping):
        return None
    found: dict[str, Any] = {split: client[split] for split in SPLITS if client.get(split) is not None}
    strange = set(client) - set(SPLITS)
    if "train" not in found or strange:
        raise DataError(
            "ready-made splits must be called train, validation and test, and train must be there; "
            f"got {', '.join(map(str, client))}"
        )
    return found


def _check_classes(y: Tensor, num_classes: int | None, where: str) -> int:
    """How many classes there are; 0 for real-valued targets."""
    if y.is_floating_point():
        return 0
    counted = y if y.ndim == 1 else y[y != IGNORED]
    low, high = (int(counted.min()), int(counted.max())) if counted.numel() else (0, 0)
    known = high + 1 if num_classes is None else num_classes
    if low < 0 or high >= known:
        bad = low if low < 0 else high
        raise DataError(f"{where}: labels must be between 0 and num_classes - 1 = {known - 1}; found {bad}")
    return known
