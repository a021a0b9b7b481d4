"""Named tensors in files that run nothing when they are opened."""

from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from propfair.errors import DataError
from propfair.files import check_readable, check_size, replacing


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file atomically."""
    with replacing(path) as temporary:
        safetensors.torch.save_file(_separate(tensors), temporary)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; a `DataError` names one that can't be read."""
    check_readable(path)
    try:
        check_size(path)
        return safetensors.torch.load_file(path)
    except DataError:
        raise
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise DataError(f"{path} can't be read: {error}") from None


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without shared storage, which the format refuses."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.contiguous() if storage not in seen else tensor.clone()
        seen.add(storage)
    return apart
