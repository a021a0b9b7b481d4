"""Saved partitions, and the table and picture of who holds what."""

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from propfair.data import ArrayExamples
from propfair.errors import DataError, MissingExtraError
from propfair.federation.federation import Federation, federate
from propfair.federation.own import from_arrays
from propfair.federation.partition import Dirichlet, Iid
from propfair.federation.saved import load_partition, save_partition
from propfair.federation.split import Splitter
from propfair.report.partition import describe_partition, draw_partition

LABELS = torch.arange(300) % 3


def examples(shift: float = 0.0) -> ArrayExamples:
    return from_arrays(torch.arange(300.0).view(300, 1) + shift, LABELS)


def federation(num_clients: int = 4) -> Federation:
    return federate(examples(), Dirichlet(beta=0.5), num_clients, Splitter(validation=0.1))


def test_a_saved_partition_comes_back(tmp_path: Path) -> None:
    made = federation()
    save_partition(made, tmp_path / "new" / "mine.safetensors")
    back = load_partition(tmp_path / "new" / "mine.safetensors", examples())
    assert back.names == made.names
    assert back.note == made.note
    assert back.fingerprint == made.fingerprint
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["mine.safetensors"]


def test_a_partition_of_other_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    save_partition(federation(), path)
    with pytest.raises(DataError, match=r"made for other data: 300 examples.*same options"):
        load_partition(path, examples(shift=1))


About = dict[str, str | None]


def rewrite(path: Path, change: dict[str, torch.Tensor] | None = None, about: About | None = None) -> None:
    """As 0.1.0 would have written it: without a digest of itself. `about` changes the metadata; None leaves one out."""
    with safetensors.safe_open(path, framework="pt") as file:
        found = {**file.metadata(), "format": "propfair partition 1", "seal": None, **(about or {})}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors.update({name.replace("_", "."): tensor for name, tensor in (change or {}).items()})
    safetensors.torch.save_file(tensors, path, {key: value for key, value in found.items() if value is not None})


def test_a_partition_of_the_version_before_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    save_partition(federation(), path)
    rewrite(path)
    assert load_partition(path, examples()).fingerprint == federation().fingerprint


@pytest.mark.parametrize("split", ["validation", "test"])
def test_an_example_is_not_trained_on_and_tested_on(tmp_path: Path, split: str) -> None:
    path = tmp_path / "mine"
    made = federation()
    save_partition(made, path)
    both = torch.cat([made.train[1][:2], made.train[2][:1]])
    offsets = torch.tensor([0, 3, 3, 3, 3])  # all of them in other hands
    rewrite(path, {f"{split}_values": both, f"{split}_offsets": offsets})
    with pytest.raises(DataError, match=rf"{path} is refused: 3 examples are in both train and {split}, the first is"):
        load_partition(path, examples())


def test_no_changed_bit_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    save_partition(federation(), path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    places = [*rng.integers(0, 1200, 150), *rng.integers(0, len(whole), 50)]
    for place in map(int, places):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            assert load_partition(path, examples()).fingerprint == federation().fingerprint, place
        except DataError as error:
            if str(path) not in str(error):
                raise


@pytest.mark.parametrize(
    "about",
    [{"names": None}, {"names": "["}, {"names": "5"}, {"names": "[" * 100_000}, {"digest": None}, {"note": None}],
)
def test_damaged_metadata_is_refused(tmp_path: Path, about: About) -> None:
    path = tmp_path / "mine"
    save_partition(federation(), path)
    rewrite(path, about=about)
    with pytest.raises(DataError, match=f"{path} is damaged: names or digest"):
        load_partition(path, examples())


def test_names_that_are_not_enough(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    save_partition(federation(), path)
    rewrite(path, about={"names": '["only one"]'})
    with pytest.raises(DataError, match=f"{path}: train has 4 clients, but there are 1 names"):
        load_partition(path, examples())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_values": torch.full((10,), 3)}, "do not add up"),
        ({"test_offsets": torch.tensor([0, 9, 5, 5, 5])}, "do not add up"),
        ({"test_offsets": torch.tensor([], dtype=torch.int64)}, "do not add up"),
        ({"test_values": torch.tensor([300]), "test_offsets": torch.tensor([0, 1, 1, 1, 1])}, "outside of 0 .. 299"),
        ({"test_values": torch.tensor([-1]), "test_offsets": torch.tensor([0, 1, 1, 1, 1])}, "outside of"),
        ({"test_values": torch.tensor([1.5])}, "must be int64"),
    ],
)
def test_damaged_partitions_are_refused(tmp_path: Path, change: dict[str, torch.Tensor], message: str) -> None:
    path = tmp_path / "mine"
    save_partition(federation(), path)
    rewrite(path, change)
    with pytest.raises(DataError, match=message):
        load_partition(path, examples())


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    with pytest.raises(DataError, match="can't be read"):
        load_partition(path, examples())
    path.write_bytes(b"\x80\x04cos\nsystem\n.")
    with pytest.raises(DataError, match="can't be read"):
        load_partition(path, examples())
    safetensors.torch.save_file({"a": torch.ones(1)}, path)
    with pytest.raises(DataError, match="not a saved partition"):
        load_partition(path, examples())


def test_table() -> None:
    made = federation()
    table = describe_partition(made)
    assert table.classes.sum(0).tolist() == [100, 100, 100]
    assert np.array_equal(table.classes.sum(1), table.sizes.sum(1))
    first = table.rows()[0]
    assert first["train"] == len(made.train[0])
    assert first["num_classes"] == sum(first[f"class_{k}"] > 0 for k in range(3))
    summary = table.summary()
    assert summary["train"] + summary["validation"] + summary["test"] == 300
    assert 0.1 < summary["skew"] < 1
    even = describe_partition(federate(examples(), Iid(), 3)).summary()
    assert even["skew"] < 0.1
    assert (even["smallest"], even["largest"]) == (100, 100)


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("kind", ["few", "many", "regression"])
def test_picture(tmp_path: Path, kind: str, suffix: str) -> None:
    if kind == "few":
        made = federation()
    elif kind == "many":
        made = federate(from_arrays(np.zeros((3000, 1)), np.arange(3000) % 2), Iid(), 600, Splitter(order="shuffled"))
    else:
        made = federate(from_arrays(np.zeros((30, 1)), np.zeros(30)), Iid(), 3, Splitter(order="shuffled"))
    draw_partition(made, tmp_path / f"p.{suffix}", "title")
    start = (tmp_path / f"p.{suffix}").read_bytes()[:100]
    assert start.startswith(b"\x89PNG") if suffix == "png" else b"<?xml" in start


def test_picture_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtraError, match=r"propfair\[plot\]"):
        draw_partition(federation(), tmp_path / "p.png")
