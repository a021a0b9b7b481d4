"""Users' own tables, files, folders and data sets with several columns."""

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from PIL import Image
from torch import nn

import propfair
from propfair.data.own import Own
from propfair.errors import ConfigError, DataError
from propfair.federation.own import from_datasets, from_table
from propfair.runs.building import build_federation
from propfair.runs.config import make_config


def frame(seed: int = 0, rows: int = 20) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(20, 80, rows),
            "height": rng.normal(1.7, 0.1, rows),
            "smoker": rng.integers(2, size=rows).astype(bool),
            "city": rng.choice(["Bonn", "Kiel", "Ulm"] if seed else ["Bonn", "Kiel"], rows),
            "ill": rng.choice(["no", "yes"], rows),
        }
    )


def written(folder: Path, table: pd.DataFrame, name: str) -> Path:
    path = folder / name
    table.to_csv(path, index=False) if path.suffix == ".csv" else table.to_parquet(path)
    return path


FORMS = ("pandas", "polars", "csv", "parquet")


def client(form: str, table: pd.DataFrame, folder: Path) -> Any:
    if form in ("pandas", "polars"):
        return table if form == "pandas" else pl.from_pandas(table)
    return written(folder, table, f"{len(table)}.{form}")


@pytest.mark.parametrize("form", FORMS)
def test_a_table_per_client_in_every_form(form: str, tmp_path: Path) -> None:
    tables = {"ann": client(form, frame(0), tmp_path), "bob": client(form, frame(1, 30), tmp_path)}
    data = from_datasets(tables, target="ill")
    assert data.names == ("ann", "bob")
    everything = torch.arange(50)
    x = data.examples.inputs(everything)
    assert x.shape == (50, 6)  # age, height, smoker, three cities
    assert x.dtype == torch.float32
    assert torch.equal(x[:20, 0], torch.tensor(frame(0)["age"].to_numpy(), dtype=torch.float32))
    assert torch.equal(x[:, 3:].sum(1), torch.ones(50))
    assert x[:20, 5].sum() == 0  # nobody of ann's lives in Ulm, but the column is there
    assert data.examples.num_classes == 2
    assert data.examples.targets(everything)[:20].tolist() == (frame(0)["ill"] == "yes").astype(int).tolist()


def test_training_on_data_frames_and_choosing_columns() -> None:
    data = from_datasets([frame(0), frame(1)], inputs=["age", "height"], target="ill")
    assert propfair.train(nn.Linear(2, 2), data, rounds=1, lr=1e-4).state == "finished"
    regression = from_datasets([frame(0), frame(1)], inputs=["age", "smoker"], target="height")
    result = propfair.train(nn.Linear(2, 1), regression, rounds=1, lr=1e-4, task="regression")
    assert "mae" in result.evaluation("test").metrics


def spoiled(**changes: Any) -> pd.DataFrame:
    return frame().assign(**changes)


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        (frame(), {}, "which column is the target"),
        (frame(), {"target": "sick"}, "unknown column 'sick'"),
        (frame(), {"target": "ill", "inputs": ["agee"]}, "Did you mean 'age'"),
        (spoiled(age=[None] + [1.0] * 19), {"target": "ill"}, "'age' has 1 missing"),
        (spoiled(born=pd.Timestamp("2020-01-01")), {"target": "ill"}, "'born' is of type timestamp"),
        ("nowhere.csv", {"target": "ill"}, "expected a .csv or .parquet file"),
    ],
)
def test_tables_that_can_not_be_read_say_why(table: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        from_datasets([table], **options)


def test_a_hugging_face_data_set_with_several_columns() -> None:
    columns = {
        "a": [1.0, 2.0, 3.0, 4.0],
        "b": [0, 1, 0, 1],
        "picture": np.zeros((4, 2, 2)).tolist(),
        "label": [0, 1, 0, 1],
    }
    table = datasets.Dataset.from_dict(columns)
    assert from_table(table, inputs=["a", "b"]).inputs(torch.arange(4)).shape == (4, 2)
    several = from_datasets([table, table], inputs=["a", "picture"], target="label").examples.inputs(torch.arange(3))
    assert {name: tuple(tensor.shape) for name, tensor in several.items()} == {"a": (3,), "picture": (3, 2, 2)}


def images(folder: Path, clients: int = 2) -> Path:
    rng = np.random.default_rng(0)
    for name in ("ann", "bob")[:clients]:
        for kind in ("cat", "dog"):
            place = folder / name / kind
            place.mkdir(parents=True)
            for number in range(5):
                pixels = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


def test_a_folder_of_images_per_client(tmp_path: Path) -> None:
    images(tmp_path)
    data = from_datasets({name: tmp_path / name for name in ("ann", "bob")})
    assert data.examples.num_classes == 2
    assert data.examples.inputs(torch.arange(3)).shape == (3, 3, 4, 4)
    assert data.train.lengths.tolist() == [8, 8]
    result = propfair.train(nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), data, rounds=1)
    assert result.accuracy.isfinite().all()
    assert from_datasets([tmp_path / "ann"], image_size=2).examples.inputs(torch.arange(3)).shape == (3, 3, 2, 2)


