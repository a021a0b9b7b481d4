"""How examples are cut into batches for evaluation."""

import pytest
import torch

from propfair.core.evaluation import chunks
from propfair.federation.federation import Split
from tests.builders import random_federation


@pytest.mark.parametrize(
    ("num_examples", "sizes"),
    [
        (0, []),
        (100, [100]),
        (300, [128, 128, 44]),
        (3200, [200] * 16),
        (40_000, [1024] * 39 + [64]),
    ],
)
def test_batches_are_wide_but_many_enough_to_share_out(num_examples: int, sizes: list[int]) -> None:
    sizes_of_clients = (num_examples // 4, num_examples - num_examples // 4)
    federation = random_federation([3, 3]) if not num_examples else random_federation(sizes_of_clients)
    split: Split = "train" if num_examples else "test"
    index, parts = federation.split(split), chunks(federation, split, [1, 0])
    assert [len(part) for part in parts] == sizes
    if parts:
        assert torch.equal(torch.cat(parts), torch.cat([index[1], index[0]]))
