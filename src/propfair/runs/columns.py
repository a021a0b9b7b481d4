"""Columns of Arrow tables from numpy and back, straight from memory.

pyarrow's own conversions import pandas, where it is installed, and all compute functions: half a second of every start.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from propfair.files import check_memory

if TYPE_CHECKING:  # imported where files are read or written: it brings clients of cloud storage along
    import pyarrow.parquet as pq

_ROW_BYTES = 40  # of a row of records in memory


def numbers(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[Any]:
    """A column of numbers as numpy has it."""
    if column.null_count:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    kind = np.dtype(str(column.type))
    parts = [
        np.frombuffer(chunk.buffers()[1], kind, len(chunk), chunk.offset * kind.itemsize)
        for chunk in chunks
        if len(chunk)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, kind), *parts])


def is_text(column: pa.ChunkedArray, text: str) -> npt.NDArray[np.bool_]:
    """Where a column of texts, each of which is kept once, has this one."""
    found = [np.empty(0, bool)]
    for chunk in column.chunks:
        codes = [code for code, known in enumerate(chunk.dictionary.to_pylist()) if known == text]
        found.append(np.isin(numbers(chunk.indices), codes))
    return np.concatenate(found)


def of_numbers(values: npt.ArrayLike, kind: pa.DataType) -> pa.Array:
    """The inverse of `numbers`."""
    array = np.ascontiguousarray(values, dtype=str(kind))
    return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array)])


def of_texts(texts: Sequence[str]) -> pa.StringArray:
    """Texts as they are."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def repeated(texts: Sequence[str], times: Sequence[int] | int = 1) -> pa.DictionaryArray:
    """Each text so many times; different ones are kept once."""
    known = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    codes = np.repeat(np.array([known[text] for text in texts], dtype=np.int32), times)
    return pa.DictionaryArray.from_arrays(of_numbers(codes, pa.int32()), of_texts(list(known)))


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """The table of a Parquet file with these columns; that of another version as far as it can be cast."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        check_unpacked(path, file.metadata)
        if file.schema_arrow.equals(schema):
            return file.read()
    return pq.read_table(path, schema=schema)


def check_unpacked(path: Path, about: "pq.FileMetaData") -> None:
    """A `DataError` if a Parquet file is larger than memory once it is read, by what it says of itself."""
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    rows = sum(group.num_rows for group in groups)  # which are counted apart: a page of equal values has no size
    check_memory(path, max(about.num_rows, rows) * _ROW_BYTES + sum(group.total_byte_size for group in groups))
