"""Columns of Arrow tables from memory are those that pyarrow itself makes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from propfair.runs.columns import is_text, numbers, of_numbers, of_texts, read_table, repeated


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.float64()])
@pytest.mark.parametrize("values", [[], [3], [1, 2, 3, 4]])
def test_numbers_there_and_back(kind: pa.DataType, values: list[int]) -> None:
    made = of_numbers(values, kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))
    assert numbers(made).tolist() == values
    assert numbers(made[1:]).tolist() == values[1:]
    assert numbers(pa.chunked_array([made, made[2:], made[:0]])).tolist() == values + values[2:]


def test_fields_of_rows_are_not_next_to_each_other() -> None:
    rows = np.array([(1, 0.5), (2, np.nan)], dtype=[("round", "<i4"), ("value", "<f8")])
    assert of_numbers(rows["round"], pa.int32()).to_pylist() == [1, 2]
    assert np.isnan(numbers(of_numbers(rows["value"], pa.float64()))[1])


def test_gaps_are_nan() -> None:
    assert np.isnan(numbers(pa.array([1.0, None]))).tolist() == [False, True]


def test_where_a_text_stands() -> None:
    column = pa.chunked_array([repeated(["a", "b"], [2, 1]), repeated(["c"]), repeated(["b", "a"])])
    assert is_text(column, "a").tolist() == [True, True, False, False, False, True]
    assert not is_text(column, "d").any()
    assert is_text(pa.chunked_array([repeated([])]), "a").tolist() == []


def test_texts() -> None:
    for texts in ([], ["a"], ["x", "", "für", "x", "日本"]):
        made = of_texts(texts)
        made.validate(full=True)
        assert made.equals(pa.array(texts, pa.string()))
        coded = repeated(texts)
        coded.validate(full=True)
        assert coded.to_pylist() == texts
        assert len(coded.dictionary) == len(set(texts))
    assert repeated(["a", "b"], [2, 3]).to_pylist() == ["a", "a", "b", "b", "b"]


def test_tables_of_other_versions_are_cast(tmp_path: Path) -> None:
    schema = pa.schema([("client", pa.int32()), ("metric", pa.dictionary(pa.int32(), pa.string()))])
    table = pa.table({"client": of_numbers([1, 2], pa.int32()), "metric": repeated(["a", "b"])}, schema=schema)
    pq.write_table(table, tmp_path / "same.parquet")
    pq.write_table(pa.table({"client": [1, 2], "metric": ["a", "b"]}), tmp_path / "old.parquet")
    for name in ("same", "old"):
        found = read_table(tmp_path / f"{name}.parquet", schema)
        assert found.schema.equals(schema)
        assert found.to_pylist() == table.to_pylist()
