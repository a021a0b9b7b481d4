"""Lists of unequal length in two tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """Index lists packed end to end, so that 100,000 clients cost two allocations.

    >>> lists = Ragged.of([torch.tensor([4, 2]), torch.tensor([7])])
    >>> lists[0].tolist(), lists.lengths.tolist()
    ([4, 2], [2, 1])
    """

    values: Tensor  # [total]
    offsets: Tensor  # [n + 1]

    @staticmethod
    def of(lists: Sequence[Tensor]) -> "Ragged":
        """Pack a list of index tensors."""
        lengths = torch.tensor([0, *(len(item) for item in lists)], dtype=torch.int64)
        values = torch.cat([torch.as_tensor(item, dtype=torch.int64) for item in lists]) if lists else torch.empty(0)
        return Ragged(values.to(torch.int64), lengths.cumsum(0))

    @staticmethod
    def packed(values: NDArray[np.int64], lengths: NDArray[np.int64]) -> "Ragged":
        """Lists that already lie end to end; `lengths` [n] says where each one stops."""
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Ragged(torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)), torch.from_numpy(offsets))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, position: int) -> Tensor:
        if not -len(self) <= position < len(self):
            raise IndexError(f"there are {len(self)} lists; got position {position}")
        position %= len(self)
        return self.values[self._bounds[position] : self._bounds[position + 1]]

    @cached_property
    def lengths(self) -> Tensor:
        """[n]."""
        return self.offsets.diff()

    @cached_property
    def longest(self) -> int:
        """The length of the longest list."""
        return int(self.lengths.max())

    @cached_property
    def _bounds(self) -> list[int]:
        return [int(bound) for bound in self.offsets.tolist()]
