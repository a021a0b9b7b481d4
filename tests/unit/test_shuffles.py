"""Shuffles of whole cohorts: permutations, pure in their key, uniform."""

import numpy as np

from propfair.seeds import shuffles


def test_each_client_gets_a_permutation_of_its_own_items() -> None:
    lengths = [5, 1, 300]
    for row, length in zip(shuffles(7, 3, 0, [4, 9, 2], np.array(lengths)), lengths, strict=True):
        assert sorted(row[:length].tolist()) == list(range(length))


def test_company_and_position_in_the_cohort_do_not_matter() -> None:
    alone = shuffles(7, 3, 1, [9], np.array([40]))
    together = shuffles(7, 3, 1, [100_000, 9, 0], np.array([11, 40, 70]))
    assert np.array_equal(together[1, :40], alone[0])


def test_seed_round_epoch_and_client_all_matter() -> None:
    size = np.array([50])
    keys = [(0, 1, 0, 0), (1, 1, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0), (0, 1, 0, 1)]
    orders = [shuffles(seed, round_, epoch, [client], size)[0] for seed, round_, epoch, client in keys]
    assert len({tuple(order.tolist()) for order in orders}) == len(orders)


def test_every_item_is_equally_likely_at_every_place() -> None:
    num_clients, size = 20_000, 6
    places = shuffles(0, 1, 0, np.arange(num_clients), np.full(num_clients, size))
    counts = np.stack([(places == item).sum(0) for item in range(size)])
    expected = num_clients / size
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 60  # 25 degrees of freedom: 1 in 10,000


def test_a_large_client() -> None:
    (order,) = shuffles(0, 1, 0, [0], np.array([100_000]))
    assert np.array_equal(np.sort(order), np.arange(100_000))
    assert not np.array_equal(order, np.arange(100_000))
