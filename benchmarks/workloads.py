"""The work that all contestants do: synthetic data of the right shape, a network, local SGD."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from propfair.models import make_model


@dataclass(frozen=True)
class Workload:
    """Federated averaging of one network.

    Attributes:
        name: W1 to W5, as in docs/performance.md.
        title: what it is, in a few words.
        num_clients: in all.
        cohort: clients of a round.
        sizes: the smallest and the largest number of examples of a client; one local epoch is trained.
        batch_size, lr: of local SGD.
        model: name and options of the network.
        input_shape, num_classes: of the data; symbols > 0 makes inputs of that many symbols instead of real numbers.
        tilt: 0: the mean of updates by data share. Otherwise clients are weighed by exp(tilt * loss of the model they
            received), which has to be measured first (TERM).
    """

    name: str
    title: str
    num_clients: int
    cohort: int
    sizes: tuple[int, int]
    batch_size: int
    lr: float
    model: tuple[str, dict[str, object]]
    input_shape: tuple[int, ...]
    num_classes: int
    symbols: int = 0
    tilt: float = 0.0
    spec: str = ""

    def build_model(self) -> nn.Module:
        """The network, the same for everyone."""
        name, options = self.model
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return make_model(name, options).build(self.input_shape, self.num_classes)

    def client_sizes(self) -> Tensor:
        """[num_clients]."""
        low, high = self.sizes
        return torch.randint(low, high + 1, (self.num_clients,), generator=torch.Generator().manual_seed(1))

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of all clients, one client after the other."""
        rng = torch.Generator().manual_seed(2)
        total = int(self.client_sizes().sum())
        y = torch.randint(0, self.num_classes, (total,), generator=rng)
        if self.symbols:
            return torch.randint(0, self.symbols, (total, *self.input_shape), generator=rng), y
        return torch.randn(total, *self.input_shape, generator=rng), y

    def small(self) -> "Workload":
        """The same with little data, to see whether everything works."""
        few = min(self.num_clients, 4)
        sizes = (min(self.sizes[0], 6), min(self.sizes[1], 8))
        return replace(self, num_clients=few, cohort=min(self.cohort, few), sizes=sizes)


W1 = Workload(
    "W1", "10 clients, ResNet-18 with GroupNorm, 3x32x32, batch 64", 10, 10, (128, 128), 64, 0.01,
    ("resnet18-gn", {}), (3, 32, 32), 10,
)  # fmt: skip
W2 = Workload(
    "W2", "1,000 clients, 100 a round, 20-50 examples, CNN of 1.2 M parameters, 28x28, batch 10", 1000, 100, (20, 50),
    10, 0.01, ("cnn", {}), (1, 28, 28), 62,
)  # fmt: skip
W3 = Workload(
    "W3", "1,000 clients, 100 a round, 40-60 examples, logistic regression 60 to 10, batch 10", 1000, 100, (40, 60),
    10, 0.01, ("logistic", {}), (60,), 10,
)  # fmt: skip
W4 = Workload(
    "W4", "20 clients, LSTM 1 x 256, 80 of 80 symbols, batch 64", 20, 20, (128, 128), 64, 0.1,
    ("lstm", {"num_layers": 1}), (80,), 80, symbols=80,
)  # fmt: skip
W5 = Workload(
    "W5", "pfl-research's CIFAR-10 set-up: 1,000 clients, 50 a round, 50 examples, CNN of 1.6 M parameters, batch 10",
    1000, 50, (50, 50), 10, 0.1, ("cnn", {}), (3, 32, 32), 10,
)  # fmt: skip

WORKLOADS = {
    workload.name: workload
    for workload in (
        W1,
        replace(W1, name="W1-loss", title=f"{W1.title}, with the loss of the received model", tilt=1.0),
        W2,
        W3,
        replace(W3, name="W3-mlp", title="W3 with a network 60 to 64 to 10", model=("mlp", {"hidden": (64,)})),
        W4,
        W5,
    )
}

After = Callable[[int], None]  # told after each round how many examples were trained


def find(name: str) -> Workload:
    """A workload by name, with changes after an @: `W3@num_clients=100000,cohort=100`.

    `small` stands for little data, `examples` for the size of every client, `hidden` for a network of that width.
    """
    base, _, changes = name.partition("@")
    workload = replace(WORKLOADS[base], spec=name)
    for change in filter(None, changes.split(",")):
        field, _, value = change.partition("=")
        match field:
            case "small":
                workload = workload.small()
            case "examples":
                workload = replace(workload, sizes=(int(value), int(value)))
            case "hidden":
                workload = replace(workload, model=("mlp", {"hidden": (int(value),)}))
            case "num_clients":
                workload = replace(workload, num_clients=int(value))
            case "cohort":
                workload = replace(workload, cohort=int(value))
            case _:
                raise ValueError(f"unknown change {change!r} of workload {name!r}")
    return workload
