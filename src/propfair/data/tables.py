"""Tables of users: data frames of pandas and polars, CSV and Parquet files, with a target column.

Several tables, one per client, are read by one `Encoding`, so that a category has the same place for all clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from propfair.data.lazy import TARGET_NAMES
from propfair.errors import DataError, unknown
from propfair.files import check_memory, check_readable, check_size

if TYPE_CHECKING:  # imported where tables are read: worker processes never do
    import pyarrow as pa

SUFFIXES = (".csv", ".parquet")
MAX_CATEGORIES = 1000  # of a text column: more are names or sentences, not categories


def is_frame(data: Any) -> bool:
    """Whether `data` is a data frame or an Arrow table."""
    return hasattr(data, "__dataframe__") or hasattr(data, "__arrow_c_stream__")


def as_table(frame: Any, where: str) -> "pa.Table":
    """A data frame as an Arrow table, without its index."""
    import pyarrow as pa

    if isinstance(frame, pa.Table):
        return frame
    if hasattr(frame, "to_arrow"):  # polars
        return frame.to_arrow()
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, AttributeError) as error:
        raise DataError(f"{where}: the data frame can't be read: {error}") from None


def read_table_file(path: Path) -> "pa.Table":
    """A CSV or Parquet file."""
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: a table is a .csv or .parquet file; got {path.suffix or 'a file without an ending'}")
    import pyarrow as pa
    from pyarrow import csv, parquet

    check_readable(path)
    try:
        if path.suffix == ".csv":
            check_size(path)
            table = csv.read_csv(path)
        else:
            with parquet.ParquetFile(path) as file:
                check_memory(path, file.metadata.num_rows * 4 * max(1, file.metadata.num_columns))
                table = file.read()
        table.schema.names  # noqa: B018 (decoded only now, and wrong if the file is of another encoding)
        return table
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror or error}") from None
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not a {path.suffix[1:]} file that can be read: {error}") from None


@dataclass(frozen=True)
class Encoding:
    """How the rows of tables become numbers: decided once for all clients.

    Numbers and booleans are taken as they are; a text column becomes one column of 0 and 1 for each of its values.
    Columns that hold arrays or images of one shape stay arrays. If all inputs are single numbers, the model gets one
    matrix [N, features]; else a dict of tensors by column, or the tensor itself if there is one column.

    Attributes:
        target: the column of targets, or several columns for several outputs.
        inputs: the columns of inputs.
        categories: the values of text columns, by column.
        classes: the values of a text target, whose places are the class labels; empty for numbers.
    """

    target: tuple[str, ...]
    inputs: tuple[str, ...]
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()

    @staticmethod
    def of(
        tables: Sequence["pa.Table"],
        where: Sequence[str],
        *,
        inputs: str | Sequence[str] | None = None,
        target: str | Sequence[str] | None = None,
        leave_out: Sequence[str] = (),
    ) -> "Encoding":
        """The encoding that fits all tables, which must have the columns of the first.

        Args:
            tables: of the clients.
            where: what they are called in error messages.
            inputs: columns; None: all but the target and those to leave out.
            target: a column, or several; None: label, labels, target, y ...
            leave_out: columns that say something else, such as the client.
        """
        names = list(tables[0].column_names)
        targets = _names(target) or tuple(name for name in TARGET_NAMES if name in names)[:1]
        if not targets:
            raise DataError(f"{where[0]}: which column is the target? Pass target=, one of {', '.join(names)}.")
        chosen = _names(inputs) or tuple(name for name in names if name not in (*targets, *leave_out))
        if not chosen:
            raise DataError(f"{where[0]} has no column for inputs beside {', '.join((*targets, *leave_out))}")
        for table, place in zip(tables, where, strict=True):
            for name in (*chosen, *targets):
                if name not in table.column_names:
                    raise DataError(f"{place}: {unknown('column', name, table.column_names)}")
                if table[name].null_count:
                    raise DataError(
                        f"{place}: column {name!r} has {table[name].null_count} missing values. Fill them in, or drop "
                        "the rows."
                    )
        categories = {name: values for name in chosen if (values := _values(tables, name)) is not None}
        classes = _values(tables, targets[0]) or () if len(targets) == 1 else ()
        return Encoding(targets, chosen, categories, classes)

    def inputs_of(self, table: "pa.Table", where: str) -> Any:
        """The inputs of all rows."""
        columns = {name: self._input(table[name], name, where) for name in self.inputs}
        if all(column.ndim == 1 or name in self.categories for name, column in columns.items()):
            flat = [column[:, None] if column.ndim == 1 else column for column in columns.values()]
            return torch.from_numpy(np.concatenate(flat, axis=1, dtype=np.float32))
        tensors = {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns.items()}
        return tensors if len(tensors) > 1 else next(iter(tensors.values()))

    def targets_of(self, table: "pa.Table", where: str) -> Tensor:
        """The targets of all rows: class labels as int64, real numbers as float32."""
        if self.classes:
            return torch.from_numpy(_codes(table[self.target[0]], self.classes, self.target[0], where))
        columns = [_numbers(table[name], name, where) for name in self.target]
        y = torch.from_numpy(columns[0] if len(columns) == 1 else np.stack(columns, axis=1))
        return y.to(torch.float32) if y.is_floating_point() else y.to(torch.int64)

    def _input(self, column: "pa.ChunkedArray", name: str, where: str) -> NDArray[Any]:
        if name in self.categories:
            values = self.categories[name]
            return np.eye(len(values), dtype=np.float32)[_codes(column, values, name, where)]
        return _numbers(column, name, where)


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _is_text(kind: "pa.DataType") -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _values(tables: Sequence["pa.Table"], name: str) -> tuple[str, ...] | None:
    """The sorted values of a text column in all tables; None if it is not text."""
    if not any(_is_text(table[name].type) for table in tables):
        return None
    found = {str(value) for table in tables for value in table[name].cast("string").unique().to_pylist()}
    if len(found) > MAX_CATEGORIES:
        raise DataError(
            f"column {name!r} has {len(found)} different texts, which is too many for categories. Leave it out with "
            "inputs=, or turn it into numbers first."
        )
    return tuple(sorted(found))


def _codes(column: "pa.ChunkedArray", values: tuple[str, ...], name: str, where: str) -> NDArray[np.int64]:
    codes = codes_of(column.cast("string"), values)
    if codes.null_count:
        raise DataError(f"{where}: column {name!r} has a value that is none of {', '.join(values[:5])} ...")
    return np.asarray(codes.to_numpy(), dtype=np.int64)


def codes_of(texts: "pa.ChunkedArray", values: Sequence[str]) -> "pa.ChunkedArray":
    """The place of each text among the values; null where it is none of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.index_in(texts, value_set=pa.array(values))


def _numbers(column: "pa.ChunkedArray", name: str, where: str) -> NDArray[Any]:
    from pyarrow import types

    kind = column.type
    if types.is_boolean(kind):
        return np.asarray(column.to_numpy(), dtype=np.int64)
    if types.is_integer(kind) or types.is_floating(kind):
        numbers: NDArray[Any] = column.to_numpy()
        return numbers.astype(np.float32 if numbers.dtype.kind == "f" else np.int64)
    if types.is_decimal(kind):
        return np.asarray(column.cast("float64").to_numpy(), dtype=np.float32)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        try:
            array = np.asarray(column.to_pylist())
        except ValueError:
            array = np.empty(0, dtype=object)
        if array.dtype.kind in "biuf":
            return array.astype(np.float32) if array.dtype.kind == "f" else array
        raise DataError(f"{where}: the rows of column {name!r} must be numbers in one shape")
    raise DataError(
        f"{where}: column {name!r} is of type {kind}, and models take numbers. Leave it out with inputs=, or turn "
        "it into numbers first."
    )
