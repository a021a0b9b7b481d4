"""One client's data, in whatever form it comes, as tensors or as something to read later."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from propfair.data.base import Inputs, map_tensors, named_tensors
from propfair.data.folders import ImageFolder, class_names
from propfair.data.hub import is_table, read_table
from propfair.data.tables import SUFFIXES, Encoding, as_table, is_frame, read_table_file
from propfair.errors import DataError


class Arrays(NamedTuple):
    """Data in memory."""

    x: Inputs
    y: Tensor
    where: str  # what it is called in error messages
    num_classes: int | None = None  # where the data itself says it

    @property
    def kind(self) -> str:
        """What examples look like, for messages."""
        shapes = [f"{tensor.dtype} {list(tensor.shape[1:])}" for tensor in named_tensors(self.x).values()]
        return f"inputs {', '.join(shapes)} with {self.y.dtype} targets {list(self.y.shape[1:]) or ''}".rstrip()


class Later(NamedTuple):
    """A map-style data set that is read when batches need it."""

    data: Dataset[Any]
    where: str
    labels: Tensor | None = None
    num_classes: int | None = None


@dataclass(frozen=True)
class ClientReader:
    """Reads the data of clients of one federation.

    Args:
        inputs, target: columns of tables; see `Encoding`.
        encoding: of tables; None where there are none.
        classes: of folders of images.
        image_size: to which images of folders are resized.
    """

    inputs: str | Sequence[str] | None = None
    target: str | Sequence[str] | None = None
    encoding: Encoding | None = None
    classes: tuple[str, ...] = ()
    image_size: int | None = None

    @staticmethod
    def of(
        everything: Sequence[Any],
        where: Sequence[str],
        *,
        inputs: str | Sequence[str] | None = None,
        target: str | Sequence[str] | None = None,
        image_size: int | None = None,
    ) -> tuple["ClientReader", list[Any]]:
        """The reader that fits all data sets, and the data sets with files opened as tables."""
        opened = [_opened(data, place) for data, place in zip(everything, where, strict=True)]
        tables = [(data, place) for data, place in zip(opened, where, strict=True) if is_frame(data)]
        folders = [data for data in opened if isinstance(data, Path)]
        encoding = None
        if tables:
            encoding = Encoding.of(*map(list, zip(*tables, strict=True)), inputs=inputs, target=target)
        reader = ClientReader(inputs, target, encoding, class_names(folders) if folders else (), image_size)
        return reader, opened

    def read(self, data: Any, where: str) -> Arrays | Later:
        """One data set that `of` has opened."""
        if isinstance(data, Path):
            images = ImageFolder(data, self.classes, self.image_size)
            return Later(images, where, images.targets, len(self.classes))
        if is_table(data):
            target = self.target if isinstance(self.target, str) else None
            columns = read_table(data, where, self.inputs, target)
            return checked(columns.x, columns.y, where, columns.num_classes)
        if self.encoding is not None and is_frame(data):
            y = self.encoding.targets_of(data, where)
            return checked(self.encoding.inputs_of(data, where), y, where, len(self.encoding.classes) or None)
        if isinstance(data, Subset) and isinstance(data.dataset, TensorDataset):
            data = data.dataset[list(data.indices)]  # the tensors of these rows
        if isinstance(data, TensorDataset):
            data = data.tensors
        if isinstance(data, tuple | list) and len(data) == 2:
            return checked(data[0], data[1], where)
        if isinstance(data, tuple) and len(data) > 2 and all(isinstance(item, Tensor) for item in data):
            return checked(data[:-1], data[-1], where)
        return _later(data, where)


def _opened(data: Any, where: str) -> Any:
    """Files become tables; folders stay paths; the rest is left as it is."""
    if isinstance(data, str | Path):
        path = Path(data)
        if path.is_dir():
            return path
        if path.suffix not in SUFFIXES or not path.exists():
            raise DataError(f"{where}: expected a .csv or .parquet file, or a folder of images; got {str(data)!r}")
        return read_table_file(path)
    return as_table(data, where) if is_frame(data) and not is_table(data) else data


def _later(data: Any, where: str) -> Later:
    if isinstance(data, IterableDataset):
        raise DataError(f"{where}: expected a map-style data set, with __len__ and __getitem__; got an IterableDataset")
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise DataError(
            f"{where}: expected (x, y), a data frame, a file, a torch Dataset or a dict of splits; "
            f"got {type(data).__name__}"
        )
    if len(data) == 0:
        raise DataError(f"{where} is empty. Leave it out.")
    declared = getattr(data, "targets", None)
    labels = None
    if declared is not None and len(declared) == len(data):
        found = torch.as_tensor(declared)
        labels = found.to(torch.int64) if not found.is_floating_point() and found.ndim == 1 else None
    classes = getattr(data, "classes", None)
    return Later(data, where, labels, None if classes is None else len(classes))


def checked(x: Any, y: Any, where: str, num_classes: int | None = None) -> Arrays:
    """Inputs and targets as tensors of the same length, finite and not empty."""
    inputs = structure(x, f"{where}: x")
    y = tensor_of(y, f"{where}: y")
    for x in named_tensors(inputs).values():
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise DataError(
                f"{where}: inputs and labels must have the same length; got shapes {list(x.shape)} and {list(y.shape)}"
            )
    if len(y) == 0:
        raise DataError(f"{where} is empty. Leave it out.")
    inputs = map_tensors(_narrow, inputs)
    for tensor, what in (*((x, "inputs") for x in named_tensors(inputs).values()), (y, "targets")):
        if tensor.is_floating_point():
            bad = ~torch.isfinite(tensor).flatten(1).all(1) if tensor.ndim > 1 else ~torch.isfinite(tensor)
            if bad.any():
                row = int(bad.nonzero()[0])
                count = int(bad.sum())
                raise DataError(f"{where}: {what} must be finite; row {row} has nan or inf ({count} such rows)")
    y = y.to(torch.float32) if y.is_floating_point() else y.to(torch.int64)
    return Arrays(inputs, y, where, num_classes)


def _narrow(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in (torch.float64, torch.float16, torch.bfloat16) else x


def structure(values: Any, where: str) -> Inputs:
    """A tensor; or a tuple or dict of tensors where the values are a tuple or a dict. Lists are arrays."""
    if isinstance(values, Mapping):
        return {name: structure(value, f"{where}[{name!r}]") for name, value in values.items()}
    if isinstance(values, tuple):
        return tuple(structure(value, f"{where}[{place}]") for place, value in enumerate(values))
    return tensor_of(values, where)


def tensor_of(values: Any, where: str) -> Tensor:
    """An array, a list or a tensor as a tensor on the CPU."""
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
