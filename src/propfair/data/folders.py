"""Folders of images: a folder for each class, read when a batch needs them."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from propfair.errors import DataError, MissingExtraError
from propfair.files import check_readable

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def class_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """The names of the folders in any of the folders that hold images: the classes of all clients, sorted."""
    found = {place.name for folder in folders for place in _subfolders(folder) if _images(place)}
    if not found:
        raise DataError(f"{folders[0]} has no folders with images in them. Expected a folder for each class.")
    return tuple(sorted(found))


class ImageFolder(Dataset[tuple[Tensor, int]]):
    """The images of one client: `folder/CLASS/*.png`.

    Args:
        folder: with a folder for each class.
        classes: the classes of all clients, whose places are the labels.
        size: pixels of each side after resizing; None: images must all have one size.

    Attributes:
        targets: [N], the labels, known from the names of folders.
    """

    def __init__(self, folder: Path, classes: Sequence[str], size: int | None = None) -> None:
        self._size = size
        pairs = [(path, classes.index(place.name)) for place in _subfolders(folder) for path in _images(place)]
        if not pairs:
            raise DataError(f"{folder} has no images in folders of classes")
        self._paths = [path for path, _ in pairs]
        self.targets = torch.tensor([label for _, label in pairs])
        self._grey = _is_grey(self._paths[0])

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        with _opened(self._paths[place]) as image:
            image = image.convert("L" if self._grey else "RGB")
            if self._size is not None:
                image = image.resize((self._size, self._size))
            pixels = np.array(image)
        x = torch.from_numpy(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1).copy())
        return x.to(torch.float32).div_(255), int(self.targets[place])


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    return sorted(place for place in folder.iterdir() if place.is_dir())


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGES)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """An image; whatever is wrong with it, also with its pixels, is a `DataError` that names the file."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("reading images", "data") from None
    check_readable(path)
    try:
        with Image.open(path) as image:
            yield image
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"can't read the image {path}: {error}") from None


def _is_grey(path: Path) -> bool:
    with _opened(path) as image:
        return image.mode in ("1", "L", "I;16")
