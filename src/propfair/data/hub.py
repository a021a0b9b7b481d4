"""Tables of the Hugging Face `datasets` library and partitions of `flwr_datasets`, without importing either."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from propfair.errors import DataError

_TARGETS = ("label", "labels", "fine_label", "target", "character", "y")
_INPUTS = ("image", "img", "x", "features", "pixel_values")


class Columns(NamedTuple):
    """The inputs and targets of a table, and how many classes it declares."""

    x: NDArray[Any]
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


def read_table(table: Any, where: str, inputs: str | None = None, target: str | None = None) -> Columns:
    """The columns of a table as arrays; images become [N, channels, height, width] of uint8."""
    names = list(table.column_names)
    target = target or next((name for name in _TARGETS if name in names), None)
    rest = [name for name in names if name != target]
    inputs = inputs or next((name for name in _INPUTS if name in rest), rest[0] if len(rest) == 1 else None)
    if target not in names or inputs not in names:
        raise DataError(
            f"{where}: can't tell which columns are inputs and target among {', '.join(names)}. "
            "Pass inputs= and target= to from_table."
        )
    rows = table.with_format("numpy")[:]
    x, y = np.asarray(rows[inputs]), np.asarray(rows[target])
    if x.dtype == object:
        raise DataError(f"{where}: all rows of column {inputs!r} must have one shape and be numbers or images")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        x = x[:, None] if x.ndim == 3 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return Columns(x, y, getattr(table.features[target], "num_classes", None))
