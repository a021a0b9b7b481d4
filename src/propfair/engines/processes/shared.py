"""Memory that several processes map. It has no name, only file descriptors, so that nothing is left behind."""

import io
import math
import mmap
import os
import pickle
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes; what torch's own allocator gives


class SharedMemory:
    """A run of bytes for any process that is handed `fd`. Pages cost nothing before they are first written.

    The kernel frees it when no process has it open or mapped any more, however those processes end.
    """

    def __init__(self, size: int, fd: int | None = None) -> None:
        self.size = max(1, size)
        self.fd = _anonymous(self.size) if fd is None else fd
        self._map = mmap.mmap(self.fd, self.size)

    def tensor(self, offset: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The bytes from `offset` on, as a tensor; it keeps the mapping alive."""
        if math.prod(shape) == 0:
            return torch.empty(*shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=math.prod(shape), offset=offset).view(*shape)

    def close(self) -> None:
        """Give up the descriptor. Tensors that were made of the memory stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def padded(size: int) -> int:
    """`size` bytes rounded up to whole cache lines."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def pack(thing: object) -> tuple[SharedMemory, bytes]:
    """Pickle `thing` into shared memory; the memory, and the pickle without its tensors.

    The tensors move to the shared memory in this process too, so that none is held twice.
    """
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(thing)
    places, offset = [], _ALIGNMENT
    for tensor in pickler.tensors:
        places.append((offset, tuple(tensor.shape), tensor.dtype))
        offset += padded(tensor.numel() * tensor.element_size())
    index = pickle.dumps((stream.getvalue(), places))
    memory = SharedMemory(offset + len(index))
    memory._map[:16] = offset.to_bytes(8) + len(index).to_bytes(8)
    memory._map[offset : offset + len(index)] = index
    for tensor, place in zip(pickler.tensors, places, strict=True):
        shared = memory.tensor(*place)
        shared.copy_(tensor)
        tensor.set_(shared)  # type: ignore[call-overload]
    return memory, stream.getvalue()


def unpack(memory: SharedMemory) -> Any:
    """The inverse of `pack`, in any process: tensors are the shared ones."""
    offset, length = int.from_bytes(memory._map[:8]), int.from_bytes(memory._map[8:16])
    stream, places = pickle.loads(memory._map[offset : offset + length])
    unpickler = _Unpickler(io.BytesIO(stream))
    unpickler.tensors = [memory.tensor(*place) for place in places]
    return unpickler.load()


class _Pickler(pickle.Pickler):
    """Puts plain tensors aside. Parameters and others that carry more than numbers are pickled as usual."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._known: dict[int, int] = {}

    def persistent_id(self, thing: Any) -> int | None:
        plain = type(thing) is Tensor and thing.device.type == "cpu" and thing.layout is torch.strided
        if not plain or thing.requires_grad:
            return None
        if id(thing) not in self._known:
            self._known[id(thing)] = len(self.tensors)
            self.tensors.append(thing)
        return self._known[id(thing)]


class _Unpickler(pickle.Unpickler):
    tensors: list[Tensor]

    def persistent_load(self, number: int) -> Tensor:
        return self.tensors[number]


def _anonymous(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("propfair", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.truncate(fd, size)
    return fd
