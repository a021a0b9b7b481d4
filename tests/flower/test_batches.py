"""The received model measured on a client's batches, as loops have them."""

import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")

from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from propfair.errors import ConfigError
from propfair.flower.batches import losses_of, unpack_batch
from tests.builders import seeded


def test_a_loader_with_a_sampler_of_batches_is_measured_as_any_other() -> None:
    data = TensorDataset(torch.randn(50, 4), torch.arange(50) % 3)
    model = seeded(lambda: nn.Linear(4, 3))
    loaders = [DataLoader(data, 8), DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 7, False))]
    plain, sampled = (losses_of(model, loader, nn.CrossEntropyLoss(), unpack_batch) for loader in loaders)
    assert plain.shape == (50,)
    assert torch.allclose(plain, sampled)


def test_no_batches_are_told_so() -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(ConfigError, match="there are no batches to measure the received model on"):
        losses_of(model, [], nn.CrossEntropyLoss(), unpack_batch)
    assert model.training, "as it was"
