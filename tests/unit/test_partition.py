"""Partitioners: everyone gets something, nothing twice, the same again for the same seed."""

import numpy as np
import pytest
import torch

from propfair.errors import ConfigError, DataError
from propfair.federation.partition import (
    PARTITIONERS,
    Dirichlet,
    DirichletQuantity,
    Iid,
    Natural,
    Shards,
    largest_remainder,
)

LABELS = torch.from_numpy(np.random.default_rng(0).integers(0, 10, 2000))
USER = torch.arange(2000) % 20


@pytest.mark.parametrize("name", PARTITIONERS.names())
def test_contract_of_every_partitioner(name: str) -> None:
    partitioner = PARTITIONERS.make(name)
    number = None if name == "natural" else 7
    one, same, other = (partitioner(LABELS, number, seed, USER) for seed in (3, 3, 1000))
    values = one.clients.values
    assert values.sort().values.equal(torch.arange(2000)), "every example is dealt exactly once"
    assert int(one.clients.lengths.min()) >= 1
    assert values.equal(same.clients.values)
    assert one.clients.offsets.equal(same.clients.offsets)
    if name != "natural":
        assert not values.equal(other.clients.values)


@pytest.mark.parametrize("name", PARTITIONERS.names())
def test_partitioning_leaves_the_global_generators_alone(name: str) -> None:
    before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    PARTITIONERS.make(name)(LABELS, None if name == "natural" else 5, 0, USER)
    assert before[0].equal(torch.get_rng_state())
    assert before[1] == str(np.random.get_state())  # noqa: NPY002


def test_largest_remainder_hits_the_totals_and_stays_within_one() -> None:
    rng = np.random.default_rng(1)
    totals = rng.integers(0, 500, 50)
    quota = rng.dirichlet(np.full(13, 0.1), 50) * totals[:, None]
    counts = largest_remainder(quota, totals)
    assert np.array_equal(counts.sum(1), totals)
    assert np.abs(counts - quota).max() < 1


def test_dirichlet_is_retried_with_the_next_seed_until_all_have_enough() -> None:
    first = next(s for s in range(50) if Dirichlet(beta=0.1, min_samples=60)(LABELS, 10, s).tries > 1)
    part = Dirichlet(beta=0.1, min_samples=60)(LABELS, 10, first)
    assert int(part.clients.lengths.min()) >= 60
    assert part.seed_used == first + part.tries - 1
    direct = Dirichlet(beta=0.1, min_samples=60)(LABELS, 10, part.seed_used)
    assert direct.clients.values.equal(part.clients.values)
    assert direct.tries == 1


def test_dirichlet_gives_up_with_numbers() -> None:
    with pytest.raises(DataError, match=r"no draw out of 3 \(seeds 5 to 7\).*min_samples=190 .*Lower min_samples"):
        Dirichlet(beta=0.05, min_samples=190, max_tries=3)(LABELS, 10, 5)


def test_beta_decides_the_skew() -> None:
    def classes_per_client(beta: float) -> float:
        clients = Dirichlet(beta=beta)(LABELS, 10, 0).clients
        return float(np.mean([(LABELS[clients[k]].bincount() > 5).sum() for k in range(10)]))

    assert classes_per_client(0.1) < classes_per_client(1.0) < classes_per_client(100.0) == 10


def test_quantity_skew_keeps_the_mixture() -> None:
    clients = DirichletQuantity(beta=0.5)(LABELS, 5, 0).clients
    assert int(clients.lengths.max()) > 3 * int(clients.lengths.min())
    largest = LABELS[clients[int(clients.lengths.argmax())]].bincount(minlength=10)
    assert float(largest.max() / largest.sum()) < 0.15


def test_shards_leave_few_classes() -> None:
    clients = Shards(shards_per_client=2)(LABELS, 10, 0).clients
    assert max(len(set(LABELS[clients[k]].tolist())) for k in range(10)) <= 4
    assert clients.lengths.tolist() == [200] * 10


def test_iid_sizes_differ_by_at_most_one() -> None:
    assert sorted(Iid()(LABELS, 7, 0).clients.lengths.tolist()) == [285] * 2 + [286] * 5


def test_natural_keeps_users_and_order_and_can_sample() -> None:
    user = torch.tensor([2, 0, 2, 2, 0, 5])
    every = Natural()(LABELS[:6], None, 0, user)
    assert [every.clients[k].tolist() for k in range(3)] == [[1, 4], [0, 2, 3], [5]]
    assert every.users == (0, 2, 5)
    assert Natural(min_samples=2)(LABELS[:6], None, 0, user).users == (0, 2)
    drawn = {Natural()(LABELS[:6], 1, seed, user).users for seed in range(20)}
    assert drawn == {(0,), (2,), (5,)}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dirichlet(beta=0.0), "beta must be > 0"),
        (lambda: Dirichlet(beta=float("nan")), "beta must be > 0"),
        (lambda: Dirichlet(min_samples=-1), "min_samples must be >= 0"),
        (lambda: Dirichlet(max_tries=0), "max_tries must be >= 1"),
        (lambda: Shards(shards_per_client=0), "shards_per_client must be >= 1"),
        (lambda: Iid()(LABELS, 0, 0), "num_clients must be >= 1"),
        (lambda: Iid()(LABELS, None, 0), "num_clients is needed"),
        (lambda: Iid()(LABELS, 2001, 0), "2001 clients.*the data has 2000"),
        (lambda: Dirichlet(min_samples=300)(LABELS, 10, 0), "need 3000, the data has 2000"),
        (lambda: Natural()(LABELS, None, 0), "needs data with natural users"),
        (lambda: Natural()(LABELS, 21, 0, USER), "between 1 and .* 20; got num_clients=21"),
        (lambda: Natural(min_samples=101)(LABELS, None, 0, USER), "the largest has 100"),
        (lambda: Dirichlet()(LABELS.float(), 3, 0), "one class label per example"),
    ],
)
def test_bad_requests_say_what_is_wrong(build: "object", message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        build()  # type: ignore[operator]
