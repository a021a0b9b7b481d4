"""TinyImageNet, from the official JPEG files, decoded once into a memory-mapped cache."""

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from propfair.data.base import SOURCES, ArrayExamples, Protocol, Remote
from propfair.data.files import find, writable_folder
from propfair.data.images import ImageSource, paper_protocol
from propfair.errors import DataError, MissingExtraError
from propfair.files import check_readable, replacing, write_text

SIDE = 64
MAX_JPEG_BYTES = 1 << 20
IN_FLIGHT = 256  # images between the decoders and the writer


@SOURCES.register("tiny-imagenet")
@dataclass(frozen=True, kw_only=True)
class TinyImageNet(ImageSource):
    """TinyImageNet (tiny-imagenet-200): 64x64 colour, 200 classes, 100,000 official training images.

    The first use decodes all images, on all cores, into a file that is mapped into memory from then on. That file
    carries a checksum; if it no longer fits, the images are decoded again.

    Args:
        part: "train", as the paper, or the official validation images "val".
        grey: "skip" images that are not RGB, as the paper's authors did, or "convert" them.
        normalize: subtract the mean and divide by the standard deviation of each channel; not in the paper.
        augment: random crop (padding 4) and flip of training batches; not in the paper.
        per_class: the first so many images of each class, in the order of the files; None for all.
        first_classes: only the images of so many classes, those with the smallest labels; None for all.
    """

    part: Literal["train", "val"] = "train"
    grey: Literal["skip", "convert"] = "skip"

    home = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    remotes = (
        Remote(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "tiny-imagenet-200.zip",
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
            unpacks_to="tiny-imagenet-200",
        ),
    )
    mean = (0.4802, 0.4481, 0.3975)
    std = (0.2770, 0.2691, 0.2821)

    @property
    def protocol(self) -> Protocol:
        return paper_protocol(beta=0.05, num_clients=20)

    def load(self, folder: Path | None = None) -> ArrayExamples:
        """Map the cache into memory, after making it if there is none that fits the files."""
        home = find(type(self), folder)
        files, classes = _list_images(home, self.part)
        names = "\n".join(f"{name} {label}" for name, label in files)
        key = hashlib.sha256(names.encode()).hexdigest()[:12]
        place = writable_folder(home.parent) / f"tiny-imagenet-200-{self.part}-{key}"
        meta, pixels = _open_cache(place, len(files)) or _make_cache(home, files, place)
        count = meta.num_rgb if self.grey == "skip" else len(pixels)
        digest = hashlib.sha256(f"{meta.digest} {count}".encode()).hexdigest()
        return self._examples(
            torch.from_numpy(pixels[:count]), torch.tensor(meta.labels[:count]), len(classes), digest=digest
        )


class _Meta(NamedTuple):
    """What stands beside the pixels: RGB images come first, the others after them.

    Attributes:
        num_rgb: how many are RGB.
        labels: of all images.
        digest: of the pixels.
        seal: a digest of the three above.
    """

    num_rgb: int
    labels: list[int]
    digest: str
    seal: str = ""

    def sealed(self) -> "_Meta":
        content = json.dumps([self.num_rgb, self.labels, self.digest])
        return self._replace(seal=hashlib.sha256(content.encode()).hexdigest())


def _list_images(home: Path, part: str) -> tuple[list[tuple[str, int]], list[str]]:
    words = home / "wnids.txt"
    if not words.is_file():
        raise DataError(f"{words} is missing: {home} is not a whole copy of the official distribution")
    classes = sorted(words.read_text().split())
    if not all(re.fullmatch(r"n\d{8}", name) for name in classes):
        raise DataError(f"{words} must list classes such as n01443537")
    label = {name: i for i, name in enumerate(classes)}
    files: list[tuple[str, int]] = []
    if part == "train":
        for name in classes:
            folder = home / "train" / name / "images"
            if not folder.is_dir():
                raise DataError(f"{folder} is missing: {home} is not a whole copy of the official distribution")
            with os.scandir(folder) as entries:
                found = sorted(entry.name for entry in entries if entry.name.endswith(".JPEG"))
            files += [(f"train/{name}/images/{image}", label[name]) for image in found]
    else:
        table = home / "val" / "val_annotations.txt"
        if not table.is_file():
            raise DataError(f"{table} is missing: {home} is not a whole copy of the official distribution")
        for line in table.read_text().splitlines():
            image, name = [*line.split("\t"), ""][:2]
            if name not in label or not re.fullmatch(r"\w+\.JPEG", image):
                raise DataError(f"{table}: {line!r} must be an image and one of the classes of {words}")
            files.append((f"val/images/{image}", label[name]))
    if not files:
        raise DataError(f"{home}/{part} has no images (*.JPEG)")
    return files, classes


