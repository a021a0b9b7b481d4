"""One round of FedAvg and of PropFair on each data set of the paper, with its own network, on a small slice."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import propfair
from propfair.data import SOURCES, Source
from propfair.federation.federation import Federation, Ragged, federate
from propfair.federation.partition import PARTITIONERS, Dirichlet, Natural, Partitioner
from propfair.federation.split import Splitter
from propfair.models import MODELS
from tests.unit import official

PLACES = {
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "tiny-imagenet": "tiny-imagenet-200",
    "shakespeare": "shakespeare",
}
MAKERS: dict[str, Callable[[Path], object]] = {
    "cifar10": official.write_cifar10,
    "cifar100": lambda home: official.write_cifar100(home, count=600),
    "tiny-imagenet": official.write_tiny_imagenet,
    "shakespeare": official.write_shakespeare,
}


def slice_of(federation: Federation, size: int) -> Federation:
    """The first examples of each client, so that a round takes a second."""

    def cut(part: Ragged) -> Ragged:
        return Ragged.of([part[k][:size] for k in range(len(part))])

    parts = (cut(federation.train), cut(federation.validation), cut(federation.test))
    return Federation(federation.examples, federation.names, *parts)


def run(source: Source, home: Path, algorithm: str, partitioner: Partitioner, num_clients: int | None) -> None:
    examples = source.load(home)
    protocol = source.protocol
    federation = slice_of(federate(examples, partitioner, num_clients, Splitter(**protocol.split)), 8)
    shape = tuple(examples.inputs(federation.train[0][:1]).shape[1:])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MODELS.make(protocol.model).build(shape, examples.num_classes)
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    result = propfair.train(model, federation, algorithm, rounds=1, lr=0.01, batch_size=8, eval_every=1)
    after = torch.nn.utils.parameters_to_vector(result.model.parameters()).detach()
    assert bool(torch.isfinite(after).all())
    assert not after.equal(before)
    assert math.isfinite(float(result.accuracy.mean()))


@pytest.mark.parametrize("algorithm", ["fedavg", "propfair"])
@pytest.mark.parametrize("name", PLACES)
def test_one_round_on_made_files(name: str, algorithm: str, tmp_path: Path) -> None:
    MAKERS[name](tmp_path)
    if name == "shakespeare":
        run(SOURCES.make(name, {"sequence": 5}), tmp_path, algorithm, Natural(min_samples=15), None)
    else:
        run(SOURCES.make(name), tmp_path, algorithm, Dirichlet(beta=5.0, min_samples=4), 2)


@pytest.mark.parametrize("name", PLACES)
def test_one_round_on_the_real_files(name: str) -> None:
    home = os.environ.get("PROPFAIR_DATA")
    if home is None or not (Path(home) / PLACES[name]).exists():
        pytest.skip(f"needs the real data: PROPFAIR_DATA must name a folder with {PLACES[name]}/")
    source = SOURCES.make(name)
    for algorithm in ("fedavg", "propfair"):
        run(source, Path(home), algorithm, PARTITIONERS.make(*source.protocol.partition), 3)
