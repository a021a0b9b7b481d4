"""The server's step: plain, with momentum, or adaptive for each parameter (Reddi et al., 2021)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

ServerOptimizerName = Literal["sgd", "momentum", "adam", "yogi", "adagrad"]
Moments = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    r"""How the aggregated update $\Delta$ of a round moves the model.

    | kind | known as | $m$ | $v$ | step |
    |---|---|---|---|---|
    | sgd | FedAvg | | | $\eta \Delta$ |
    | momentum | FedAvgM | $\beta_1 m + \Delta$ | | $\eta m$ |
    | adam | FedAdam | $\beta_1 m + (1 - \beta_1) \Delta$ | $\beta_2 v + (1 - \beta_2) \Delta^2$ | $\eta m / (\sqrt v + \tau)$ |
    | yogi | FedYogi | the same | $v - (1 - \beta_2) \Delta^2 \operatorname{sign}(v - \Delta^2)$ | the same |
    | adagrad | FedAdaGrad | the same | $v + \Delta^2$ | the same |

    m and v start at 0. The paper starts v at tau^2 or more and corrects no bias.

    Args:
        kind: see above.
        lr: eta.
        beta1, beta2, tau: see above.
        bias_correction: of Adam, as Kingma and Ba have it and as Flower does: m / (1 - beta1^t), v / (1 - beta2^t).
    """  # noqa: E501

    kind: ServerOptimizerName = "sgd"
    lr: float = 1.0
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    bias_correction: bool = False

    def step(self, params: Tensor, update: Tensor, kept: Mapping[str, Tensor]) -> tuple[Tensor, Moments]:
        """The new parameters [P] and moments. `kept` are the moments of the round before, none before round 1.

        The new parameters may take the place of `update` in memory, so that a plain step needs no third vector.
        """
        if self.kind == "sgd":
            return torch.add(params, update, alpha=self.lr, out=update), {}
        m = kept.get("m", torch.zeros_like(params))
        if self.kind == "momentum":
            m = torch.add(update, m, alpha=self.beta1)
            return torch.add(params, m, alpha=self.lr), {"m": m}
        count = int(kept.get("count", 0)) + 1
        m = torch.add(update * (1 - self.beta1), m, alpha=self.beta1)
        v = self._second(kept.get("v", torch.zeros_like(params)), update.square())
        lr = self.lr
        if self.bias_correction and self.kind == "adam":
            lr = lr * (1 - self.beta2**count) ** 0.5 / (1 - self.beta1**count)
        return torch.addcdiv(params, m, v.sqrt().add_(self.tau), value=lr), {
            "m": m, "v": v, "count": torch.tensor(count),
        }  # fmt: skip

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        if self.kind == "adam":
            return torch.add(square * (1 - self.beta2), v, alpha=self.beta2)
        if self.kind == "yogi":
            return torch.addcmul(v, square, torch.sign(v - square), value=self.beta2 - 1)
        return v + square
