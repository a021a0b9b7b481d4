"""TERM, tilted empirical risk minimisation (Li, Beirami, Sanjabi, Smith, 2021)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Needs, Presets, Reduce, State, register
from propfair.errors import ConfigError


@register("term")
@dataclass(frozen=True, kw_only=True)
class TERM(Algorithm):
    r"""Losses count by their exponential.

    $$\min_\theta \frac1\alpha \log \sum_i p_i e^{\alpha f_i(\theta)}, \qquad
      w_i = \frac{p_i e^{\alpha f_i}}{\sum_j p_j e^{\alpha f_j}}$$ (paper, eqs. E.9 and E.12).

    alpha to 0 is FedAvg, alpha to infinity AFL; alpha < 0 seeks the smallest losses. Weights come from a softmax that
    can't overflow; the paper's code takes plain exponentials. The code of the first paper has no p_i (it samples
    clients by it), divides by a running normaliser and averages the tilted updates once more, so that its step is 1/K
    of a tilted mean: `preset="term-repo"`. `preset="original"` is the same without this factor and without the
    doubled first round.

    The weights of FedEBA+ are these with alpha one over its temperature and equal p_i (`preset="fedeba"`). What it does
    beside them, to mix a gradient of all clients into the local steps, takes a second exchange in a round and is left
    out.

    Args:
        alpha: the tilt between clients. The paper tries 0.01, 0.1 and 0.5.
        tau: the tilt between the examples of a client: its loss is $\frac1\tau \log \operatorname{mean} e^{\tau \ell}$.
        weighting: "samples", or "uniform" for equal p_i.
        normaliser: what the exponentials are divided by: their sum in this "round"; a "running" mean of it,
            bias-corrected, for rounds with few clients; or that of the first paper's "repo".
        beta: how much of the running mean is kept from one round to the next.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])
    >>> TERM(alpha=0.5).weigh(cohort, {})[0]
    tensor([0.3821, 0.2944, 0.3236], dtype=torch.float64)

    References:
        T. Li, A. Beirami, M. Sanjabi, V. Smith, Tilted Empirical Risk Minimization, ICLR 2021.
        L. Wang, Z. Wang, S. P. Karimireddy, X. Tang, FedEBA+: Towards Fair and Effective Federated Learning via
        Entropy-Based Model, arXiv:2301.12407, 2023.
    """

    alpha: float = 0.5
    tau: float = 0.0
    weighting: Literal["samples", "uniform"] = "samples"
    normaliser: Literal["round", "running", "repo"] = "round"
    beta: float = 0.5

    presets: ClassVar[Presets] = {
        "paper": {"weighting": "samples", "normaliser": "round", "tau": 0.0},
        "original": {"weighting": "uniform", "normaliser": "running", "beta": 0.5},
        "fedeba": {"weighting": "uniform", "normaliser": "round", "tau": 0.0},
        "term-repo": {"weighting": "uniform", "normaliser": "repo", "beta": 0.5},
    }
    advice: ClassVar[Advice | None] = Advice(
        optimises="The exponentially tilted mean of the losses.",
        tune="alpha.",
        epochs="Keeps its weights; clients drift as in FedAvg.",
        participation='normaliser="running" steadies small cohorts.',
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"alpha": (0.1, 0.5, 2.0)}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("tau", self.tau)):
            if not math.isfinite(value):
                raise ConfigError(f"{name} must be a finite number; got {name}={value}. Use {name}=0 for no tilt.")
        if not 0 <= self.beta < 1:
            raise ConfigError(f"beta must be in [0, 1); got beta={self.beta}. The first paper uses beta=0.5.")

    def init(self, share: Tensor) -> State:
        if self.normaliser == "round":
            return {}
        return {"log_normaliser": torch.full((), -math.inf, dtype=torch.float64), "num_rounds": torch.zeros(())}

    @property
    def reduce(self) -> Reduce | None:
        return None if self.tau == 0 else self._tilted_mean

    def _tilted_mean(self, losses: Tensor, weight: Tensor | None = None) -> Tensor:
        logs = -math.log(len(losses)) if weight is None else weight.log()
        return torch.logsumexp(self.tau * losses + logs, 0) / self.tau

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        logs = cohort.shares(self.weighting).log() + self.alpha * cohort.loss
        if self.normaliser == "round":
            return torch.softmax(logs, 0), state
        if self.normaliser == "repo":
            logs = logs - (self.alpha * cohort.loss).max()
        rounds = state["num_rounds"] + 1
        fresh = math.log1p(-self.beta) + torch.logsumexp(logs, 0)
        kept = torch.logaddexp(state["log_normaliser"] + torch.tensor(self.beta, dtype=logs.dtype).log(), fresh)
        if self.normaliser == "repo":
            weights = torch.exp(logs - kept) / len(cohort)
        else:
            weights = torch.exp(logs - kept + math.log1p(-(self.beta ** float(rounds))))
        return weights, {**state, "log_normaliser": kept, "num_rounds": rounds}
