"""FedProx, SCAFFOLD and FedDyn against the papers' own algorithms, written out; and what they must leave alone."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from propfair.algorithms import ALGORITHMS, Drift
from propfair.core.client import LocalTraining, Workload, batch_order
from propfair.core.drift import Variates
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.core.tasks import Regression
from propfair.engines.inprocess import InProcess
from propfair.engines.server import Server
from propfair.errors import ConfigError
from tests.builders import federation_of

CLIENTS, LR = 4, 0.05
LOCAL = LocalTraining(lr=LR, batch_size=4, epochs=2)


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().sum(1)


def server(name: str, local: LocalTraining = LOCAL, sizes: tuple[int, ...] = (8,) * CLIENTS, **given: Any) -> Server:
    """Linear regression from zero on clients that want different models."""
    options = {key: given.pop(key) for key in list(given) if key in ("mu", "alpha", "over", "options")}
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(sum(sizes), 3, generator=rng)
    slopes = torch.randn(len(sizes), 3, generator=rng)
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    y = (x * slopes[owner]).sum(1, keepdim=True)
    federation, algorithm = federation_of(x, y, sizes, num_classes=1), ALGORITHMS.make(name, options)
    work = Workload(federation, algorithm, local, seed=1, loss=squared_error, task=Regression())
    module = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(module.weight)
    model = FlatModel(module)
    return Server(InProcess().start(model, work), Rounds(**given), model.params, model.buffers)


def gradients(running: Server, client: int, round_: int) -> Iterator[Any]:
    """The gradient of each local batch as a function of the parameters."""
    work = running.session.work
    for index in batch_order(work, round_, client):
        x, y = work.federation.examples.inputs(index), work.federation.examples.targets(index)
        yield lambda w, x=x, y=y: 2 * ((x @ w).unsqueeze(1) - y).T @ x / len(x)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_scaffold_is_that_of_the_paper(participation: float) -> None:
    """Algorithm 1 with option II: variates on the clients, a mean that follows their changes on the server."""
    running = server("scaffold", participation=participation)
    x, c = torch.zeros(3), torch.zeros(3)
    own = [torch.zeros(3) for _ in range(CLIENTS)]
    for round_ in range(1, 6):
        clients = running.run_round().clients
        moves, changes = torch.zeros(3), torch.zeros(3)
        for client in clients:
            w, steps = x.clone(), 0
            for gradient in gradients(running, client, round_):
                w -= LR * (gradient(w).flatten() - own[client] + c)
                steps += 1
            new = own[client] - c + (x - w) / (steps * LR)
            moves, changes, own[client] = moves + w - x, changes + new - own[client], new
        x, c = x + moves / len(clients), c + changes / CLIENTS
        torch.testing.assert_close(running.params, x, rtol=1e-4, atol=1e-5)
    assert c.norm() > 0.1


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_feddyn_is_that_of_the_paper(participation: float) -> None:
    alpha = 0.5
    running = server("feddyn", alpha=alpha, participation=participation)
    x, h = torch.zeros(3), torch.zeros(3)
    own = [torch.zeros(3) for _ in range(CLIENTS)]
    for round_ in range(1, 6):
        clients = running.run_round().clients
        local = []
        for client in clients:
            w = x.clone()
            for gradient in gradients(running, client, round_):
                w -= LR * (gradient(w).flatten() - own[client] + alpha * (w - x))
            own[client] = own[client] - alpha * (w - x)
            local.append(w)
        h = h - alpha / CLIENTS * sum(w - x for w in local)
        x = torch.stack(local).mean(0) - h / alpha
        torch.testing.assert_close(running.params, x, rtol=1e-4, atol=1e-5)


def test_fedprox_is_that_of_the_paper() -> None:
    running = server("fedprox", mu=3.0)
    x = torch.zeros(3)
    for round_ in range(1, 4):
        running.run_round()
        local = []
        for client in range(CLIENTS):
            w = x.clone()
            for gradient in gradients(running, client, round_):
                w -= LR * (gradient(w).flatten() + 3.0 * (w - x))
            local.append(w)
        x = torch.stack(local).mean(0)
        torch.testing.assert_close(running.params, x, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "options"), [("fedprox", {"mu": 0.0}), ("feddyn", {"alpha": 0.0})])
def test_without_strength_they_are_what_they_go_around(name: str, options: dict[str, Any]) -> None:
    plain, wrapped = server("fedavg"), server(name, **options)
    for _ in range(3):
        plain.run_round()
        wrapped.run_round()
    assert torch.equal(plain.params, wrapped.params)


def test_scaffold_with_one_full_batch_step_is_what_it_goes_around() -> None:
    """Corrections cancel in the mean, up to rounding: whatever a client adds, the others take away."""
    one = LocalTraining(lr=LR, batch_size=8)
    plain, corrected = server("fedavg", one), server("scaffold", one)
    for _ in range(5):
        plain.run_round()
        corrected.run_round()
    torch.testing.assert_close(plain.params, corrected.params, rtol=1e-4, atol=1e-6)


def test_scaffold_goes_where_local_steps_would_not() -> None:
    """With many local steps FedAvg stops beside the optimum of the mean loss, and SCAFFOLD does not."""
    away = {}
    for name in ("fedavg", "scaffold"):
        running = server(name, LocalTraining(lr=0.05, batch_size=8, epochs=8))
        for _ in range(25):
            running.run_round()
        examples = running.session.work.federation.examples
        everyone = torch.arange(8 * CLIENTS)
        best = torch.linalg.lstsq(examples.inputs(everyone), examples.targets(everyone)).solution.flatten()
        away[name] = float((running.params - best).norm())
    assert away["scaffold"] < 0.05 * away["fedavg"]


@pytest.mark.parametrize("over", ["fedavg", "term", "afl"])
def test_the_variates_sum_to_the_servers_as_the_rule_weighs(over: str) -> None:
    """A correction is what the server has minus what the client has; the server's is the sum of all, weighted."""
    running = server("scaffold", over=over, sizes=(4, 8, 12, 16))
    weights = running.run_round().weights
    plan = running.plan(running.session.losses)
    assert torch.allclose(weights, plan.cohort.share) == (over == "fedavg")
    own = torch.stack([running._variates._own[client] for client in range(4)])
    assert plan.job.corrections is not None
    for servers in plan.job.corrections + own:
        torch.testing.assert_close(servers, weights.float() @ own, rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), rounds=st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=6))
