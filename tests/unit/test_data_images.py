"""Image data sets: tiny files in the official formats, and the real ones where they are."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from propfair.data import SOURCES, ArrayExamples, cifar, fashion_mnist, tiny_imagenet
from propfair.data.images import CropFlip
from propfair.errors import ConfigError, DataError
from propfair.federation.federation import federate
from propfair.federation.partition import PARTITIONERS, Dirichlet
from propfair.federation.split import Splitter
from tests.unit import official


def load(name: str, home: Path | None, **options: Any) -> ArrayExamples:
    examples = SOURCES.make(name, options).load(home)
    assert isinstance(examples, ArrayExamples)
    return examples


def real(folder: str) -> Path:
    home = os.environ.get("PROPFAIR_DATA")
    if home is None or not (Path(home) / folder).exists():
        pytest.skip(f"needs the real data: PROPFAIR_DATA must name a folder with {folder}/")
    return Path(home)


def test_cifar10(tmp_path: Path) -> None:
    rows = official.write_cifar10(tmp_path)
    examples = load("cifar10", tmp_path)
    assert examples.x.dtype == torch.uint8
    assert np.array_equal(examples.x.numpy(), rows.reshape(100, 3, 32, 32))
    assert examples.labels.bincount().tolist() == [10] * 10
    batch = examples.inputs(torch.tensor([3, 99]))
    assert batch.dtype == torch.float32
    assert batch.equal(torch.from_numpy(rows[[3, 99]]).view(2, 3, 32, 32) / 255)
    assert len(load("cifar10", tmp_path, part="test")) == 20
    assert len(load("cifar10", tmp_path, part="all")) == 120


def test_cifar100(tmp_path: Path) -> None:
    official.write_cifar100(tmp_path)
    fine, coarse = load("cifar100", tmp_path), load("cifar100", tmp_path, labels="coarse")
    assert (fine.num_classes, coarse.num_classes) == (100, 20)
    assert fine.labels.tolist() == list(range(40))
    assert coarse.labels.max() == 19


def test_the_first_images_of_each_class(tmp_path: Path) -> None:
    rows = official.write_cifar10(tmp_path)
    whole, some = load("cifar10", tmp_path), load("cifar10", tmp_path, per_class=3)
    kept = [i for i, label in enumerate(whole.labels) if whole.labels[:i].eq(label).sum() < 3]
    assert some.labels.bincount().tolist() == [3] * 10
    assert np.array_equal(some.x.numpy(), rows.reshape(100, 3, 32, 32)[kept])
    assert some.labels.tolist() == whole.labels[kept].tolist()
    assert some.digest() != whole.digest()


def test_the_first_classes(tmp_path: Path) -> None:
    rows = official.write_cifar10(tmp_path)
    whole, some = load("cifar10", tmp_path), load("cifar10", tmp_path, first_classes=4, per_class=3)
    kept = [i for i, label in enumerate(whole.labels) if label < 4 and whole.labels[:i].eq(label).sum() < 3]
    assert some.num_classes == 4
    assert np.array_equal(some.x.numpy(), rows.reshape(100, 3, 32, 32)[kept])
    assert some.labels.tolist() == whole.labels[kept].tolist()
    with pytest.raises(DataError, match=r"asks for 11 classes; there are 10"):
        load("cifar10", tmp_path, first_classes=11)
    with pytest.raises(ConfigError, match="first_classes must be at least 2"):
        SOURCES.make("cifar10", {"first_classes": 1})


def test_a_part_of_tiny_imagenet_has_a_fingerprint_of_its_own(tmp_path: Path) -> None:
    official.write_tiny_imagenet(tmp_path)
    whole = load("tiny-imagenet", tmp_path).digest()
    assert load("tiny-imagenet", tmp_path, per_class=1).digest() != whole
    assert load("tiny-imagenet", tmp_path, first_classes=2).digest() != whole


def test_more_images_of_a_class_than_there_are(tmp_path: Path) -> None:
    official.write_cifar10(tmp_path)
    with pytest.raises(DataError, match=r"asks for 11 images of each class; class \d has 10"):
        load("cifar10", tmp_path, per_class=11)
    with pytest.raises(ConfigError, match="per_class must be at least 1"):
        SOURCES.make("cifar10", {"per_class": 0})


def test_cifar_files_of_another_version(tmp_path: Path) -> None:
    official.write_cifar10(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    good = official.pickled(labels=official.numbers([1, 2]), data=official.array(official.images(2)))
    cases = {
        "must hold 'data' and 'labels'; it holds data, fine_labels": good.replace(b"U\x06labels", b"U\x0bfine_labels"),
        "list of 2 numbers": official.pickled(labels=official.numbers([1]), data=official.array(official.images(2))),
        "between 0 and 9": official.pickled(labels=official.numbers([10]), data=official.array(official.images(1))),
        "rows of 3072 bytes": official.pickled(labels=official.numbers([1]), data=official.text(b"x" * 300)),
        "cut short": good[:-100],
    }
    for message, content in cases.items():
        (folder / "data_batch_3").write_bytes(content)
        with pytest.raises(DataError, match=message):
            load("cifar10", tmp_path)
    (folder / "data_batch_3").write_bytes(good)
    assert len(load("cifar10", tmp_path)) == 82
    (folder / "data_batch_3").unlink()
    with pytest.raises(DataError, match="data_batch_3 is missing"):
        load("cifar10", tmp_path)


def test_a_file_as_large_as_the_official_one_must_be_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official.write_cifar100(tmp_path)
    assert len(load("cifar100", tmp_path)) == 40, "a part of the data in the official format is read"
    monkeypatch.setitem(cifar._OFFICIAL_COUNTS, "train", 40)
    with pytest.raises(DataError, match=r"cifar-100-python/train is damaged or altered: its checksum is md5:"):
        load("cifar100", tmp_path)
    official.write_fashion_mnist(tmp_path)
    monkeypatch.setattr(fashion_mnist, "_OFFICIAL_COUNTS", (30,))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is damaged or altered: its checksum is md5:"):
        load("fashion-mnist", tmp_path)


def test_fashion_mnist(tmp_path: Path) -> None:
    official.write_fashion_mnist(tmp_path)
    examples = load("fashion-mnist", tmp_path, part="all")
    assert examples.inputs(torch.arange(2)).shape == (2, 1, 28, 28)
    assert len(examples) == 60
    assert examples.labels.bincount().tolist() == [6] * 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an IDX file"),
        (b"\0\0\x0d\1\0\0\0\1\0\0\0\0", "not an IDX file"),
        (official.idx(np.zeros(30, np.uint8))[:-1], "needs 30 bytes"),
        (official.idx(np.zeros(30, np.uint8)) + b"x", "needs 30 bytes"),
        (official.idx(np.full(30, 10, np.uint8)), "labels 0 to 9"),
        (official.idx(np.zeros(29, np.uint8)), "labels"),
        (b"\0\0\x08\1\xff\xff\xff\xff", "it claims 4,294,967,295 bytes"),
    ],
)
def test_damaged_idx_files(tmp_path: Path, content: bytes, message: str) -> None:
    official.write_fashion_mnist(tmp_path)
    (tmp_path / "fashion-mnist" / "train-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load("fashion-mnist", tmp_path)


def test_truncated_gzip(tmp_path: Path) -> None:
    official.write_fashion_mnist(tmp_path)
    path = tmp_path / "fashion-mnist" / "train-images-idx3-ubyte.gz"
    for content in (path.read_bytes()[:500], b"not gzip at all"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="damaged or cut short"):
            load("fashion-mnist", tmp_path)


def test_tiny_imagenet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_imagenet, "IN_FLIGHT", 3)
    official.write_tiny_imagenet(tmp_path)
    skipped = load("tiny-imagenet", tmp_path)
    assert skipped.labels.bincount().tolist() == [4] * 4, "one grey image of each class is left out"
    assert skipped.num_classes == 4
    shades = skipped.x[:, 0].float().mean((1, 2))
    expected = torch.tensor([50.0 * k + 5 * i for k in range(4) for i in range(4)])
    assert torch.allclose(shades, expected, atol=4), "colour images in the order of their names"
    converted = load("tiny-imagenet", tmp_path, grey="convert")
    assert converted.labels.bincount().tolist() == [5] * 4
    assert converted.x[16:].float().std(1).max() < 3, "grey images come last"
    assert converted.digest() != skipped.digest()
    assert load("tiny-imagenet", tmp_path, part="val").labels.tolist() == [0, 1, 2, 3]


def test_tiny_imagenet_is_decoded_once_and_again_when_files_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    official.write_tiny_imagenet(tmp_path)
    first = load("tiny-imagenet", tmp_path)

    def refuse() -> None:
        raise AssertionError("decoded again")

    with monkeypatch.context() as patch:
        patch.setattr(tiny_imagenet, "_decoder", refuse)
        again = load("tiny-imagenet", tmp_path)
    assert again.x.equal(first.x)
    assert again.digest() == first.digest()
    pixels, count = first.x.clone(), len(first)
    del first, again  # they map the file that is damaged now
    (cache,) = tmp_path.glob("*.npy")
    cache.write_bytes(cache.read_bytes()[:-1000])
    assert load("tiny-imagenet", tmp_path).x.equal(pixels), "a damaged cache is made again"
    next(tmp_path.glob("*.json")).write_text("{")
    assert load("tiny-imagenet", tmp_path).x.equal(pixels)
    next((tmp_path / "tiny-imagenet-200" / "train").rglob("*_0.JPEG")).unlink()
    assert len(load("tiny-imagenet", tmp_path)) == count - 1


@pytest.mark.parametrize("part", ["pixel", "header", "label", "num_rgb", "digest", "no seal", "list", "empty"])
def test_an_altered_cache_of_tiny_imagenet_is_made_again(tmp_path: Path, part: str) -> None:
    official.write_tiny_imagenet(tmp_path)
    first = load("tiny-imagenet", tmp_path)
    whole, labels, digest = first.x.clone(), first.y.clone(), first.digest()
    del first  # it maps the file that is altered now
    (data,), (about,) = tmp_path.glob("*.npy"), tmp_path.glob("*.json")
    content, meta = bytearray(data.read_bytes()), json.loads(about.read_text())
    match part:
        case "pixel":
            content[-100_000] ^= 1
        case "header":
            content[20] ^= 1
        case "label":
            meta["labels"][0] = 3
        case "num_rgb":
            meta["num_rgb"] -= 1
        case "digest":
            meta["digest"] = "0" + meta["digest"][1:]
        case "no seal":
            del meta["seal"]
        case "list":
            meta = [1, 2]
        case "empty":
            content = bytearray()
    data.write_bytes(content)
    about.write_text(json.dumps(meta))
    again = load("tiny-imagenet", tmp_path)
    assert again.x.equal(whole)
    assert again.y.equal(labels)
    assert again.digest() == digest


@pytest.mark.parametrize("trouble", ["text", "cut", "png", "size", "large"])
def test_a_jpeg_that_is_not_one(tmp_path: Path, trouble: str) -> None:
    official.write_tiny_imagenet(tmp_path)
    path = tmp_path / "tiny-imagenet-200" / "train" / "n00000002" / "images" / "n00000002_1.JPEG"
    match trouble:
        case "text":
            path.write_text("not a picture")
        case "cut":
            path.write_bytes(path.read_bytes()[:-200])
        case "png":
            Image.new("RGB", (64, 64)).save(path, format="PNG")
        case "size":
            Image.new("RGB", (32, 64)).save(path)
        case "large":
            path.write_bytes(bytes(tiny_imagenet.MAX_JPEG_BYTES + 1))
    expected = {"size": "must be 64x64 pixels; it is 32x64", "large": "is refused"}
    with pytest.raises(DataError, match=f"n00000002_1.JPEG.*{expected.get(trouble, 'is not a whole JPEG')}"):
        load("tiny-imagenet", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-imagenet-200"], "no half-made cache is left"


def test_tiny_imagenet_with_parts_missing(tmp_path: Path) -> None:
    official.write_tiny_imagenet(tmp_path)
    top = tmp_path / "tiny-imagenet-200"
    table = top / "val" / "val_annotations.txt"
    for line in ("val_0.JPEG\tn99999999\t0", "../../etc/x.JPEG\tn00000001", "", "val_0.JPEG"):
        table.write_text(f"{line}\n")
        with pytest.raises(DataError, match="must be an image and one of the classes"):
            load("tiny-imagenet", tmp_path, part="val")
    table.unlink()
    with pytest.raises(DataError, match=r"val_annotations\.txt is missing"):
        load("tiny-imagenet", tmp_path, part="val")
    (top / "train").rename(top / "elsewhere")
    with pytest.raises(DataError, match="images is missing"):
        load("tiny-imagenet", tmp_path)
    (top / "wnids.txt").write_text("../../etc\n")
    with pytest.raises(DataError, match="must list classes such as"):
        load("tiny-imagenet", tmp_path)
    (top / "wnids.txt").unlink()
    with pytest.raises(DataError, match=r"wnids\.txt is missing"):
        load("tiny-imagenet", tmp_path)


def test_normalisation(tmp_path: Path) -> None:
    official.write_cifar10(tmp_path)
    plain, normal = (load("cifar10", tmp_path, normalize=n).inputs(torch.arange(9)) for n in (False, True))
    mean, std = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    assert torch.allclose(normal, (plain - mean.view(3, 1, 1)) / std.view(3, 1, 1))


def test_crop_and_flip_come_from_the_generator_alone() -> None:
    batch = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    change = CropFlip()
    before = torch.get_rng_state()
    one, same, other = (change(batch, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert before.equal(torch.get_rng_state())
    assert one.equal(same)
    assert not one.equal(other)
    assert one.shape == batch.shape


def test_crop_and_flip_shift_and_mirror() -> None:
    batch = torch.arange(1.0, 65.0).view(1, 1, 8, 8).expand(200, 2, 8, 8)
    padded = torch.nn.functional.pad(batch[0], [2, 2, 2, 2], value=-7.0)
    crops = [padded[:, i : i + 8, j : j + 8] for i in range(5) for j in range(5)]
    possible = torch.stack(crops + [crop.flip(2) for crop in crops])
    changed = CropFlip(padding=2, fill=(-7.0, -7.0))(batch, torch.Generator().manual_seed(0))
    same = (changed[:, None] == possible[None]).flatten(2).all(2)  # [images, possibilities]
    assert same.any(1).all(), "every result is a crop or its mirror image"
    assert same.any(0).sum() > 40, "and nearly all of them occur"


def test_augmentation_is_an_option(tmp_path: Path) -> None:
    official.write_cifar10(tmp_path)
    assert load("cifar10", tmp_path).augment is None
    augment = load("cifar10", tmp_path, augment=True, normalize=True).augment
    assert isinstance(augment, CropFlip)
    assert augment.fill[0] == pytest.approx(-0.4914 / 0.2023)


def test_real_cifar10() -> None:
    home = real("cifar-10-batches-py")
    examples = load("cifar10", home)
    assert examples.x.shape == (50_000, 3, 32, 32)
    assert examples.labels.bincount().tolist() == [5000] * 10
    protocol = SOURCES.make("cifar10").protocol
    federation = federate(
        examples, PARTITIONERS.make(*protocol.partition), protocol.num_clients, Splitter(**protocol.split)
    )
    sizes = int(federation.train.lengths.sum()), int(federation.test.lengths.sum())
    assert sum(sizes) == 50_000
    assert abs(sizes[0] - 39_963) < 30, "the paper's 39,963 / 10,037 in kind"
    assert int((federation.train.lengths + federation.test.lengths).min()) >= 300
    assert len(load("cifar10", home, part="test")) == 10_000


def test_a_changed_bit_of_real_cifar10_is_found(tmp_path: Path) -> None:
    home = real("cifar-10-batches-py") / "cifar-10-batches-py"
    batch = bytearray((home / "test_batch").read_bytes())
    batch[20_000_000] ^= 1
    (tmp_path / home.name).mkdir()
    (tmp_path / home.name / "test_batch").write_bytes(batch)
    with pytest.raises(DataError, match="test_batch is damaged or altered"):
        load("cifar10", tmp_path, part="test")


def test_real_cifar100() -> None:
    counts = load("cifar100", real("cifar-100-python")).labels.bincount()
    assert len(counts) == 100
    assert len(set(counts.tolist())) == 1, "all classes are of one size"


@pytest.mark.slow
def test_real_tiny_imagenet() -> None:
    home = real("tiny-imagenet-200")
    skipped, converted = (load("tiny-imagenet", home, grey=grey) for grey in ("skip", "convert"))
    assert skipped.num_classes == 200
    assert len(set(converted.labels.bincount().tolist())) == 1
    assert 0.97 < len(skipped) / len(converted) < 0.99, "98,179 of 100,000 in the paper"
    federation = federate(skipped, Dirichlet(beta=0.05, min_samples=60), 20)
    assert federation.num_clients == 20
