"""The models that training starts from."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from propfair.algorithms.base import ClientId
from propfair.models.base import ModelSpec, Shape
from propfair.seeds import derive, seed_global, untouched_global_rng


@dataclass(frozen=True)
class Initial:
    """A model for each client, drawn from (seed, client). Client 0's is the one that all share by default.

    The authors of the paper let every client draw its own; round 1 then averages unrelated networks.
    """

    spec: ModelSpec
    shape: Shape
    num_classes: int
    seed: int

    def module(self, client: ClientId = 0) -> nn.Module:
        """A new module."""
        with untouched_global_rng():
            seed_global(derive(self.seed, "init", *([client] if client else [])))
            return self.spec.build(self.shape, self.num_classes)

    def __call__(self, client: ClientId) -> Tensor:
        """The parameters [P] that the client draws."""
        drawn = (p.detach().reshape(-1) for p in self.module(client).parameters() if p.requires_grad)
        return torch.cat(list(drawn))
