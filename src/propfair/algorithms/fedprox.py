"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, 2020)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from propfair.algorithms.base import Advice, Drift, register
from propfair.algorithms.over import Over
from propfair.errors import ConfigError


@register("fedprox")
@dataclass(frozen=True, kw_only=True)
class FedProx(Over):
    r"""Clients are pulled back to the model they received. Around any other algorithm.

    $$\min_{\theta_i} \phi(f_i(\theta_i)) + \frac{\mu}{2} \|\theta_i - \theta\|^2$$ by the usual local steps, with theta
    the model received and phi the transform of `over`.

    mu = 0 is `over` itself, and so is any mu with one local step a round, which starts where the pull is 0. The first
    paper also lets slow clients take fewer steps (`local.steps`). Not in the paper.

    Args:
        mu: the strength of the pull. The first paper tries 0.001, 0.01, 0.1 and 1.
        over: the algorithm underneath.
        options: its hyper-parameters.

    >>> from propfair.algorithms import Cohort
    >>> prox = FedProx(mu=0.1, over="term", options={"alpha": 0.5})
    >>> prox.weigh(Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0]), {})[0]
    tensor([0.3821, 0.2944, 0.3236], dtype=torch.float64)
    >>> prox.drift
    Drift(pull=0.1, variates='none', alpha=0.0)

    References:
        T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith, Federated Optimization in Heterogeneous
        Networks, MLSys 2020.
    """

    mu: float = 0.01

    advice: ClassVar[Advice | None] = Advice(
        optimises="What `over` does.",
        tune="mu, and what `over` needs.",
        epochs="Made for it: clients are held back.",
        participation="As `over`.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"mu": (0.01, 0.1, 1.0)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.mu) and self.mu >= 0):
            raise ConfigError(f"mu must be >= 0; got mu={self.mu}. Use mu=0 for no pull.")

    @property
    def drift(self) -> Drift | None:
        inner = self.inner.drift
        if self.mu == 0:
            return inner
        return (inner or Drift())._replace(pull=self.mu + (0.0 if inner is None else inner.pull))
