"""A user's own data: arrays, tensors, torch data sets, ready-made splits."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from propfair.data.base import ArrayExamples
from propfair.data.hub import is_table, partitions, read_table
from propfair.errors import DataError
from propfair.federation.federation import SPLITS, Federation
from propfair.federation.ragged import Ragged
from propfair.federation.split import Splitter


def from_arrays(
    x: Any, y: Any, *, num_classes: int | None = None, user: Any = None, user_names: Sequence[str] = ()
) -> ArrayExamples:
    """Examples from arrays or tensors, checked; deal them to clients with `federate`.

    Args:
        x: [N, ...] inputs. uint8 is taken for pixels and scaled to [0, 1] batch by batch; float64 becomes float32.
        y: [N] class labels 0 .. num_classes - 1, or real-valued targets.
        num_classes: None: the largest label plus one.
        user: [N], the natural client of each example, for the partitioner "natural".
        user_names: the names that `user` points at.
    """
    pair = _checked(x, y, "data")
    if user is not None:
        user = _tensor(user, "user").to(torch.int32)
        if user.shape != (len(pair.y),) or (len(user) and int(user.min()) < 0):
            raise DataError(f"user must be {len(pair.y)} numbers >= 0, one per example; got shape {tuple(user.shape)}")
    classes = _check_classes(pair.y, num_classes, "data")
    return ArrayExamples(pair.x, pair.y, num_classes=classes, user=user, user_names=user_names)


def from_table(table: Any, *, inputs: str | None = None, target: str | None = None) -> ArrayExamples:
    """Examples from a Hugging Face `datasets.Dataset`.

    Args:
        table: the data set.
        inputs: the column of inputs; None: image, img, x, features or pixel_values, or the only one left.
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
) -> Federation:
    """A federation from one data set per client.

    A client is `(x, y)` (arrays, tensors or lists), a torch `Dataset` of such pairs, a Hugging Face `Dataset`, or
    ready-made splits: a dict or named tuple with `train` and, if any, `validation` and `test`, each of them one of
    the above.

    Args:
        clients: a list, a mapping from names, or a `flwr_datasets.FederatedDataset`.
        num_classes: None: the largest label of all clients plus one.
        splitter: for clients without ready-made splits; None: 80 % train, 20 % test, stratified.
        seed: decides that split.

    >>> x, y = torch.rand(10, 4), torch.arange(10) % 2
    >>> from_datasets({"ann": (x, y), "bob": {"train": (x, y), "test": (x, y)}}).train.lengths.tolist()
    [8, 10]
    """
    clients = partitions(clients) or clients
    named = dict(clients) if isinstance(clients, Mapping) else {str(i): item for i, item in enumerate(clients)}
    if not named:
        raise DataError("there are no clients. Pass at least one data set.")
    pairs: list[_Pair] = []
    lists: dict[str, list[Tensor]] = {split: [] for split in (*SPLITS, _WHOLE)}
    start = 0
    for name, client in named.items():
        placed = dict.fromkeys(lists, torch.empty(0, dtype=torch.int64))
        for split, data in (_ready_splits(client) or {_WHOLE: client}).items():
            pair = _read(data, f"client {name}" + (f" ({split})" if split != _WHOLE else ""))
            _check_classes(pair.y, num_classes, pair.where)
            placed[split] = torch.arange(start, start + len(pair.y))
            start += len(pair.y)
            pairs.append(pair)
        for split, index in placed.items():
            lists[split].append(index)
    first = pairs[0]
    for pair in pairs[1:]:
        if pair.x.shape[1:] != first.x.shape[1:] or pair.x.dtype != first.x.dtype or pair.y.dtype != first.y.dtype:
            raise DataError(
                f"all clients must have the same kind of examples: {first.where} has {_kind(first)}, "
                f"{pair.where} has {_kind(pair)}"
            )
    x, y = torch.cat([pair.x for pair in pairs]), torch.cat([pair.y for pair in pairs])
    declared = [pair.num_classes for pair in pairs if pair.num_classes is not None]
    if num_classes is None and len(declared) == len(pairs):
        num_classes = max(declared)
    examples = ArrayExamples(x, y, num_classes=_check_classes(y, num_classes, "data"))
    cut = (splitter or _default_splitter(y))(Ragged.of(lists[_WHOLE]), y, seed)
    train, validation, test = (
        Ragged.of([torch.cat([ready, getattr(cut, split)[k]]) for k, ready in enumerate(lists[split])])
        for split in SPLITS
    )
    return Federation(examples, tuple(named), train, validation, test, note="own data")


