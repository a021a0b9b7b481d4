"""Tables of Hugging Face `datasets` and partitions of `flwr_datasets`."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from propfair.errors import DataError
from propfair.federation.own import from_datasets, from_table


class Table:
    """As much of a `datasets.Dataset` as propfair looks at, for machines without that library."""

    def __init__(self, columns: dict[str, Any], num_classes: int | None = None) -> None:
        self._columns = columns
        self.column_names = list(columns)
        self.features = {name: SimpleNamespace() for name in columns}
        if num_classes is not None:
            self.features["label"] = SimpleNamespace(num_classes=num_classes)

    def with_format(self, name: str) -> "Table":
        assert name == "numpy"
        return self

    def __getitem__(self, rows: slice) -> dict[str, Any]:
        return {name: values[rows] for name, values in self._columns.items()}


def make(columns: dict[str, Any], kind: str, num_classes: int | None = None) -> Any:
    if kind == "stand-in":
        made = {}
        for name, values in columns.items():
            plain = [np.asarray(value) for value in values]
            alike = len({value.shape for value in plain}) == 1
            made[name] = np.stack(plain) if alike else np.array([*plain, None], dtype=object)[:-1]
        return Table(made, num_classes)
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict(columns)
    return table if num_classes is None else table.cast_column("label", datasets.ClassLabel(num_classes=num_classes))


@pytest.fixture(params=["stand-in", "datasets"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def table(kind: str, shade: int = 0, rows: int = 10, **extra: list[Any]) -> Any:
    pixels = [Image.new("RGB", (8, 8), (shade, i, 255)) for i in range(rows)]
    return make({"img": pixels, "label": [i % 2 for i in range(rows)], **extra}, kind, num_classes=5)


def test_images_become_channels_first_bytes(kind: str) -> None:
    examples = from_table(table(kind, 7))
    assert examples.x.dtype == torch.uint8
    assert examples.x.shape == (10, 3, 8, 8)
    assert examples.x[3, :, 0, 0].tolist() == [7, 3, 255]
    assert examples.num_classes == 5, "as the table declares, though only two occur"


def test_grey_images_and_plain_features(kind: str) -> None:
    grey = make({"image": [Image.new("L", (4, 6), 9)] * 3, "label": [0, 1, 2]}, kind)
    assert from_table(grey).x.shape == (3, 1, 6, 4)
    examples = from_table(make({"embedding": np.eye(4).tolist(), "y": [0, 1, 2, 3]}, kind))
    assert examples.inputs(torch.arange(4)).equal(torch.eye(4))
    assert examples.num_classes == 4


def test_columns_can_be_chosen_and_must_be_clear(kind: str) -> None:
    both = table(kind, superclass=[4] * 10)
    assert from_table(both, target="superclass").labels.tolist() == [4] * 10
    unclear = make({"a": [[1.0]], "b": [[2.0]], "label": [0]}, kind)
    with pytest.raises(DataError, match=r"among a, b, label\. Pass inputs="):
        from_table(unclear)
    with pytest.raises(DataError, match="can't tell"):
        from_table(unclear, inputs="nothing")


def test_ragged_rows_are_refused(kind: str) -> None:
    with pytest.raises(DataError, match="must have one shape"):
        from_table(make({"x": [[1.0], [1.0, 2.0]], "label": [0, 1]}, kind))


def test_tables_as_clients(kind: str) -> None:
    ready = {"train": table(kind, 1, 6), "test": table(kind, 2, 4)}
    federation = from_datasets({"plain": table(kind, 3), "ready": ready})
    assert federation.train.lengths.tolist() == [8, 6]
    assert federation.test.lengths.tolist() == [2, 4]
    assert federation.examples.num_classes == 5
    assert float(federation.examples.inputs(federation.test[1])[0, 0, 0, 0]) == pytest.approx(2 / 255)


def test_partitions_of_flower() -> None:
    class Federated:
        partitioners = {"train": SimpleNamespace(num_partitions=3)}  # noqa: RUF012

        def load_partition(self, partition_id: int, split: str) -> Any:
            assert split == "train"
            return table("stand-in", partition_id, 10 + partition_id)

    federation = from_datasets(Federated())  # type: ignore[arg-type]
    assert (federation.train.lengths + federation.test.lengths).tolist() == [10, 11, 12]
