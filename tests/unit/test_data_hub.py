"""Tables of Hugging Face `datasets` and partitions of `flwr_datasets`."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from propfair.data.own import from_datasets, from_table
from propfair.errors import DataError

datasets = pytest.importorskip("datasets")


def table(shade: int = 0, rows: int = 10, **extra: list[Any]) -> Any:
    pixels = [Image.new("RGB", (8, 8), (shade, i, 255)) for i in range(rows)]
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(num_classes=5)})
    for name in extra:
        features[name] = datasets.Value("int64")
    return datasets.Dataset.from_dict({"img": pixels, "label": [i % 2 for i in range(rows)], **extra}, features)


def test_images_become_channels_first_bytes() -> None:
    examples = from_table(table(7))
    assert examples.x.dtype == torch.uint8
    assert examples.x.shape == (10, 3, 8, 8)
    assert examples.x[3, :, 0, 0].tolist() == [7, 3, 255]
    assert examples.num_classes == 5, "as the table declares, though only two occur"


def test_grey_images_and_plain_features() -> None:
    grey = datasets.Dataset.from_dict(
        {"image": [Image.new("L", (4, 6), 9)] * 3, "label": [0, 1, 2]},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    assert from_table(grey).x.shape == (3, 1, 6, 4)
    flat = datasets.Dataset.from_dict({"embedding": np.eye(4).tolist(), "y": [0, 1, 2, 3]})
    examples = from_table(flat)
    assert examples.inputs(torch.arange(4)).equal(torch.eye(4))
    assert examples.num_classes == 4


def test_columns_can_be_chosen_and_must_be_clear() -> None:
    both = table(superclass=[4] * 10)
    assert from_table(both, target="superclass").labels.tolist() == [4] * 10
    unclear = datasets.Dataset.from_dict({"a": [[1.0]], "b": [[2.0]], "label": [0]})
    with pytest.raises(DataError, match=r"among a, b, label\. Pass inputs="):
        from_table(unclear)
    with pytest.raises(DataError, match="can't tell"):
        from_table(unclear, inputs="nothing")


def test_ragged_rows_are_refused() -> None:
    ragged = datasets.Dataset.from_dict({"x": [[1.0], [1.0, 2.0]], "label": [0, 1]})
    with pytest.raises(DataError, match="must have one shape"):
        from_table(ragged)


def test_tables_as_clients() -> None:
    ready = datasets.DatasetDict({"train": table(1, 6), "test": table(2, 4)})
    federation = from_datasets({"plain": table(3), "ready": ready})
    assert federation.train.lengths.tolist() == [8, 6]
    assert federation.test.lengths.tolist() == [2, 4]
    assert federation.examples.num_classes == 5
    assert float(federation.examples.inputs(federation.test[1])[0, 0, 0, 0]) == pytest.approx(2 / 255)


def test_partitions_of_flower() -> None:
    class Federated:
        partitioners = {"train": SimpleNamespace(num_partitions=3)}  # noqa: RUF012

        def load_partition(self, partition_id: int, split: str) -> Any:
            assert split == "train"
            return table(partition_id, 10 + partition_id)

    federation = from_datasets(Federated())  # type: ignore[arg-type]
    assert (federation.train.lengths + federation.test.lengths).tolist() == [10, 11, 12]
