"""Saved partitions: who holds which example, with a hash of the data, so that others can repeat an experiment."""

import contextlib
import hashlib
import itertools
import json
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from propfair.data.base import Examples
from propfair.errors import DataError
from propfair.federation.federation import SPLITS, Federation
from propfair.federation.ragged import Ragged
from propfair.files import check_readable, check_size, replacing

_FORMAT = "propfair partition 2"
_UNSEALED = "propfair partition 1"  # of version 0.1.0: the same without a digest of itself


def save_partition(federation: Federation, path: Path) -> None:
    """Write the index lists, names and note of a federation, and the digest of its data, as one safetensors file."""
    tensors: dict[str, Tensor] = {}
    for split in SPLITS:
        part = federation.split(split)
        tensors[f"{split}.values"], tensors[f"{split}.offsets"] = part.values.contiguous(), part.offsets.contiguous()
    about = {
        "format": _FORMAT,
        "digest": federation.examples.digest(),
        "num_examples": str(len(federation.examples)),
        "names": json.dumps(federation.names),
        "note": federation.note,
    }
    with contextlib.suppress(OSError):  # what is wrong with the folder is told when the file is written
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        safetensors.torch.save_file(tensors, temporary, {**about, "seal": _seal(about, tensors)})


def load_partition(path: Path, examples: Examples) -> Federation:
    """The federation that `save_partition` wrote, over the same examples.

    Other examples are an error, and so are a file that was altered and an example in two of train, validation and test.
    """
    stored = _read(path)
    if stored.about["digest"] != examples.digest():
        raise DataError(
            f"{path} was made for other data: {stored.about['num_examples']} examples with digest "
            f"{stored.about['digest'][:12]}, here are {len(examples)} with digest {examples.digest()[:12]}. "
            "Load the data set with the same options."
        )
    parts = []
    for split in SPLITS:
        values, offsets = stored.tensors[f"{split}.values"], stored.tensors[f"{split}.offsets"]
        ordered = len(offsets) > 0 and int(offsets[0]) == 0 and bool((offsets.diff() >= 0).all())
        if not ordered or int(offsets[-1]) != len(values):
            raise DataError(f"{path} is damaged: the lists of {split} do not add up")
        if bool(((values < 0) | (values >= len(examples))).any()):
            raise DataError(f"{path} is damaged: {split} has indices outside of 0 .. {len(examples) - 1}")
        parts.append(Ragged(values, offsets))
    _check_apart(path, parts, len(examples))
    train, validation, test = parts
    try:
        return Federation(examples, stored.names, train, validation, test, note=stored.about["note"])
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _check_apart(path: Path, parts: list[Ragged], num_examples: int) -> None:
    """What is tested on must not be trained on, not by any other client either."""
    holds = torch.zeros(len(parts), num_examples, dtype=torch.bool)
    for row, part in zip(holds, parts, strict=True):
        row[part.values] = True
    for first, second in itertools.combinations(range(len(parts)), 2):
        both = (holds[first] & holds[second]).nonzero().flatten()
        if len(both):
            raise DataError(
                f"{path} is refused: {len(both)} examples are in both {SPLITS[first]} and {SPLITS[second]}, the first "
                f"is {int(both[0])}. Split the data anew with `propfair partition --save`."
            )


def _seal(about: dict[str, str], tensors: dict[str, Tensor]) -> str:
    """A digest of all that the file says."""
    total = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {len(tensor)} ".encode())
        total.update(tensor.numpy().data)
    return total.hexdigest()


class _Stored(NamedTuple):
    about: dict[str, str]
    names: tuple[str, ...]
    tensors: dict[str, Tensor]


def _read(path: Path) -> _Stored:
    wanted = [f"{split}.{part}" for split in SPLITS for part in ("values", "offsets")]
    check_readable(path)
    try:
        check_size(path)
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("format") not in (_FORMAT, _UNSEALED):
                raise DataError(f"{path} is not a saved partition ({_FORMAT}); its format is {about.get('format')}")
            tensors = {name: file.get_tensor(name) for name in wanted}
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} can't be read as a saved partition: {error}") from error
    if any(tensor.dtype != torch.int64 or tensor.ndim != 1 for tensor in tensors.values()):
        raise DataError(f"{path} is damaged: index lists must be int64")
    seal = about.pop("seal", None)
    if about["format"] == _FORMAT and seal != _seal(about, tensors):
        raise DataError(
            f"{path} is damaged or altered: its checksum is not the one it was written with. Make it again."
        )
    try:
        names = json.loads(about["names"])
        if not isinstance(names, list) or not {"digest", "num_examples", "note"} <= about.keys():
            raise ValueError("something is missing")
    except (KeyError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged: names or digest can't be read ({error})") from None
    return _Stored(about, tuple(map(str, names)), tensors)
