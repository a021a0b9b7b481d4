import numpy as np
import pytest

from propfair.errors import DataError
from propfair.fairness import joining


def test_gaps_and_who_is_worse_off_for_sure() -> None:
    rng = np.random.default_rng(0)
    alone = np.array([0.9, 0.5, 0.6, 0.4]) + 0.01 * rng.standard_normal((6, 4))
    together = np.array([0.6, 0.7, 0.6, 0.8]) + 0.01 * rng.standard_normal((6, 4))
    found = joining(together, alone)
    np.testing.assert_allclose(found.gaps, (together - alone).mean(axis=0))
    assert found.surely_worse == (0,)
    assert found.surely_better == (1, 3)
    assert 0 in found.worse
    assert found.mean is not None
    assert found.mean.value == pytest.approx(found.gaps.mean())
    assert found.num_worse is not None
    assert found.num_worse.low >= 0
    assert found.num_worse.value == pytest.approx((together < alone).sum(axis=1).mean())
    assert "worse off than alone, 1 of them beyond chance; under a seed" in found.words


def test_the_gaps_of_all_clients_hold_at_once() -> None:
    rng = np.random.default_rng(7)
    wrong = 0
    for _ in range(200):
        found = joining(0.7 + 0.02 * rng.standard_normal((4, 10)), 0.7 + 0.02 * rng.standard_normal((4, 10)))
        wrong += bool(found.surely_worse or found.surely_better)
    assert wrong / 200 <= 0.05 + 0.03


def test_losses_are_turned_around() -> None:
    found = joining([[0.2, 0.9]] * 2, [[0.5, 0.5]] * 2, higher_is_better=False)
    np.testing.assert_allclose(found.gaps, [0.3, -0.4])
    assert found.worse == found.surely_worse == (1,)


def test_one_seed() -> None:
    for sizes in (None, [100, 100]):  # how often both models are right on the same examples is not known
        unknown = joining([0.9, 0.45], [0.5, 0.5], sizes=sizes)
        assert unknown.num_worse is None
        assert unknown.words == "1 of 2 clients is worse off than alone, nothing is known about chance"


def test_one_seed_with_answers_says_what_it_leaves_out() -> None:
    rng = np.random.default_rng(2)
    alone = rng.random((1, 200)) < np.repeat([0.5, 0.9], 100)
    together = alone | (rng.random((1, 200)) < np.repeat([0.6, 0.0], 100))  # the first gains, nobody loses an answer
    worse = together & (rng.random((1, 200)) < np.repeat([1.0, 0.5], 100))  # the second loses half of them
    tables = [right.reshape(1, 2, 100).mean(axis=2) for right in (alone, together, worse)]
    gained = joining(tables[1], tables[0], sizes=[100, 100], answers=(together, alone))
    assert gained.words == (
        "no client of 2 is worse off than alone, 1 are better off beyond chance (other seeds left out)"
    )
    lost = joining(tables[2], tables[0], sizes=[100, 100], answers=(worse, alone))
    assert lost.surely_worse == (1,)
    assert "1 of them beyond chance (other seeds left out)" in lost.words


def test_nobody_is_worse_off() -> None:
    assert joining([0.9, 0.5], [0.5, 0.5], sizes=[5, 5]).words == "no client of 2 is worse off than alone"


def test_equal_accuracies_of_one_client_are_no_proof() -> None:
    found = joining([[0.5, 0.9]] * 3, [[0.5, 0.2]] * 3, sizes=[40, 40])
    assert found.low[0] < 0 < found.high[0]


def test_rows_must_match() -> None:
    with pytest.raises(DataError, match="1 and 2 rows"):
        joining([0.5], [[0.5], [0.6]])
