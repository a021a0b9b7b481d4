"""FedDyn (Acar, Zhao, Matas, Mattina, Whatmough, Saligrama, 2021)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from propfair.algorithms.base import Advice, Drift, register
from propfair.algorithms.over import Over, without_variates
from propfair.errors import ConfigError


@register("feddyn")
@dataclass(frozen=True, kw_only=True)
class FedDyn(Over):
    r"""A penalty that learns, so that clients agree where the model of all is optimal. Around any other algorithm.

    $$\min_{\theta_i} f_i(\theta_i) - \langle c_i, \theta_i \rangle + \frac\alpha2 \|\theta_i - \theta\|^2, \qquad
      c_i \leftarrow c_i - \alpha \Delta_i, \qquad
      \theta \leftarrow \theta + \sum_i w_i \Delta_i - \frac1\alpha \sum_i q_i c_i$$ (first paper, Algorithm 1).

    c_i comes to be the gradient of client i at its own optimum. The first paper has equal weights w_i and q_i; here
    those of `over`, with the data shares of absent clients among the q_i, so that training can only end where the
    gradients cancel as the rule weighs them. alpha = 0 is `over` itself. The c_i are held by the server, which can
    work them out (`propfair.core.drift`). Not in the paper.

    Args:
        alpha: the strength of the penalty. The first paper tries 0.001, 0.01 and 0.1. lr * alpha must stay below 2.
        over: the algorithm underneath.
        options: its hyper-parameters.

    >>> from propfair.algorithms import Cohort
    >>> dyn = FedDyn(alpha=0.1, over="term", options={"alpha": 0.5})
    >>> dyn.weigh(Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0]), {})[0]
    tensor([0.3821, 0.2944, 0.3236], dtype=torch.float64)
    >>> dyn.drift
    Drift(pull=0.1, variates='feddyn', alpha=0.1)

    References:
        D. A. E. Acar, Y. Zhao, R. Matas, M. Mattina, P. Whatmough, V. Saligrama, Federated Learning Based on Dynamic
        Regularization, ICLR 2021.
    """

    alpha: float = 0.01

    advice: ClassVar[Advice | None] = Advice(
        optimises="What `over` does.",
        tune="alpha, and what `over` needs.",
        epochs="Made for it: clients agree in the end.",
        participation="Corrections of absent clients grow old.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"alpha": (0.001, 0.01, 0.1)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise ConfigError(f"alpha must be >= 0; got alpha={self.alpha}. Use alpha=0 for no penalty.")
        without_variates(self)

    @property
    def drift(self) -> Drift | None:
        inner = self.inner.drift
        if self.alpha == 0:
            return inner
        pull = self.alpha + (0.0 if inner is None else inner.pull)
        return Drift(pull=pull, variates="feddyn", alpha=self.alpha)
