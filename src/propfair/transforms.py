"""Scalar transforms of a batch loss. Pure, differentiable, finite gradients for every finite loss."""

import math
from typing import Literal

import torch
from torch import Tensor

from propfair.errors import ConfigError

Variant = Literal["practical", "huber"]


def check_baseline(M: float, epsilon: float) -> None:
    """0 < epsilon <= M, the domain of the Huberised logarithm."""
    if not (math.isfinite(M) and M > 0):
        raise ConfigError(f"M must be a positive number, above the losses you expect; got M={M}. Try M=5.")
    if not 0 < epsilon <= M:
        raise ConfigError(f"epsilon must satisfy 0 < epsilon <= M; got epsilon={epsilon}, M={M}. Try epsilon=0.2.")


def negative_log_utility(loss: Tensor, M: float | Tensor, epsilon: float, variant: Variant) -> Tensor:
    r"""$-\log_{[\epsilon]}(M - t)$, the Huberised logarithm of the utility M - t (paper, eq. 3.6 and the text below it).

    Up to M - epsilon it is the negative log utility with slope 1/(M - t). Past it a straight line goes on:

    - `huber`, as printed: slope 1/epsilon, so that the function is convex and continuously differentiable;
    - `practical`, as in the experiments: slope 1/M, that is the step that FedAvg would take at learning rate lr/M.

    `huber` gives -log(M - t); `practical` gives -log(1 - t/M), which is the same up to log M, because its line is then
    that of FedAvg. Both are continuous. The logarithm only ever sees arguments >= epsilon, so that the branch which
    is not taken can't put NaN into the gradient. Half-precision losses are computed in float32.
    """
    loss = loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss
    inside = loss.clamp(max=M - epsilon)
    past = torch.relu(loss - (M - epsilon))  # relu: slope 0 at the threshold itself, which is on the log branch
    if variant == "huber":
        return -torch.log(M - inside) + past / epsilon
    return -torch.log1p(-inside / M) + past / M


def slope(loss: Tensor, M: float | Tensor, epsilon: float, variant: Variant) -> Tensor:
    """The derivative of `negative_log_utility`: the factor by which the transform scales a batch's gradient."""
    steep = 1 / (M - loss.clamp(max=M - epsilon))
    flat = torch.as_tensor(1 / epsilon if variant == "huber" else 1 / M, dtype=steep.dtype)
    return torch.where(loss > M - epsilon, flat, steep)
