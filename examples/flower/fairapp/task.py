"""The task: who has which digits, and the network. Put your own data and network here."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import propfair
from propfair.data import Digits
from propfair.federation import Dirichlet, Federation


def network() -> nn.Module:
    """The same initial parameters on every machine."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def federation(num_clients: int) -> Federation:
    """The bundled digits, dealt out unevenly."""
    return propfair.federate(Digits().load(), Dirichlet(beta=0.5, min_samples=30), num_clients, seed=0)


def own_data(node_config: dict[str, Any]) -> tuple[TensorDataset, TensorDataset]:
    """The training and test data of this node. Real nodes would read their own disk here."""
    everyone = federation(int(node_config["num-partitions"]))
    me, digits = int(node_config["partition-id"]), everyone.examples
    train, test = everyone.train[me], everyone.test[me]
    return (
        TensorDataset(digits.inputs(train), digits.targets(train)),
        TensorDataset(digits.inputs(test), digits.targets(test)),
    )
