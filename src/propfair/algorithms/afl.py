"""AFL, agnostic federated learning (Mohri, Sivek, Suresh, 2019)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from propfair.algorithms.base import Advice, Algorithm, Cohort, Needs, Presets, State, effective_clients, register
from propfair.algorithms.solvers import project_simplex
from propfair.errors import ConfigError


@register("afl")
@dataclass(frozen=True, kw_only=True)
class AFL(Algorithm):
    r"""The worst mixture of clients counts: gradient ascent on the weights against descent on the model.

    $$\min_\theta \max_{\lambda \in \Delta} \sum_i \lambda_i f_i(\theta), \qquad
      \lambda \leftarrow \Pi_\Delta(\lambda + \gamma f), \quad w = \lambda$$ (paper, eqs. 2.4 and 2.5).

    The authors of PropFair start at lambda = p, move it before it is used and keep the last model; this is the default.
    The first paper starts at 1/n, uses lambda before it moves, and returns the average of all models
    (`preset="original"`). lambda stays on the simplex of all n clients when only s of them take part: theirs moves by
    gamma n/s f_i (unbiased), and their weights are their lambda over its sum, or p if that sum is 0.

    Args:
        gamma: step of the weights.
        start: lambda before round 1, "samples" (p) or "uniform" (1/n).
        use: the lambda that weighs updates, "new" (moved by this round's losses) or "old".
        dual: "projected" gradient, or "eg", exponentiated: lambda_i proportional to lambda_i exp(gamma f_i).
        unbiased: multiply gamma by n/s when s of n clients take part.
        average_iterates: evaluate and hand out the average of all global models instead of the last, as
            `server.average_iterates` does for any algorithm.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])
    >>> AFL(gamma=0.1).weigh(cohort, AFL().init(cohort.share))[0]
    tensor([0.4333, 0.2833, 0.2833], dtype=torch.float64)

    References:
        M. Mohri, G. Sivek, A. T. Suresh, Agnostic Federated Learning, ICML 2019.
    """

    gamma: float = 0.1
    start: Literal["samples", "uniform"] = "samples"
    use: Literal["new", "old"] = "new"
    dual: Literal["projected", "eg"] = "projected"
    unbiased: bool = True
    average_iterates: bool = False

    presets: ClassVar[Presets] = {
        "paper": {"gamma": 0.1, "start": "samples", "use": "new", "dual": "projected", "average_iterates": False},
        "original": {"start": "uniform", "use": "old", "dual": "projected", "average_iterates": True},
    }
    advice: ClassVar[Advice | None] = Advice(
        optimises="The loss of the worst mixture of clients.",
        tune="gamma, the step of the weights.",
        epochs="Keeps its weights; clients drift as in FedAvg.",
        participation="Slower: weights learn from those present only.",
    )

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {"gamma": (0.01, 0.1, 0.5)}

    @property
    def needs(self) -> Needs:
        return Needs.LOSS

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gamma) and self.gamma >= 0):
            raise ConfigError(f"gamma must be >= 0; got gamma={self.gamma}. The paper uses gamma=0.1.")

    def init(self, share: Tensor) -> State:
        return {"lambda": share.clone() if self.start == "samples" else torch.full_like(share, 1 / len(share))}

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        old, clients = state["lambda"], torch.tensor(cohort.clients)
        step = self.gamma * (len(old) / len(cohort) if self.unbiased else 1.0)
        rise = torch.zeros_like(old).index_put((clients,), step * cohort.loss)
        new = torch.softmax(old.log() + rise, 0) if self.dual == "eg" else project_simplex(old + rise)
        used = (new if self.use == "new" else old)[clients]
        weights = used / used.sum() if used.sum() > 0 else cohort.share
        return weights, {**state, "lambda": new}

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        dual = state["lambda"]
        return {
            "lambda_min": float(dual.min()),
            "lambda_max": float(dual.max()),
            "lambda_zeros": float((dual == 0).sum()),
            "lambda_effective": effective_clients(dual),
        }
