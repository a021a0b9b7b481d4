"""The Gram matrix of updates, whatever the strips it is computed in."""

import pytest
import torch

from propfair.core import updates as module


@pytest.mark.parametrize("num_clients", [0, 1, 5, 300])
@pytest.mark.parametrize("num_bytes", [1, 10_000, 1 << 26])
def test_strips_do_not_matter(num_clients: int, num_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRAM_BYTES", num_bytes)
    monkeypatch.setattr(module, "_GRAM_ROWS", 128)
    updates = torch.randn(num_clients, 70, generator=torch.Generator().manual_seed(0))
    found = module.gram_matrix(*torch.split(updates, 3))
    torch.testing.assert_close(found, updates.double() @ updates.double().T, rtol=1e-12, atol=1e-12)
    assert torch.equal(found, found.T)