_Cache = tuple[_Meta, NDArray[np.uint8]]


def _open_cache(place: Path, count: int) -> _Cache | None:
    """The decoded images, or None where they are missing, not whole or altered."""
    about, data = place.with_suffix(".json"), place.with_suffix(".npy")
    check_readable(about)
    check_readable(data)
    try:
        meta = _Meta(**json.loads(about.read_text()))
        pixels = np.load(data, mmap_mode="c", allow_pickle=False)
        whole = pixels.dtype == np.uint8 and pixels.shape == (count, 3, SIDE, SIDE) and len(meta.labels) == count
        with data.open("rb") as file:  # not through the map, which would bring all of it into memory
            file.seek(pixels.offset)
            unaltered = meta == meta.sealed() and hashlib.file_digest(file, "sha256").hexdigest() == meta.digest
    except Exception:  # whatever the readers stumble over: what is damaged is made again
        return None
    return (meta, pixels) if whole and unaltered else None


def _make_cache(home: Path, files: list[tuple[str, int]], place: Path) -> _Cache:
    place.parent.mkdir(parents=True, exist_ok=True)
    shape = (len(files), 3, SIDE, SIDE)
    with replacing(place.with_suffix(".npy")) as scratch:
        pixels = np.lib.format.open_memmap(scratch, mode="w+", dtype=np.uint8, shape=shape)
        _reserve(scratch)
        labels = [0] * len(files)
        front, back = 0, len(files)
        for (_, label), (image, is_rgb) in zip(files, _decode_all(home, [name for name, _ in files]), strict=True):
            if is_rgb:
                row, front = front, front + 1
            else:
                row = back = back - 1
            pixels[row], labels[row] = image, label
        meta = _Meta(front, labels, hashlib.sha256(pixels.data).hexdigest()).sealed()
        pixels.flush()
        del pixels
    # The pixels are valid from the moment that this file is there.
    write_text(place.with_suffix(".json"), json.dumps(meta._asdict()))
    made = _open_cache(place, len(files))
    if made is None:
        raise DataError(f"{place.with_suffix('.npy')} does not hold what was written there. Is the disk damaged?")
    return made


def _reserve(path: Path) -> None:
    """Take the room on disk before it is written through memory, where a full disk ends the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


Decoded = tuple[NDArray[np.uint8], bool]


def _decode_all(home: Path, names: list[str]) -> Iterator[Decoded]:
    """All images in order, with a bar on a terminal; a bounded number of them at a time."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    decode = _decoder()
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        queue = [pool.submit(decode, home / name) for name in islice(names, IN_FLIGHT)]
        rest = iter(names[IN_FLIGHT:])
        for position in track(
            range(len(names)), "decoding TinyImageNet, once", console=console, disable=not console.is_terminal
        ):
            yield queue[position % IN_FLIGHT].result()
            following = next(rest, None)
            if following is not None:
                queue[position % IN_FLIGHT] = pool.submit(decode, home / following)


def _decoder() -> Callable[[Path], Decoded]:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("data set 'tiny-imagenet'", "data") from None

    def decode(path: Path) -> Decoded:
        try:
            if path.stat().st_size > MAX_JPEG_BYTES:
                raise DataError(f"{path} is refused: over {MAX_JPEG_BYTES >> 20} MB for a 64x64 image")
            with Image.open(io.BytesIO(path.read_bytes()), formats=("JPEG",)) as image:
                if image.size != (SIDE, SIDE):
                    raise DataError(f"{path} must be {SIDE}x{SIDE} pixels; it is {image.width}x{image.height}")
                is_rgb = image.mode == "RGB"
                return np.asarray(image.convert("RGB")).transpose(2, 0, 1), is_rgb
        except DataError:
            raise
        except Exception as error:  # Pillow passes on whatever its decoder stumbles over
            raise DataError(f"{path} is not a whole JPEG file ({error}). Unpack the official archive again.") from error

    return decode
