"""PropFair (Zhang, Malekmohammadi, Chen, Yu, 2023): the algorithm of the paper, at home in local epochs, too."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from propfair.algorithms.base import (
    Advice,
    Algorithm,
    ClientId,
    Cohort,
    MakeOrder,
    Needs,
    Objective,
    Order,
    Presets,
    State,
    Watch,
    as_floats,
    register,
)
from propfair.algorithms.transforms import Variant, check_baseline, negative_utility, slope
from propfair.errors import ConfigError

Placement = Literal["server", "update", "step"]
ALIKE = 1e-6  # clients whose losses differ by less than this, relative to their mean or to this, are treated alike
SCHEDULE_START, SCHEDULE_LEAST, SCHEDULE_FACTOR = 10.0, 2.0, 0.9  # of M="schedule"
WORST_OFF = 2.0  # standard deviations above the mean that stand for the worst-off clients where only sums are seen


class Baseline(NamedTuple):
    """What the slopes scale / (M - loss) of a round are made of; past M - epsilon they are scale / epsilon."""

    M: Tensor  # [n], or one for all
    epsilon: float = 1.0
    scale: float = 1.0  # M less the mean loss: the slope is 1 there


NOTHING_KNOWN = Baseline(torch.ones((), dtype=torch.float64))  # epsilon = M: the slope is 1 for every loss


@register("propfair")
@dataclass(frozen=True, kw_only=True)
class PropFair(Algorithm):
    r"""Proportional fairness: maximise the Nash product of the clients' utilities M - loss.

    $$\min_\theta -\sum_i p_i \log(M - f_i(\theta)), \qquad w_i \propto \frac{p_i}{M - f_i}$$
    (paper, eq. 3.8 and the dual weights of Proposition 3.2).

    M is the loss at which a client has nothing left to lose, the disagreement point of the bargain. By default it
    follows the worst-off clients, a tenth of them, at least one: M lies so far above their mean loss that who has this
    loss counts `ratio` times as much as a client at the mean loss of all, and nobody counts for more. Where training
    comes to rest the model is the Nash bargaining solution for the M of that moment, every update being of one full-
    batch step; with longer local training, as near to it as FedAvg is to the mean.

    Where the slope 1 / (M - f_i) acts is the `placement`:

    - "server": on the weights of the updates, with f_i the loss of the model received. They sum to 1, so a learning
      rate means what it means to FedAvg. The server sees the loss of each client.
    - "update": the client multiplies its whole update by it and sends the factor along. The server needs two sums, of
      factor times share times update and of factor times share, and for the next M the sums of the losses and of their
      squares: $M$ is made from their mean and standard deviation, two of which above the mean stand for the worst-off.
      Fit for secure aggregation. With one M for good, the factor can be put into the weight that clients report to
      any server that averages.
    - "step": on each local step, with the loss of the batch, as in the paper. The server needs sums only. With many
      local steps each client walks to its own optimum whatever its learning rate, and little of it is left.

    `preset="paper"` is Algorithm 1 as in the paper's experiments: on the step, slopes as they are (about 1/M, so that
    the learning rate must be larger than FedAvg's), M to be tuned, the server averages by data. The printed objective
    is `preset="original"`. There, epsilon = M is FedAvg with learning rate lr/M, and a large M comes close to it.

    One M for each client is Nash bargaining with a disagreement point of its own: M_i is the loss of client i if nobody
    agrees, say that of its local-only model; or the nadir point, its worst loss under a model trained for another
    client alone (eqs. F.3 and F.4, `propfair.fairness.nadir_point`).

    `M="schedule"` makes a schedule of the paper's rule of thumb, to start with M = 10 and to reduce it: whenever no
    client reports a batch past the threshold M - epsilon, the next round has 0.9 M, but never under 2, the least M that
    the paper tries. It is for `preset="paper"`, and was called "auto" in version 0.1.0.

    Args:
        M: "auto", or the loss at which a client has no utility left: one number, one for each client, or
            "schedule".
        placement: where the slope acts: "server", "update" or "step".
        ratio: for M="auto", how many times a client at the mean loss the worst-off ones count. Near 1 is FedAvg, a
            large one comes close to AFL.
        beta: log-slopes are means over the rounds in which a client took part, each round counting beta times as much
            as the next; on the "update" the client keeps its own; on the "step" it is the spread of the losses that is
            kept. 0 forgets at once: weights may then swing where clients want opposite things.
        weighting: p_i: "uniform", every client counts once, or "samples", by its data.
        epsilon: the utility below which the logarithm goes on as a straight line, unless M="auto".
        variant: the slope of that line, 1/epsilon ("huber") or 1/M ("practical").
        normalise: on the step, multiply slopes so that they are 1 at the mean loss of the round before.

    >>> cohort = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.1])
    >>> fair = PropFair(beta=0.0, ratio=3.0)  # the mean loss is 1.2, so that M = 2.55
    >>> fair.weigh(cohort, fair.init(cohort.share))[0]
    tensor([0.1454, 0.1923, 0.6623], dtype=torch.float64)
    >>> PropFair(M=2.55, beta=0.0).weigh(cohort, fair.init(cohort.share))[0]
    tensor([0.1454, 0.1923, 0.6623], dtype=torch.float64)

    References:
        G. Zhang, S. Malekmohammadi, X. Chen, Y. Yu, Proportional Fairness in Federated Learning, TMLR 2023.
    """

    M: float | tuple[float, ...] | Literal["auto", "schedule"] = "auto"
    placement: Placement = "server"
    ratio: float = 3.0
    beta: float = 0.9
    weighting: Literal["samples", "uniform"] = "uniform"
    epsilon: float = 0.2
    variant: Variant = "huber"
    normalise: bool = True

    _as_published: ClassVar[Mapping[str, Any]] = {
        "M": 5.0, "placement": "step", "weighting": "samples", "epsilon": 0.2, "normalise": False,
    }  # fmt: skip
    presets: ClassVar[Presets] = {
        "paper": {**_as_published, "variant": "practical"},
        "original": {**_as_published, "variant": "huber"},
    }
    advice: ClassVar[Advice | None] = Advice(
        optimises="The Nash product of the utilities M - loss.",
        tune="ratio; M itself, if it is not to follow the worst-off clients.",
        epochs='Keeps its weights; with placement="step", as in the paper, little of them is left.',
        participation="Fine.",
    )

    @classmethod
    def as_named_today(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        if "normalise" in options or "epsilon" not in options:
            return options
        words = {"auto": "schedule", "client": "step"}
        renamed = {key: words.get(value, value) if isinstance(value, str) else value for key, value in options.items()}
        kept = {"beta": 0.0} if renamed.get("placement") == "server" else {}
        return {"placement": "step", "weighting": "samples", "normalise": False, **kept, **renamed}

    @property
    def fairness(self) -> float:
        """The alpha of alpha-fairness."""
        return 1.0

    @property
    def needs(self) -> Needs:
        return {"server": Needs.LOSS, "update": Needs.OWN_LOSS, "step": Needs.NOTHING}[self.placement]

    @property
    def tried(self) -> Mapping[str, tuple[Any, ...]]:
        return {} if isinstance(self.M, (str, tuple)) else {"M": (2.0, 3.0, 5.0)}

    def __post_init__(self) -> None:
        if self.M == ():
            raise ConfigError("M must be one number, or one for each client; got M=(). Try M=5.")
        given = self.M if isinstance(self.M, tuple) else () if isinstance(self.M, str) else (self.M,)
        for M in given if self.M != "schedule" else (SCHEDULE_LEAST,):
            check_baseline(M, self.epsilon)
        if not 1 < self.ratio < math.inf:
            raise ConfigError(f"ratio must be above 1; got ratio={self.ratio}. Close to 1 is plain averaging.")
        if not 0 <= self.beta < 1:
            raise ConfigError(f"beta must be in [0, 1); got beta={self.beta}. 0 keeps nothing.")
        if not 0 < self.epsilon < math.inf:
            raise ConfigError(f"epsilon must be a positive number; got epsilon={self.epsilon}. Try epsilon=0.2.")
        if self.M == "auto" and self._is_raw:
            raise ConfigError("normalise=false is for a given M; got M='auto'. Try M=5.")
        if self.M == "schedule" and not self._is_raw:
            raise ConfigError(
                "M='schedule' is for placement='step' with normalise=false; got "
                f"placement={self.placement!r}, normalise={self.normalise}. Try M='auto', or preset='paper'."
            )

    def init(self, share: Tensor) -> State:
        if isinstance(self.M, tuple) and len(self.M) != len(share):
            raise ConfigError(
                f"M must be one number, or one for each of the {len(share)} clients; got {len(self.M)} numbers"
            )
        if self._is_raw:
            return {"M": as_floats([SCHEDULE_START])} if self.M == "schedule" else {}
        kept = {"log_slope": torch.zeros_like(share), "num_rounds": torch.zeros_like(share)}
        told = {} if self.placement == "server" else {"mean": as_floats([math.nan]), "spread": as_floats([math.nan])}
        return {**(kept if self.beta and self.placement != "step" else {}), **told}

    @property
    def order(self) -> MakeOrder | None:
        if self.placement != "step" or (self._is_raw and isinstance(self.M, (int, float))):
            return None
        return self._tell_baseline

    @property
    def objective(self) -> Objective | None:
        return self._negative_utility if self.placement == "step" else None

    @property
    def watch(self) -> Watch | None:
        return self._watch_slopes if self.placement == "step" else None

    def weigh(self, cohort: Cohort, state: State) -> tuple[Tensor, State]:
        share = cohort.shares(self.weighting)
        if self.placement == "step":
            return share, state
        if self.placement == "update" and bool(state["mean"].isnan()):
            return share, state  # nothing is known yet
        clients = torch.tensor(cohort.clients)
        now = self._of_cohort(cohort) if self.placement == "server" else self._of_state(state)
        M = now.M[clients] if now.M.ndim else now.M
        steepness = slope(cohort.loss / now.scale, M / now.scale, now.epsilon / now.scale, self._bend)
        log_slope = self.fairness * steepness.log()
        if self.beta:
            kept, num_rounds = state["log_slope"][clients], state["num_rounds"][clients] + 1
            log_slope = kept + (log_slope - kept) * (1 - self.beta) / (1 - self.beta**num_rounds)
            state = {
                **state,
                "log_slope": state["log_slope"].index_put((clients,), log_slope),
                "num_rounds": state["num_rounds"].index_put((clients,), num_rounds),
            }
        return torch.softmax(share.log() + log_slope, 0), state

    def learn(self, cohort: Cohort, state: State) -> State:
        if self.M == "schedule" and float(cohort.observed["past_threshold"].sum()) == 0:
            return {"M": torch.clamp(SCHEDULE_FACTOR * state["M"], min=SCHEDULE_LEAST)}
        if "mean" not in state:
            return state
        loss = cohort.observed["loss"] if self.placement == "step" else cohort.loss
        mean, deviation = _moments(loss, cohort.shares(self.weighting))
        spread = as_floats([WORST_OFF * deviation])
        if self.placement == "step" and not bool(state["spread"].isnan()):
            spread = self.beta * state["spread"] + (1 - self.beta) * spread
        return {**state, "mean": as_floats([mean]), "spread": spread}

    def diagnose(self, cohort: Cohort, weights: Tensor, state: State) -> dict[str, float]:
        if self.M != "auto":
            return {}
        return {"M": float((self._of_cohort(cohort) if self.placement == "server" else self._of_state(state)).M)}

    @property
    def _is_raw(self) -> bool:
        """The slopes of the paper, as they are."""
        return self.placement == "step" and not self.normalise

    @property
    def _bend(self) -> Variant:
        return "huber" if self.M == "auto" else self.variant

    def _of_cohort(self, cohort: Cohort) -> Baseline:
        """From the losses of this round."""
        mean, _ = _moments(cohort.loss, cohort.shares(self.weighting))
        worst_off = cohort.loss.topk(max(1, len(cohort) // 10)).values  # as many as "worst 10 %" means in tables
        return self._baseline(mean, float(worst_off.mean()) - mean)

    def _of_state(self, state: State) -> Baseline:
        """From the sums of the round before."""
        if bool(state["mean"].isnan()):
            return NOTHING_KNOWN
        return self._baseline(float(state["mean"]), float(state["spread"]))

    def _baseline(self, mean: float, spread: float) -> Baseline:
        """`spread` is how far the worst-off clients are above the mean loss."""
        if not isinstance(self.M, str):
            M = as_floats(self.M if isinstance(self.M, tuple) else [self.M])
            scale = max(float(M.mean()) - mean, self.epsilon)
            return Baseline(M if isinstance(self.M, tuple) else M[0], self.epsilon, scale)
        if not spread > ALIKE * max(abs(mean), ALIKE):
            return NOTHING_KNOWN
        scale = spread * self.ratio / (self.ratio - 1)
        return Baseline(as_floats([mean + scale])[0], scale / self.ratio, scale)

    def _tell_baseline(self, client: ClientId, state: State) -> Order:
        if self._is_raw:
            return Order(numbers={"M": self.M[client] if isinstance(self.M, tuple) else float(state["M"])})
        now = self._of_state(state)
        M = float(now.M[client] if now.M.ndim else now.M)
        return Order(numbers={"M": M, "epsilon": now.epsilon, "scale": now.scale})

    def _negative_utility(self, batch_loss: Tensor, order: Order) -> Tensor:
        M, epsilon, scale = self._told(order)
        return scale * negative_utility(batch_loss / scale, M / scale, epsilon / scale, self._bend, self.fairness)

    def _watch_slopes(self, batch_loss: Tensor, order: Order) -> dict[str, Tensor]:
        M, epsilon, scale = self._told(order)
        return {
            "past_threshold": (batch_loss > M - epsilon).float(),
            "slope": slope(batch_loss / scale, M / scale, epsilon / scale, self._bend, self.fairness),
            **({} if self._is_raw else {"loss": batch_loss}),
            **({"M": torch.zeros_like(batch_loss) + M} if self.M == "schedule" else {}),
        }

    def _told(self, order: Order) -> tuple[float, float, float]:
        """M, epsilon and the scale of a client."""
        told = order.numbers
        if not self._is_raw:
            return told["M"], told["epsilon"], told["scale"]
        return self.M if isinstance(self.M, (int, float)) else told["M"], self.epsilon, 1.0


def _moments(loss: Tensor, share: Tensor) -> tuple[float, float]:
    """Mean and standard deviation over clients, from the sums of losses and of their squares."""
    mean = float(share @ loss)
    return mean, math.sqrt(max(0.0, float(share @ loss.square()) - mean * mean))
