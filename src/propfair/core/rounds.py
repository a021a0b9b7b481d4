"""How the server runs rounds: who takes part, which losses are looked at, and how the model moves."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from propfair.core.messages import LossSource
from propfair.core.optimizers import ServerOptimizer, ServerOptimizerName
from propfair.core.rates import rate_factor
from propfair.errors import ConfigError
from propfair.federation.federation import Split
from propfair.registry import LARGEST, check_fields

Sampling = Literal["uniform", "samples"]


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How the server runs rounds.

    Args:
        participation: the clients of a round: a share in (0, 1], or how many.
        sampling: "uniform" over clients; "samples": in proportion to their data.
        server_lr: multiplies the step of the server; None: 1, and 0.01 with an adaptive optimizer, which moves each
            parameter by about so much in a round.
        loss_source: the loss that rules look at: "before_full", of the received model on the whole training set;
            "validation", on the client's validation examples, which say more where a network can learn its training
            set by heart; "first_batch" or "running_mean", as seen while training (cheaper; the updates must then be
            kept).
        strict: stop at the first client that diverges instead of leaving it out of the round.
        average_iterates: evaluate and hand out the average of the global models of all rounds; rounds go on from the
            last one all the same.
        lr_schedule: how the learning rate of clients changes over the rounds: "step(30, 0.1)", "cosine(100)",
            "warmup(5)", or several with * between; from Python also a function of the round to a factor. Personal
            models keep their learning rate.
        optimizer: the server's step along the aggregated update: "sgd", plain; "momentum" (FedAvgM); "adam" (FedAdam),
            "yogi" (FedYogi) or "adagrad" (FedAdaGrad), adaptive for each parameter, see `ServerOptimizer`.
        beta1: of the first moment; None: 0.9, and 0 with "adagrad".
        beta2: of the second moment, for "adam" and "yogi".
        tau: added to the root of the second moment: the larger, the less adaptive.
        bias_correction: of both moments, for "adam".
    """

    participation: float = 1.0
    sampling: Sampling = "uniform"
    server_lr: float | None = None
    loss_source: LossSource = "before_full"
    strict: bool = False
    average_iterates: bool = False
    lr_schedule: str | Callable[[int], float] = "constant"
    optimizer: ServerOptimizerName = "sgd"
    beta1: float | None = None
    beta2: float = 0.99
    tau: float = 1e-3
    bias_correction: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        rate_factor(self.lr_schedule)
        share = self.participation
        if not 0 < share < math.inf or (share > 1 and share != int(share)):
            raise ConfigError(
                f"participation must be a share in (0, 1] or a number of clients; got {self.participation}"
            )
        for name, value in (("server_lr", self.make_optimizer().lr), ("tau", self.tau)):
            if not 0 < value <= LARGEST:
                raise ConfigError(f"{name} must be positive and at most {LARGEST:g}; got {name}={value}")
        for name, value in (("beta1", self.make_optimizer().beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ConfigError(f"{name} must be in [0, 1); got {name}={value}")

    def make_optimizer(self) -> ServerOptimizer:
        """How the server steps."""
        adaptive = self.optimizer in ("adam", "yogi", "adagrad")
        usual_lr, usual_beta1 = 0.01 if adaptive else 1.0, 0.0 if self.optimizer == "adagrad" else 0.9
        return ServerOptimizer(
            kind=self.optimizer, lr=usual_lr if self.server_lr is None else self.server_lr,
            beta1=usual_beta1 if self.beta1 is None else self.beta1, beta2=self.beta2, tau=self.tau,
            bias_correction=self.bias_correction,
        )  # fmt: skip

    @property
    def measured(self) -> Split | None:
        """The examples that the received model is measured on before training; None: losses are seen in training."""
        splits: dict[LossSource, Split] = {"before_full": "train", "validation": "validation"}
        return splits.get(self.loss_source)

    def cohort_size(self, num_clients: int) -> int:
        """How many clients take part in a round."""
        size = round(self.participation * num_clients) if self.participation <= 1 else int(self.participation)
        if size > num_clients:
            raise ConfigError(f"participation asks for {size} clients a round, but there are only {num_clients}")
        return max(1, size)
