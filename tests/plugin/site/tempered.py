"""An algorithm in one file outside the package: every client has a temperature of its own, which follows its losses."""

from dataclasses import dataclass

import torch
from torch import Tensor

from propfair.algorithms import Algorithm, ClientId, Cohort, Order, State


@dataclass(frozen=True, kw_only=True)
class Tempered(Algorithm):
    """t log(1 + f/t) with a temperature t for each client: the lower it is, the less do large losses count.

    Args:
        coldest, hottest: the temperatures before round 1, from the first client to the last.
        keep: how much of a temperature is kept from one round to the next; the rest is the client's mean loss.
    """

    coldest: float = 0.5
    hottest: float = 2.0
    keep: float = 0.8

    def init(self, share: Tensor) -> State:
        return {"temperature": torch.linspace(self.coldest, self.hottest, len(share), dtype=torch.float64)}

    def order(self, client: ClientId, state: State) -> Order:
        return Order(numbers={"temperature": float(state["temperature"][client])})

    def objective(self, batch_loss: Tensor, order: Order) -> Tensor:
        temperature = order.numbers["temperature"]
        return temperature * torch.log1p(batch_loss / temperature)

    def watch(self, batch_loss: Tensor, order: Order) -> dict[str, Tensor]:
        return {"temperature": torch.zeros_like(batch_loss) + order.numbers["temperature"], "mean_loss": batch_loss}

    def learn(self, cohort: Cohort, state: State) -> State:
        clients = torch.tensor(cohort.clients)
        old = state["temperature"][clients]
        new = self.keep * old + (1 - self.keep) * cohort.observed["mean_loss"]
        return {"temperature": state["temperature"].index_put((clients,), new)}
