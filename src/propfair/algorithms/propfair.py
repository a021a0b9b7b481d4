"""PropFair (Zhang, Malekmohammadi, Chen, Yu, 2023): the algorithm of the paper."""

from dataclasses import dataclass

from torch import Tensor

from propfair.algorithms.base import Algorithm, Order, register
from propfair.transforms import Variant, check_baseline, negative_log_utility, slope


@register("propfair")
@dataclass(frozen=True, kw_only=True)
class PropFair(Algorithm):
    r"""Proportional fairness: maximise the Nash product of the clients' utilities M - loss.

    $$\min_\theta -\sum_i p_i \log_{[\epsilon]}(M - f_i(\theta)), \qquad w_i = p_i$$ (paper, eq. 3.6, Algorithm 1).

    The transform is applied to the mean loss of each batch on the client; the server averages as FedAvg does.
    The printed objective is `variant="huber"`. The paper's experiments, and so the default, use `"practical"`.

    Args:
        M: the loss at which a client has no utility left; above the losses to expect, yet as low as training allows.
        epsilon: the utility below which the logarithm goes on as a straight line.
        variant: the slope of that line, 1/M ("practical") or 1/epsilon ("huber").

    >>> import torch
    >>> PropFair(M=2.0).observe(torch.tensor([0.5, 1.0, 2.0]), Order())["past_threshold"]
    0.3333333432674408

    References:
        G. Zhang, S. Malekmohammadi, X. Chen, Y. Yu, Proportional Fairness in Federated Learning, TMLR 2023.
    """

    M: float = 5.0
    epsilon: float = 0.2
    variant: Variant = "practical"

    presets = {"paper": {"variant": "practical", "epsilon": 0.2}, "original": {"variant": "huber", "epsilon": 0.2}}  # noqa: RUF012

    def __post_init__(self) -> None:
        check_baseline(self.M, self.epsilon)

    def objective(self, batch_loss: Tensor, order: Order) -> Tensor:  # noqa: ARG002
        return negative_log_utility(batch_loss, self.M, self.epsilon, self.variant)

    def observe(self, batch_losses: Tensor, order: Order) -> dict[str, float]:  # noqa: ARG002
        return {
            "past_threshold": float((batch_losses > self.M - self.epsilon).float().mean()),
            "slope": float(slope(batch_losses, self.M, self.epsilon, self.variant).mean()),
        }
