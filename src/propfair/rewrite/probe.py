"""A short measurement: is channels last faster for this network on this machine?"""

import statistics
import time
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from propfair.rewrite.passes import rewrite


def prefers_channels_last(
    module: nn.Module, input_shape: Iterable[int], batch_size: int, *, repeats: int = 5, margin: float = 1.03
) -> bool:
    """Whether training steps of the rewritten module are faster channels last, by at least `margin`.

    The two layouts take turns, and medians are compared. `module` and torch's generators stay as they are.
    """
    if not any(type(m) is nn.Conv2d for m in module.modules()):
        return False
    shape = tuple(input_shape)
    candidates = [
        rewrite(module, shape, batch_size=batch_size, channels_last=last).module.train() for last in (False, True)
    ]
    x = torch.randn(batch_size, *shape, generator=torch.Generator().manual_seed(0))
    times: tuple[list[float], list[float]] = ([], [])
    with torch.random.fork_rng(devices=[]):
        for repeat in range(repeats + 1):
            for candidate, spent in zip(candidates, times, strict=True):
                start = time.perf_counter()
                _step(candidate, x)
                if repeat:  # the first one warms up
                    spent.append(time.perf_counter() - start)
    plain, last = (statistics.median(spent) for spent in times)
    return plain > margin * last


def _step(module: nn.Module, x: Tensor) -> None:
    output = module(x)
    parameters = [p for p in module.parameters() if p.requires_grad]
    torch.autograd.grad(output.square().mean(), parameters, allow_unused=True)