_WHOLE = "whole"  # data of a client that comes without splits


class _Pair(NamedTuple):
    x: Tensor
    y: Tensor
    where: str
    num_classes: int | None = None  # where the data itself says it


def _kind(pair: _Pair) -> str:
    return f"inputs {pair.x.dtype} {list(pair.x.shape[1:])} with {pair.y.dtype} targets"


def _default_splitter(y: Tensor) -> Splitter:
    return Splitter(order="shuffled" if y.is_floating_point() else "stratified")


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


def _read(data: Any, where: str) -> _Pair:
    if isinstance(data, torch.utils.data.TensorDataset):
        data = data.tensors
    if is_table(data):
        columns = read_table(data, where)
        return _checked(columns.x, columns.y, where, columns.num_classes)
    if isinstance(data, tuple | list) and len(data) == 2:
        return _checked(data[0], data[1], where)
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise DataError(f"{where}: expected (x, y), a torch Dataset or a dict of splits; got {type(data).__name__}")
    if len(data) == 0:
        raise DataError(f"{where} is empty. Leave it out.")
    rows = [data[i] for i in range(len(data))]
    try:
        inputs, targets = zip(*rows, strict=True)
        x = torch.stack([torch.as_tensor(np.asarray(item)) for item in inputs])
        y = torch.stack([torch.as_tensor(np.asarray(item)) for item in targets])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where}: every item must be a pair (input, target) of one shape: {error}") from None
    return _checked(x, y, where)


def _checked(x: Any, y: Any, where: str, num_classes: int | None = None) -> _Pair:
    x, y = _tensor(x, f"{where}: x"), _tensor(y, f"{where}: y")
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(
            f"{where}: inputs and labels must have the same length; got shapes {list(x.shape)} and {list(y.shape)}"
        )
    if len(y) == 0:
        raise DataError(f"{where} is empty. Leave it out.")
    if x.dtype in (torch.float64, torch.float16, torch.bfloat16):
        x = x.to(torch.float32)
    for tensor, what in ((x, "inputs"), (y, "targets")):
        if tensor.is_floating_point():
            bad = ~torch.isfinite(tensor).flatten(1).all(1) if tensor.ndim > 1 else ~torch.isfinite(tensor)
            if bad.any():
                row = int(bad.nonzero()[0])
                count = int(bad.sum())
                raise DataError(f"{where}: {what} must be finite; row {row} has nan or inf ({count} such rows)")
    y = y.to(torch.float32) if y.is_floating_point() else y.to(torch.int64)
    return _Pair(x, y, where, num_classes)


def _tensor(values: Any, where: str) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{where} must be numbers in one rectangular array ({error})") from None
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where} must be numbers in one rectangular array; got {array.dtype}")
    if not array.flags.writeable or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(np.ascontiguousarray(array))


def _check_classes(y: Tensor, num_classes: int | None, where: str) -> int:
    if y.is_floating_point():
        return 0
    low, high = int(y.min()), int(y.max())
    known = high + 1 if num_classes is None else num_classes
    if low < 0 or high >= known:
        bad = low if low < 0 else high
        raise DataError(f"{where}: labels must be between 0 and num_classes - 1 = {known - 1}; found {bad}")
    return known
