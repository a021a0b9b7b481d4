"""Every registered algorithm through the real round loop, in the situations that break rules."""

from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from propfair.algorithms import ALGORITHMS, Algorithm
from propfair.core.client import LocalTraining, Workload
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.core.tasks import OtherTask
from propfair.engines.inprocess import InProcess
from propfair.engines.server import Server
from tests.builders import REQUIRED, federation_of

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, REQUIRED.get(name, {})) for name in ALGORITHMS.names()),
    ("afl", {"preset": "original"}),
    ("gifair", {"preset": "original"}),
    ("term", {"tau": 1.0, "normaliser": "running"}),
    ("propfair", {"placement": "update"}),
    ("propfair", {"placement": "step"}),
    ("propfair", {"preset": "paper"}),
    ("fednova", {"over": "fedfv", "options": {"tau": 2}}),
    ("q-fedavg", {"placement": "client"}),
    ("alpha-fair", {"alpha": 2.0, "M": 2.0}),
    ("aaggff", {"setting": "device"}),
    ("ditto", {"over": "fedfv"}),
    ("fednova", {"over": "fedmgda+"}),
]
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=str)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum(1)


def server_of(name: str, options: dict[str, Any], clients: list[tuple[Tensor, Tensor]], **settings: Any) -> Server:
    """Linear regression on the given clients, from zero."""
    x, y = torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])
    federation = federation_of(x, y, [len(y) for _, y in clients], num_classes=1)
    algorithm: Algorithm = ALGORITHMS.make(name, options)
    work = Workload(federation, algorithm, LocalTraining(lr=0.02, batch_size=4), loss=squared_error, task=OtherTask())
    module = nn.Linear(2, 1, bias=False)
    nn.init.zeros_(module.weight)
    model = FlatModel(module)
    return Server(InProcess().start(model, work), Rounds(**settings), model.params, model.buffers)


def sample(seed: int, slope: tuple[float, float] = (1.0, -1.0), count: int = 6) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return x, x @ torch.tensor(slope).unsqueeze(1)


def mean_loss(server: Server) -> float:
    clients = range(server.session.work.federation.num_clients)
    return float(server.session.evaluate(server.params, server.buffers, "train", clients).loss.mean())


@every_case
def test_partial_participation_learns(name: str, options: dict[str, Any]) -> None:
    server = server_of(name, options, [sample(k, (1.0, -1.0 + 0.1 * k), 4 + k) for k in range(5)], participation=0.6)
    before = mean_loss(server)
    for _ in range(6):
        outcome = server.run_round()
        assert len(outcome.clients) == 3
        assert outcome.weights.isfinite().all()
        kept = {key: value.contiguous() for key, value in server.tensors().items()}
        torch.testing.assert_close(load(save(kept)), kept, rtol=0, atol=0, equal_nan=True)
    assert server.released.isfinite().all()
    if name == "local-only":
        assert mean_loss(server) == before
    else:
        assert mean_loss(server) < before


@every_case
def test_one_client(name: str, options: dict[str, Any]) -> None:
    server = server_of(name, options, [sample(0)])
    before = mean_loss(server)
    for _ in range(3):
        server.run_round()
    assert server.params.isfinite().all()
    assert (mean_loss(server) < before) == (name != "local-only")


@every_case
def test_two_clients_with_opposite_updates(name: str, options: dict[str, Any]) -> None:
    x, y = sample(0, count=4)  # one batch each: no shuffling between them
    server = server_of(name, options, [(x, y), (x, -y)])
    for _ in range(2):
        server.run_round()
    assert server.params.abs().max() < 1e-5  # each at the price of the other: nobody gains


@every_case
def test_no_loss_and_no_updates(name: str, options: dict[str, Any]) -> None:
    x = torch.ones(4, 2)
    server = server_of(name, options, [(x, torch.zeros(4, 1))] * 3)
    outcome = server.run_round()
    assert outcome.weights.isfinite().all()
    assert server.params.tolist() == [0, 0]


@every_case
def test_one_diverged_client_is_left_out(name: str, options: dict[str, Any]) -> None:
    x, y = sample(1)
    server = server_of(name, options, [sample(0), (x * 1e30, y), sample(2)])
    before = server.params
    for _ in range(2):
        outcome = server.run_round()
        assert outcome.dropped == (1,)
        assert outcome.weights[1] == 0
    assert server.params.isfinite().all()
    assert torch.equal(server.params, before) == (name == "local-only")


@every_case
def test_a_restored_server_goes_on_with_the_same_bits(name: str, options: dict[str, Any]) -> None:
    clients = [sample(k, (1.0, -1.0 + 0.1 * k), 4 + k) for k in range(5)]
    server, again = (server_of(name, options, clients, participation=0.6) for _ in range(2))
    for _ in range(2):
        server.run_round()
    again.restore(server.round, {key: tensor.clone() for key, tensor in server.tensors().items()})
    again.session.restore(server.session.memories)
    for _ in range(2):
        server.run_round()
        again.run_round()
    torch.testing.assert_close(again.tensors(), server.tensors(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(again.released, server.released)
