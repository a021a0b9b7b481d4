"""Saved partitions: who holds which example, with a hash of the data, so that others can repeat an experiment."""

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
from propfair.files import replacing

_FORMAT = "propfair partition 1"


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
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        safetensors.torch.save_file(tensors, temporary, about)


def load_partition(path: Path, examples: Examples) -> Federation:
    """The federation that `save_partition` wrote, over the same examples; other examples are an error."""
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
    names = tuple(str(name) for name in json.loads(stored.about["names"]))
    train, validation, test = parts
    return Federation(examples, names, train, validation, test, note=stored.about["note"])


class _Stored(NamedTuple):
    about: dict[str, str]
    tensors: dict[str, Tensor]


def _read(path: Path) -> _Stored:
    wanted = [f"{split}.{part}" for split in SPLITS for part in ("values", "offsets")]
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("format") != _FORMAT:
                raise DataError(f"{path} is not a saved partition ({_FORMAT}); its format is {about.get('format')}")
            tensors = {name: file.get_tensor(name) for name in wanted}
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} can't be read as a saved partition: {error}") from error
    if any(tensor.dtype != torch.int64 or tensor.ndim != 1 for tensor in tensors.values()):
        raise DataError(f"{path} is damaged: index lists must be int64")
    return _Stored(about, tensors)
