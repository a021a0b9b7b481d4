"""Tables of the Hugging Face `datasets` library and partitions of `flwr_datasets`, without importing either."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from propfair.data.lazy import TARGET_NAMES
from propfair.errors import DataError

_INPUTS = ("image", "img", "x", "features", "pixel_values")


class Columns(NamedTuple):
    """The inputs and targets of a table, and how many classes it declares."""

    x: Any  # an array, or a dict of arrays by column
    y: NDArray[Any]
    num_classes: int | None


def is_table(data: Any) -> bool:
    """Whether `data` looks like a `datasets.Dataset`."""
    return hasattr(data, "column_names") and hasattr(data, "with_format") and hasattr(data, "features")


def partitions(clients: Any) -> list[Any] | None:
    """All training partitions of a `flwr_datasets.FederatedDataset`; None if `clients` is not one."""
    if not (hasattr(clients, "load_partition") and hasattr(clients, "partitioners")):
        return None
    split = "train" if "train" in clients.partitioners else next(iter(clients.partitioners))
    return [clients.load_partition(i, split) for i in range(clients.partitioners[split].num_partitions)]


def read_table(table: Any, where: str, inputs: str | Sequence[str] | None = None, target: str | None = None) -> Columns:
    """The columns of a table as arrays; images become [N, channels, height, width] of uint8.

    Several columns of single numbers are one matrix [N, columns]; other several columns are a dict.
    """
    names = list(table.column_names)
    target = target or next((name for name in TARGET_NAMES if name in names), None)
    rest = [name for name in names if name != target]
    usual = inputs or next((name for name in _INPUTS if name in rest), rest[0] if len(rest) == 1 else None)
    chosen = [usual] if isinstance(usual, str) else list(usual or ())
    if target not in names or not chosen or not set(chosen) <= set(names):
        raise DataError(
            f"{where}: can't tell which columns are inputs and target among {', '.join(names)}. "
            "Pass inputs= and target=."
        )
    rows = table.with_format("numpy")[:]
    columns = {name: _array(rows[name], name, where) for name in chosen}
    x: Any = columns if len(columns) > 1 else next(iter(columns.values()))
    if len(columns) > 1 and all(column.ndim == 1 for column in columns.values()):
        x = np.stack(list(columns.values()), axis=1).astype(np.float32)
    return Columns(x, np.asarray(rows[target]), getattr(table.features[target], "num_classes", None))


def _array(values: Any, name: str, where: str) -> NDArray[Any]:
    x = np.asarray(values)
    if x.dtype == object:
        raise DataError(f"{where}: all rows of column {name!r} must have one shape and be numbers or images")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        x = x[:, None] if x.ndim == 3 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return x
