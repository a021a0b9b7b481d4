"""Shuffles of whole cohorts: permutations, pure in their key, uniform."""

import torch

from propfair.seeds import shuffles


def test_each_client_gets_a_permutation_of_its_own_items() -> None:
    lengths = torch.tensor([5, 1, 300])
    parts = torch.split(shuffles(7, 3, 0, [4, 9, 2], lengths), lengths.tolist())
    for part, length in zip(parts, lengths.tolist(), strict=True):
        assert part.sort().values.tolist() == list(range(length))


def test_company_and_position_in_the_cohort_do_not_matter() -> None:
    alone = shuffles(7, 3, 1, [9], torch.tensor([40]))
    together = shuffles(7, 3, 1, [100_000, 9, 0], torch.tensor([11, 40, 7]))
    assert torch.equal(together[11:51], alone)


def test_seed_round_epoch_and_client_all_matter() -> None:
    size = torch.tensor([50])
    keys = [(0, 1, 0, 0), (1, 1, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0), (0, 1, 0, 1)]
    orders = [shuffles(seed, round_, epoch, [client], size) for seed, round_, epoch, client in keys]
    assert len({tuple(order.tolist()) for order in orders}) == len(orders)


def test_every_item_is_equally_likely_at_every_place() -> None:
    num_clients, size = 20_000, 6
    places = shuffles(0, 1, 0, range(num_clients), torch.full((num_clients,), size)).view(num_clients, size)
    counts = torch.stack([(places == item).sum(0) for item in range(size)]).double()
    expected = num_clients / size
    chi2 = float(((counts - expected) ** 2 / expected).sum())
    assert chi2 < 60  # 25 degrees of freedom: 1 in 10,000


def test_a_dataset_larger_than_one_grain_is_still_a_permutation() -> None:
    order = shuffles(0, 1, 0, [0], torch.tensor([100_000]))
    assert torch.equal(order.sort().values, torch.arange(100_000))
    assert not torch.equal(order, torch.arange(100_000))
