"""Alpha-fairness on utilities (Mo and Walrand, 2000)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from propfair.algorithms.base import Advice, Presets, register
from propfair.algorithms.propfair import PropFair
from propfair.errors import ConfigError

_FLOAT32_DIGITS = 35  # of powers of ten, with room for a loss beside them


@register("alpha-fair")
@dataclass(frozen=True, kw_only=True)
class AlphaFair(PropFair):
    r"""Alpha-fair utilities: their sum (alpha = 0), Nash product (1), harmonic mean (2), minimum (towards infinity).

    $$\max_\theta \sum_i p_i \phi_\alpha(M - f_i(\theta)), \qquad
      \phi_1(u) = \log u, \quad \phi_\alpha(u) = \frac{u^{1-\alpha}}{1-\alpha}$$ (paper, eq. 2.8;
    the harmonic mean: eq. F.8).

    Wherever PropFair has a slope, $1/(M - f_i)$, this is its power alpha: alpha = 0 is FedAvg, alpha = 1 is PropFair.
    With one full-batch step in a round all placements agree up to the length of the step.

    Args:
        alpha: the order of fairness, >= 0.
        M, placement, beta, weighting, epsilon, variant, normalise: as for PropFair.
        ratio: for M="auto", how many times a client at the mean loss the worst-off one would count if alpha were 1.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])
    >>> fair = AlphaFair(alpha=2.0, M=3.0, beta=0.0, weighting="samples")
    >>> fair.weigh(cohort, fair.init(cohort.share))[0]
    tensor([0.2254, 0.2113, 0.5634], dtype=torch.float64)

    References:
        J. Mo, J. Walrand, Fair End-to-End Window-Based Congestion Control, IEEE/ACM Transactions on Networking 2000.
    """

    alpha: float = 1.0

    presets: ClassVar[Presets] = {}
    advice: ClassVar[Advice | None] = Advice(
        optimises="Alpha-fair utilities of M - loss: sum, Nash product, harmonic mean, minimum.",
        tune="alpha; then as PropFair.",
        epochs="As PropFair.",
        participation="Fine.",
    )

    @property
    def fairness(self) -> float:
        return self.alpha

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"alpha": (0.5, 2.0, 5.0)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise ConfigError(f"alpha must be >= 0; got alpha={self.alpha}. Use alpha=0 for plain averaging.")
        digits = abs(math.log10(self._steepest))
        if self.placement == "step" and self.alpha * digits > _FLOAT32_DIGITS:
            raise ConfigError(
                f"slopes to the power of alpha must fit into float32 for placement='step'; got alpha={self.alpha} and "
                f"slopes up to {self._steepest:g}. Use placement='server', or an alpha of at most "
                f"{_FLOAT32_DIGITS / digits:.0f}."
            )

    @property
    def _steepest(self) -> float:
        """The largest slope there may be."""
        if self.M == "auto":
            return self.ratio
        if self.M == "schedule":
            return 1 / self.epsilon
        highest = max(self.M) if isinstance(self.M, tuple) else self.M
        return (highest if self.normalise else 1.0) / self.epsilon
