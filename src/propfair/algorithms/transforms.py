"""Scalar transforms of a batch loss. Pure, differentiable, finite gradients for every finite loss."""

import math
from typing import Literal, SupportsFloat

import torch
from torch import Tensor

from propfair.errors import ConfigError

Variant = Literal["practical", "huber"]


def check_baseline(M: float, epsilon: float) -> None:
    """0 < epsilon <= M, the domain of the Huberised utility."""
    if not (isinstance(M, SupportsFloat) and math.isfinite(M) and M > 0):
        raise ConfigError(f"M must be a positive number, above the losses you expect; got M={M}. Try M=5.")
    if not 0 < epsilon <= M:
        raise ConfigError(f"epsilon must satisfy 0 < epsilon <= M; got epsilon={epsilon}, M={M}. Try epsilon=0.2.")


def negative_utility(
    loss: Tensor, M: float | Tensor, epsilon: float, variant: Variant = "practical", alpha: float = 1.0
) -> Tensor:
    r"""$-\phi_\alpha(M - t)$, Huberised: the negative alpha-fair utility of the loss t (paper, eqs. 2.8 and 3.8).

    $\phi_1(u) = \log u$ and $\phi_\alpha(u) = u^{1-\alpha}/(1-\alpha)$ otherwise. Up to $t = M - \epsilon$ the slope is
    $(M - t)^{-\alpha}$. Past it a straight line goes on:

    - `huber`, as printed for alpha = 1: slope epsilon^-alpha, so that the function is convex and has no kink;
    - `practical`, as in the paper's experiments: slope M^-alpha, that of a client without loss, so that FedAvg with
      learning rate lr * M^-alpha takes the same step.

    `huber` gives $-\phi_\alpha(M - t)$ itself, `practical` adds $\phi_\alpha(M)$, so that no loss gives 0. Both are
    continuous. No power and no logarithm sees an argument below epsilon, so that the branch which is not taken can't
    put NaN into the gradient. Half-precision losses are computed in float32.

    >>> negative_utility(torch.tensor([0.5, 1.0, 2.0]), M=2.0, epsilon=0.2)
    tensor([0.2877, 0.6931, 2.4026])
    """
    loss = loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss
    inside = loss.clamp(max=M - epsilon)
    past = torch.relu(loss - (M - epsilon))  # relu: slope 0 at the threshold itself, which is on the curved branch
    end = epsilon if variant == "huber" else M
    if alpha == 1:
        curve = -torch.log(M - inside) if variant == "huber" else -torch.log1p(-inside / M)
        return curve + past / end
    power = 1 - alpha
    curve = -((M - inside) ** power) / power
    return curve + past * end**-alpha + (0.0 if variant == "huber" else M**power / power)


def slope(
    loss: Tensor, M: float | Tensor, epsilon: float, variant: Variant = "practical", alpha: float = 1.0
) -> Tensor:
    """The derivative of `negative_utility`: the factor by which the transform scales a batch's gradient.

    >>> slope(torch.tensor([0.5, 1.0, 2.0]), M=2.0, epsilon=0.2, variant="huber")
    tensor([0.6667, 1.0000, 5.0000])
    """
    steep = (M - loss.clamp(max=M - epsilon)) ** -alpha
    flat = torch.as_tensor((epsilon if variant == "huber" else M) ** -alpha, dtype=steep.dtype, device=steep.device)
    return torch.where(loss > M - epsilon, flat, steep)