def test_the_mean_follows_the_changes_of_those_who_take_part(seed: int, rounds: list[set[int]]) -> None:
    """The server's variate of the paper, c + sum_k p_k (new c_k - c_k), is the mean that corrections are made of."""
    rng = torch.Generator().manual_seed(seed)
    share = torch.tensor([0.1, 0.1, 0.2, 0.25, 0.35], dtype=torch.float64)
    variates = Variates(Drift(variates="scaffold"), share)
    tracked, own = torch.zeros(3), torch.zeros(5, 3)
    for cohort in rounds:
        clients = sorted(cohort)
        weights = share[clients] / share[clients].sum()
        corrections = variates.corrections(clients)
        if corrections is not None:
            torch.testing.assert_close(corrections, (tracked - own[clients]), rtol=1e-4, atol=1e-5)
        updates = torch.randn(len(clients), 3, generator=rng)
        new = own[clients] - tracked - updates / 0.5
        tracked = tracked + (share[clients].float().unsqueeze(1) * (new - own[clients])).sum(0)
        own[clients] = new
        assert variates.learn(clients, weights, updates, corrections, [0.5] * len(clients)) is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("scaffold", {}),
        ("feddyn", {"alpha": 0.1}),
        ("scaffold", {"over": "fedmgda+"}),
        ("fednova", {"over": "scaffold", "options": {"over": "q-fedavg"}}),
    ],
)
def test_a_restored_server_goes_on_with_the_same_bits(name: str, options: dict[str, Any]) -> None:
    whole, first, second = (server(name, **options, participation=0.5, optimizer="adam") for _ in range(3))
    for _ in range(6):
        whole.run_round()
    for _ in range(3):
        first.run_round()
    second.restore(first.round, {key: value.clone() for key, value in first.tensors().items()})
    for _ in range(3):
        second.run_round()
    assert torch.equal(whole.params, second.params)


def test_wrappers_nest() -> None:
    nested = ALGORITHMS.make(
        "fednova",
        {
            "over": "fedprox",
            "options": {"mu": 0.1, "over": "scaffold", "options": {"over": "fedprox", "options": {"mu": 0.2}}},
        },
    )
    assert nested.drift is not None
    assert nested.drift.pull == pytest.approx(0.3)
    assert nested.drift.variates == "scaffold"
    assert nested.privacy == "updates"
    assert ALGORITHMS.make("fedprox", {"over": "term"}).privacy == "losses"
    dyn = ALGORITHMS.make("feddyn", {"alpha": 0.1, "over": "fedprox", "options": {"mu": 0.2}}).drift
    assert dyn is not None
    assert (dyn.pull, dyn.alpha) == pytest.approx((0.3, 0.1))


def test_the_order_of_client_side_wrappers_does_not_matter() -> None:
    one = server("fedprox", mu=0.5, over="scaffold")
    other = server("scaffold", over="fedprox", options={"mu": 0.5})
    for _ in range(3):
        one.run_round()
        other.run_round()
    assert torch.equal(one.params, other.params)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="only one of them can"):
        ALGORITHMS.make("scaffold", {"over": "feddyn"})
    with pytest.raises(ConfigError, match=r"momentum=0\.9"):
        server("scaffold", LocalTraining(lr=LR, batch_size=4, momentum=0.9))
    with pytest.raises(ConfigError, match="optimizer='Adam'"):
        server("scaffold", LocalTraining(lr=LR, batch_size=4, optimizer="Adam"))
    with pytest.raises(ConfigError, match="below 2"):
        server("fedprox", mu=100.0)
