"""Ditto (Li, Hu, Beirami, Smith, 2021)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from propfair.algorithms.base import Advice, Personal, register
from propfair.algorithms.over import Over
from propfair.errors import ConfigError


@register("ditto")
@dataclass(frozen=True, kw_only=True)
class Ditto(Over):
    r"""A personal model for each client, held near the global model of any other algorithm.

    $$\min_{v_i} f_i(v_i) + \frac\lambda2 \|v_i - \theta\|^2, \qquad
      v_i \leftarrow v_i - \eta\,(\nabla f_i(v_i) + \lambda (v_i - \theta))$$

    theta is the model received in the round; v_i stays with the client and starts as the first model it receives. The
    global model is trained as if there were no personal ones, on the same batches. Named in the paper, not run there.
    lam = 0 gives local models, a large lam the global model.

    With several values of lam, each client trains once with each of them in each round, from its v_i, and keeps the
    result with the least loss on its validation examples; the choice is recorded. The code of the first paper chooses
    from 0.1, 1 and 2 after every step instead of every round, which goes through the validation examples that often.

    Args:
        lam: the pull towards the global model: one number, or several to choose from.
        lr: learning rate of the personal models; None: that of the global one. lr * lam must stay below 2.
        over: the algorithm of the global model.
        options: its hyper-parameters.

    >>> from propfair.algorithms import Cohort
    >>> ditto = Ditto(lam=0.5, over="term", options={"alpha": 0.5})
    >>> ditto.weigh(Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0]), {})[0]
    tensor([0.3821, 0.2944, 0.3236], dtype=torch.float64)
    >>> ditto.personal
    Personal(lam=0.5, lr=None, candidates=())

    References:
        T. Li, S. Hu, A. Beirami, V. Smith, Ditto: Fair and Robust Federated Learning Through Personalization,
        ICML 2021.
    """

    lam: float | tuple[float, ...] = 0.1
    lr: float | None = None

    advice: ClassVar[Advice | None] = Advice(
        optimises="Personal models near a global one; the global one by `over`.",
        tune="lam.",
        epochs="Personal models gain from them.",
        participation="Personal models of absent clients wait.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"lam": (0.1, 1.0, 2.0)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self._lams or not all(math.isfinite(lam) and lam >= 0 for lam in self._lams):
            raise ConfigError(f"lam must be >= 0; got lam={self.lam}. Use lam=0 for local models.")
        if self.lr is not None and not (math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"lr must be a positive number, or None for that of the global model; got lr={self.lr}")
        if self.inner.personal is not None:
            raise ConfigError(f"over={self.over!r} has personal models of its own; Ditto goes around global algorithms")

    @property
    def personal(self) -> Personal | None:
        return Personal(self._lams[0], self.lr, self._lams if len(self._lams) > 1 else ())

    @property
    def _lams(self) -> tuple[float, ...]:
        return self.lam if isinstance(self.lam, tuple) else (self.lam,)