def test_the_source_own_reads_one_table_a_table_each_and_images(tmp_path: Path) -> None:
    whole = pd.concat([frame(0).assign(client="ann"), frame(1).assign(client="bob")])
    one = Own(path=str(written(tmp_path, whole, "all.csv")), target="ill").load()
    assert list(one.user_names) == ["ann", "bob"]
    assert one.user is not None
    assert one.user.tolist() == [0] * 20 + [1] * 20
    each = tmp_path / "each"
    each.mkdir()
    for seed, name in enumerate(("ann", "bob")):
        written(each, frame(seed), f"{name}.parquet")
    several = Own(path=str(each), target="ill").load()
    everything = torch.arange(40)
    torch.testing.assert_close(several.inputs(everything), one.inputs(everything))
    assert torch.equal(several.targets(everything), one.targets(everything))
    numbers = one.inputs(everything)[:, :2]
    torch.testing.assert_close(numbers.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    pictures = Own(path=str(images(tmp_path / "pictures"))).load()
    assert pictures.num_classes == 2
    assert list(pictures.user_names) == ["ann", "bob"]


@pytest.mark.parametrize(
    ("options", "said"), [({}, "needs data.path"), ({"path": "nowhere"}, "there is no file or folder nowhere")]
)
def test_the_source_own_says_what_is_missing(options: dict[str, str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Own(**options).load()  # type: ignore[arg-type]


def test_a_table_whose_rows_belong_to_nobody_or_whose_target_is_the_client(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("x,ill,hospital\n" + "1,yes,A\n2,no,A\n3,yes,B\n4,no,B\n" * 5)
    path = f"data.path={tmp_path / 'own.csv'}"
    with pytest.raises(ConfigError, match=r"name the column that says whose a row is: data\.client=COLUMN"):
        build_federation(make_config({}, ["data=own", path, "data.target=ill"]))
    dealt = ["data=own", path, "data.target=ill", "data.inputs=x", "data.partition=iid", "data.num_clients=2"]
    assert build_federation(make_config({}, dealt)).num_clients == 2
    with pytest.raises(DataError, match=r"data\.target and data\.client are the same column of .*'hospital'"):
        build_federation(make_config({}, ["data=own", path, "data.target=hospital", "data.client=hospital"]))


def test_hostile_files_are_named(tmp_path: Path) -> None:
    place = images(tmp_path / "pictures")
    image = sorted(place.rglob("*.png"))[1]
    parts = (b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)), (b"IDAT", b"x"), (b"IEND", b"")
    chunks = [struct.pack(">I", len(of)) + name + of + struct.pack(">I", zlib.crc32(name + of)) for name, of in parts]
    image.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
    with pytest.raises(DataError, match=rf"can't read the image .*{image.name}: .*exceeds limit"):
        Own(path=str(place)).load().inputs(torch.arange(2))
    image.unlink()
    os.mkfifo(image)
    with pytest.raises(DataError, match=rf"{image.name} is a pipe"):
        Own(path=str(place)).load().inputs(torch.arange(2))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.csv").write_bytes(b"\xff\xfe\0x,y\n")
    with pytest.raises(DataError, match=r"a\.csv"):
        Own(path=str(tmp_path / "tables")).load()
    (tmp_path / "tables" / "a.csv").unlink()
    os.mkfifo(tmp_path / "tables" / "a.csv")
    with pytest.raises(DataError, match=r"a\.csv is a pipe"):
        Own(path=str(tmp_path / "tables")).load()


def test_keys_that_are_numbers_become_names() -> None:
    x, y = torch.randn(20, 4), torch.arange(20) % 2
    result = propfair.train(torch.nn.Linear(4, 2), {0: (x, y), 1: (x, y)}, "fedavg", rounds=1)  # type: ignore[dict-item]
    assert result.clients == ("0", "1")
    with pytest.raises(DataError, match="two clients are called '1'"):
        propfair.from_datasets({1: (x, y), "1": (x, y)})  # type: ignore[dict-item]


def test_one_data_set_is_not_taken_for_a_list_of_clients(tmp_path: Path) -> None:
    frame = pd.DataFrame({"age": [1.0, 2.0], "ill": [0, 1]})
    frame.to_csv(tmp_path / "all.csv", index=False)
    for clients in (frame, str(tmp_path / "all.csv"), tmp_path / "all.csv", torch.randn(4, 2), None):
        with pytest.raises(DataError, match="one data set for each client; got"):
            propfair.from_datasets(clients, target="ill")  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"num_classes": "3"}, {"image_size": 0}, {"image_size": "8"}, {"workers": -1}])
def test_counts_are_whole_numbers(options: dict[str, Any]) -> None:
    x, y = torch.randn(20, 4), torch.arange(20) % 3
    with pytest.raises(ConfigError, match=rf"{next(iter(options))} must be a whole number of at least \d; got"):
        propfair.from_datasets([(x, y)], **options)
