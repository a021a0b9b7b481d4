"""Tiny files in the official formats, made by the tests themselves."""

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

RNG = np.random.default_rng(0)


def text(value: bytes) -> bytes:
    """A string as Python 2 pickled it."""
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value


def number(value: int) -> bytes:
    return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)


def array(rows: NDArray[np.uint8]) -> bytes:
    """An array as numpy of that time pickled it."""
    shape = b"".join(number(n) for n in rows.shape)
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R(K\x01(" + shape
        + b"tcnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xff"
        + b"J\xff\xff\xff\xffK\x00tb\x89" + text(rows.tobytes()) + b"tb"
    )  # fmt: skip


def numbers(values: list[int]) -> bytes:
    return b"](" + b"".join(number(value) for value in values) + b"e"


def pickled(**items: bytes) -> bytes:
    body = b"".join(text(key.encode()) + value for key, value in items.items())
    return b"\x80\x02}q\x01(" + body + b"u."


def images(count: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, (count, 3072)).astype(np.uint8)


def write_cifar10(home: Path, per_batch: int = 20) -> NDArray[np.uint8]:
    """Five training batches and one test batch; returns the training images."""
    folder = home / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    made = []
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        rows = images(per_batch)
        labels = [i % 10 for i in range(per_batch)]
        content = pickled(batch_label=text(name.encode()), labels=numbers(labels), data=array(rows))
        (folder / name).write_bytes(content)
        made.append(rows)
    return np.concatenate(made[:5])


def write_cifar100(home: Path, count: int = 40) -> None:
    folder = home / "cifar-100-python"
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        fine, coarse = [i % 100 for i in range(count)], [i % 20 for i in range(count)]
        content = pickled(
            data=array(images(count)), fine_labels=numbers(fine), coarse_labels=numbers(coarse), batch_label=text(b"x")
        )
        (folder / name).write_bytes(content)


def idx(values: NDArray[np.uint8]) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_fashion_mnist(home: Path, count: int = 30) -> None:
    folder = home / "fashion-mnist"
    folder.mkdir(parents=True)
    for prefix in ("train", "t10k"):
        pixels = RNG.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8) % 10))


def write_tiny_imagenet(home: Path, classes: int = 4, per_class: int = 5) -> None:
    """Colour images, and in each class the last one grey."""
    top = home / "tiny-imagenet-200"
    names = [f"n{i:08d}" for i in range(classes)]
    (top / "val" / "images").mkdir(parents=True)
    (top / "wnids.txt").write_text("\n".join(reversed(names)) + "\n")
    rows = []
    for position, name in enumerate(names):
        folder = top / "train" / name / "images"
        folder.mkdir(parents=True)
        for i in range(per_class):
            mode = "L" if i == per_class - 1 else "RGB"
            shade = 50 * position + 5 * i
            Image.new(mode, (64, 64), shade if mode == "L" else (shade, 0, 255)).save(folder / f"{name}_{i}.JPEG")
        Image.new("RGB", (64, 64), (position, 0, 0)).save(top / "val" / "images" / f"val_{position}.JPEG")
        rows.append(f"val_{position}.JPEG\t{name}\t0\t0\t63\t63\n")
    (top / "val" / "val_annotations.txt").write_text("".join(rows))


WORKS = """\
The first line
THE SONNETS

by William Shakespeare

  SOMEBODY. Not in a play.

THE TRAGEDY OF NOBODY


by William Shakespeare

Dramatis Personae

  FIRST LORD. To be, or   not to be:
    that is the question, my lord|
    and here is more of it, and more, and so on to the hundredth letter of the speech of the lord.
  Second Lord. Ay.
  First Lord. Again.
                                     Exeunt
  SECOND LORD. One.
  SECOND LORD. Two.

THE COMEDY OF ERRORS


by William Shakespeare

Solinus. Flat as a board
and on.
ACT I. Scene one
not spoken
Solinus. End
<a notice>
not spoken either
"""


def write_shakespeare(home: Path) -> None:
    (home / "shakespeare").mkdir(parents=True)
    (home / "shakespeare" / "t8.shakespeare.txt").write_text(WORKS)
