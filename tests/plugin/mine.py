"""Parts of a user, asked for by their path: `tests.plugin.mine:Halved`."""

from dataclasses import dataclass

import torch
from torch import Tensor

import propfair
from propfair.algorithms import Algorithm, Cohort, State


@dataclass(frozen=True, kw_only=True)
class Halved(Algorithm):
    """FedAvg with half of the weight for the first client.

    Args:
        part: what it is left with.
    """

    part: float = 0.5

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        weights = cohort.share.clone()
        weights[0] *= self.part
        return weights / weights.sum(), state


def clients(num_clients: int = 3, size: int = 20) -> dict[str, tuple[Tensor, Tensor]]:
    """Every client wants to know the largest of three numbers."""
    rng = torch.Generator().manual_seed(0)
    inputs = [torch.randn(size, 4, generator=rng) for _ in range(num_clients)]
    return {f"client {k}": (x, x[:, :3].argmax(1)) for k, x in enumerate(inputs)}


def federation() -> propfair.Federation:
    return propfair.from_datasets(clients())


def share_of_zero(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == 0).float().mean()


NOT_A_FUNCTION = 7
