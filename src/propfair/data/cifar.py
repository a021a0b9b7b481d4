"""CIFAR-10 and CIFAR-100, from the official Python version."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from propfair.data.base import SOURCES, ArrayExamples, Protocol, Remote
from propfair.data.files import check_official, find
from propfair.data.images import ImageSource, paper_protocol
from propfair.data.pickles import StoredArray, read_pickle
from propfair.errors import DataError

Part = Literal["train", "test", "all"]
_CHECKSUMS_10 = {
    "data_batch_1": "sha256:54636561a3ce25bd3e19253c6b0d8538147b0ae398331ac4a2d86c6d987368cd",
    "data_batch_2": "sha256:766b2cef9fbc745cf056b3152224f7cf77163b330ea9a15f9392beb8b89bc5a8",
    "data_batch_3": "sha256:0f00d98ebfb30b3ec0ad19f9756dc2630b89003e10525f5e148445e82aa6a1f9",
    "data_batch_4": "sha256:3f7bb240661948b8f4d53e36ec720d8306f5668bd0071dcb4e6c947f78e9682b",
    "data_batch_5": "sha256:d91802434d8376bbaeeadf58a737e3a1b12ac839077e931237e0dcd43adcb154",
    "test_batch": "sha256:f53d8d457504f7cff4ea9e021afcf0e0ad8e24a91f3fc42091b8adef61157831",
}
_CHECKSUMS_100 = {
    "train": "md5:16019d7e3df5f24257cddd939b257f8d",
    "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
}
_OFFICIAL_COUNTS = {"train": 50_000}  # of images; 10,000 in all other files


@SOURCES.register("cifar10")
@dataclass(frozen=True, kw_only=True)
class Cifar10(ImageSource):
    """CIFAR-10: 32x32 colour, 10 classes, 50,000 official training images (Krizhevsky, 2009).

    Args:
        part: "train", as the paper, which never touches the official test images; "test"; or "all" of them.
        normalize: subtract the mean and divide by the standard deviation of each channel; not in the paper.
        augment: random crop (padding 4) and flip of training batches; not in the paper.
        per_class: the first so many images of each class, in the order of the files; None for all.
        first_classes: only the images of so many classes, those with the smallest labels; None for all.
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
        return paper_protocol(beta=0.5, num_clients=10)

    def load(self, folder: Path | None = None) -> ArrayExamples:
        """Read the batches into one array of bytes."""
        home = find(type(self), folder)
        train = [f"data_batch_{i}" for i in range(1, 6)]
        names = {"train": train, "test": ["test_batch"], "all": [*train, "test_batch"]}[self.part]
        x, y = _read_batches({home / name: _CHECKSUMS_10[name] for name in names}, "labels", 10)
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
        per_class: the first so many images of each class, in the order of the files; None for all.
        first_classes: only the images of so many classes, those with the smallest labels; None for all.
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
        return paper_protocol(beta=0.1, num_clients=10)

    def load(self, folder: Path | None = None) -> ArrayExamples:
        """Read the images into one array of bytes."""
        home = find(type(self), folder)
        names = ["train", "test"] if self.part == "all" else [self.part]
        num_classes = 100 if self.labels == "fine" else 20
        x, y = _read_batches(
            {home / name: _CHECKSUMS_100[name] for name in names}, f"{self.labels}_labels", num_classes
        )
        return self._examples(x, y, num_classes)


def _read_batches(checksums: dict[Path, str], key: str, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The images and labels of several files, given with the checksums that they have if they are whole."""
    batches = [_read_batch(path, key, num_classes) for path in checksums]
    y = torch.cat([labels for _, labels in batches])
    x = np.empty((len(y), 3, 32, 32), dtype=np.uint8)
    start = 0
    for (path, checksum), (data, labels) in zip(checksums.items(), batches, strict=True):
        if len(labels) == _OFFICIAL_COUNTS.get(path.name, 10_000):
            check_official(path, checksum, "give its arrays to propfair.train")
        with path.open("rb") as file:
            data.read(file, x[start : start + len(labels)].reshape(-1, 3072))
        start += len(labels)
    return torch.from_numpy(x), y


def _read_batch(path: Path, key: str, num_classes: int) -> tuple[StoredArray, torch.Tensor]:
    if not path.is_file():
        raise DataError(f"{path} is missing: the folder is not a whole copy of the official distribution")
    batch = read_pickle(path)
    if "data" not in batch or key not in batch:
        found = ", ".join(name[:40] for name in sorted(batch)[:10])
        raise DataError(f"{path} must hold 'data' and {key!r}; it holds {found}. Is it another version?")
    data, y = batch["data"], batch[key]
    if not isinstance(data, StoredArray) or len(data.shape) != 2 or data.shape[1] != 3072:
        raise DataError(f"{path}: 'data' must be rows of 3072 bytes (3x32x32)")
    if not isinstance(y, list) or len(y) != data.shape[0]:
        raise DataError(f"{path}: {key!r} must be a list of {data.shape[0]} numbers, one per image")
    if not all(isinstance(label, int) and 0 <= label < num_classes for label in y):
        raise DataError(f"{path}: {key!r} must be between 0 and {num_classes - 1}")
    return data, torch.tensor(y)
