"""Fashion-MNIST, from the official IDX files."""

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from propfair.data.base import SOURCES, ArrayExamples, Protocol, Remote
from propfair.data.files import check_official, data_folder, missing
from propfair.data.images import ImageSource
from propfair.errors import DataError

_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_FOLDERS = ("fashion-mnist", "FashionMNIST/raw")  # ours, and that of torchvision
_CHECKSUMS = {
    "train-images-idx3-ubyte": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}
_OFFICIAL_COUNTS = (60_000, 10_000)


@SOURCES.register("fashion-mnist")
@dataclass(frozen=True, kw_only=True)
class FashionMnist(ImageSource):
    """Fashion-MNIST: 28x28 grey, 10 classes of clothes, 60,000 official training images (Xiao et al., 2017).

    Args:
        part: "train", "test", or "all" of the official images.
        normalize: subtract the mean and divide by the standard deviation.
        augment: random crop (padding 4) and flip of training batches.
        per_class: the first so many images of each class, in the order of the files; None for all.
        first_classes: only the images of so many classes, those with the smallest labels; None for all.
    """

    part: Literal["train", "test", "all"] = "train"

    home = "https://github.com/zalandoresearch/fashion-mnist"
    remotes = tuple(
        Remote(f"{_ADDRESS}/{name}.gz", f"{_FOLDERS[0]}/{name}.gz", checksum) for name, checksum in _CHECKSUMS.items()
    )
    mean = (0.2860,)
    std = (0.3530,)

    @property
    def protocol(self) -> Protocol:
        return Protocol(("dirichlet", {"beta": 0.5, "min_samples": 300}), 10, {"test": 0.2}, model="cnn")

    def load(self, folder: Path | None = None) -> ArrayExamples:
        """Read the images into one array of bytes."""
        prefixes = {"train": ["train"], "test": ["t10k"], "all": ["train", "t10k"]}[self.part]
        x = np.concatenate([self._read(folder, f"{prefix}-images-idx3-ubyte", 3) for prefix in prefixes])
        y = np.concatenate([self._read(folder, f"{prefix}-labels-idx1-ubyte", 1) for prefix in prefixes])
        if x.shape[1:] != (28, 28) or len(x) != len(y) or y.max(initial=0) > 9:
            raise DataError(
                f"fashion-mnist must be 28x28 images with labels 0 to 9; got images {x.shape}, labels {y.shape} "
                f"up to {y.max(initial=0)}"
            )
        return self._examples(torch.from_numpy(x).unsqueeze(1), torch.from_numpy(y.astype(np.int64)), 10)

    def _read(self, folder: Path | None, name: str, dimensions: int) -> NDArray[np.uint8]:
        home = data_folder(folder)
        for place in _FOLDERS:
            for path in (home / place / name, home / place / f"{name}.gz"):
                if path.is_file():
                    values = read_idx(path, dimensions)
                    if path.suffix == ".gz" and len(values) in _OFFICIAL_COUNTS:
                        check_official(path, _CHECKSUMS[name], "unpack it, without the .gz")
                    return values
        raise missing(type(self), home)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of bytes in an IDX file, plain or gzipped."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            head = file.read(4 + 4 * dimensions)
            if head[:4] != bytes((0, 0, 8, dimensions)) or len(head) != 4 + 4 * dimensions:
                raise DataError(f"{path} is not an IDX file of bytes in {dimensions} dimensions")
            shape = struct.unpack(f">{dimensions}I", head[4:])
            size = int(np.prod(shape, dtype=object))
            if size > 1 << 30:
                raise DataError(f"{path} is refused: it claims {size:,} bytes")
            content = file.read(size + 1)
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(f"{path} can't be read: it is damaged or cut short ({error}). Download it again.") from error
    if len(content) != size:
        raise DataError(f"{path} is damaged: {shape} needs {size} bytes, it has {len(content)} or more")
    return np.frombuffer(bytearray(content), dtype=np.uint8).reshape(shape)
