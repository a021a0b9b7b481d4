"""CIFAR-10 and CIFAR-100, from the official Python version."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from propfair.data.base import SOURCES, ArrayExamples, Protocol, Remote
from propfair.data.files import find
from propfair.data.images import ImageSource
from propfair.data.pickles import StoredArray, read_pickle
from propfair.errors import DataError

Part = Literal["train", "test", "all"]


@SOURCES.register("cifar10")
@dataclass(frozen=True, kw_only=True)
class Cifar10(ImageSource):
    """CIFAR-10: 32x32 colour, 10 classes, 50,000 official training images (Krizhevsky, 2009).

    Args:
        part: "train", as the paper, which never touches the official test images; "test"; or "all" of them.
        normalize: subtract the mean and divide by the standard deviation of each channel; not in the paper.
        augment: random crop (padding 4) and flip of training batches; not in the paper.
    """

    part: Part = "train"

    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    remotes = (
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
            unpacks_to="cifar-10-batches-py",
        ),
    )
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2023, 0.1994, 0.2010)

    @property
    def protocol(self) -> Protocol:
        return Protocol(
            ("dirichlet", {"beta": 0.5, "min_samples": 300}),
            10,
            {"test": 0.2, "order": "per-class"},
            model="resnet18-gn",
        )

    def load(self, folder: Path | None = None) -> ArrayExamples:
        """Read the batches into one array of bytes."""
        home = find(type(self), folder)
        train = [f"data_batch_{i}" for i in range(1, 6)]
        names = {"train": train, "test": ["test_batch"], "all": [*train, "test_batch"]}[self.part]
        x, y = _read_batches([home / name for name in names], "labels", 10)
        return self._examples(x, y, 10)


@SOURCES.register("cifar100")
@dataclass(frozen=True, kw_only=True)
class Cifar100(ImageSource):
    """CIFAR-100: 32x32 colour, 100 classes in 20 groups, 50,000 official training images (Krizhevsky, 2009).

    Args:
        part: "train", as the paper, which never touches the official test images; "test"; or "all" of them.
        labels: the 100 "fine" classes or the 20 "coarse" groups.
        normalize: subtract the mean and divide by the standard deviation of each channel; not in the paper.
        augment: random crop (padding 4) and flip of training batches; not in the paper.
    """

    part: Part = "train"
    labels: Literal["fine", "coarse"] = "fine"

    home = "https://www.cs.toronto.edu/~kriz/cifar.html"
    remotes = (
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "cifar-100-python.tar.gz",
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
            unpacks_to="cifar-100-python",
        ),
    )
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)

    @property
    def protocol(self) -> Protocol:
        return Protocol(
            ("dirichlet", {"beta": 0.1, "min_samples": 300}),
            10,
            {"test": 0.2, "order": "per-class"},
            model="resnet18-gn",
        )

    def load(self, folder: Path | None = None) -> ArrayExamples:
        """Read the images into one array of bytes."""
        home = find(type(self), folder)
        names = ["train", "test"] if self.part == "all" else [self.part]
        num_classes = 100 if self.labels == "fine" else 20
        x, y = _read_batches([home / name for name in names], f"{self.labels}_labels", num_classes)
        return self._examples(x, y, num_classes)


def _read_batches(paths: list[Path], key: str, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    batches = [_read_batch(path, key, num_classes) for path in paths]
    y = torch.cat([labels for _, labels in batches])
    x = np.empty((len(y), 3, 32, 32), dtype=np.uint8)
    start = 0
    for path, (data, labels) in zip(paths, batches, strict=True):
        with path.open("rb") as file:
            data.read(file, x[start : start + len(labels)].reshape(-1, 3072))
        start += len(labels)
    return torch.from_numpy(x), y


def _read_batch(path: Path, key: str, num_classes: int) -> tuple[StoredArray, torch.Tensor]:
    if not path.is_file():
        raise DataError(f"{path} is missing: the folder is not a whole copy of the official distribution")
    batch = read_pickle(path)
    if "data" not in batch or key not in batch:
        raise DataError(
            f"{path} must hold 'data' and {key!r}; it holds {', '.join(sorted(batch))}. Is it another version?"
        )
    data, y = batch["data"], batch[key]
    if not isinstance(data, StoredArray) or len(data.shape) != 2 or data.shape[1] != 3072:
        raise DataError(f"{path}: 'data' must be rows of 3072 bytes (3x32x32)")
    if not isinstance(y, list) or len(y) != data.shape[0]:
        raise DataError(f"{path}: {key!r} must be a list of {data.shape[0]} numbers, one per image")
    if not all(isinstance(label, int) and 0 <= label < num_classes for label in y):
        raise DataError(f"{path}: {key!r} must be between 0 and {num_classes - 1}")
    return data, torch.tensor(y)
