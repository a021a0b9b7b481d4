"""Splits inside each client: disjoint, of the right sizes, the test part untouched by tuning."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from propfair.errors import ConfigError
from propfair.federation.partition import Dirichlet, Iid
from propfair.federation.ragged import Ragged
from propfair.federation.split import SplitOrder, Splitter

LABELS = torch.arange(1000) % 10
CLIENTS = Dirichlet(beta=0.5)(LABELS, 8, 0).clients


@pytest.mark.parametrize("order", ["stratified", "per-class", "shuffled", "contiguous"])
def test_parts_are_disjoint_and_complete(order: SplitOrder) -> None:
    parts = Splitter(validation=0.1, test=0.25, order=order)(CLIENTS, LABELS, 0)
    for k in range(len(CLIENTS)):
        together = torch.cat([part[k] for part in parts]).sort().values
        assert together.equal(CLIENTS[k].sort().values)


def test_per_class_counts_are_the_authors() -> None:
    parts = Splitter(test=0.2, order="per-class")(CLIENTS, LABELS, 0)
    for k in range(len(CLIENTS)):
        cell = LABELS[CLIENTS[k]].bincount(minlength=10)
        assert LABELS[parts.train[k]].bincount(minlength=10).equal(cell * 8 // 10)
    assert parts.validation.lengths.sum() == 0


@pytest.mark.parametrize(("test", "validation"), [(0.2, 0.0), (0.2, 0.1), (0.5, 0.25), (0.3, 0.0)])
def test_stratified_is_exact_for_clients_and_within_one_for_classes(test: float, validation: float) -> None:
    parts = Splitter(test=test, validation=validation)(CLIENTS, LABELS, 0)
    for k in range(len(CLIENTS)):
        size = len(CLIENTS[k])
        cells = LABELS[CLIENTS[k]].bincount(minlength=10)
        assert len(parts.test[k]) == size - int((1 - test) * size + 1e-9)
        assert abs(len(parts.validation[k]) - validation * size) < 1
        tested = LABELS[parts.test[k]].bincount(minlength=10)
        assert float((tested - test * cells).abs().max()) < 1 + 1e-6
        validated = LABELS[parts.validation[k]].bincount(minlength=10)
        assert float((validated - validation * cells).abs().max()) < 2


def test_stratified_keeps_training_on_rare_classes() -> None:
    clients = Ragged.of([torch.arange(10)])
    assert len(Splitter(test=0.2)(clients, torch.arange(10), 0).train[0]) == 8
    assert len(Splitter(test=0.2, order="per-class")(clients, torch.arange(10), 0).train[0]) == 0


@pytest.mark.parametrize("order", ["stratified", "per-class", "shuffled", "contiguous"])
def test_validation_is_carved_out_of_train_and_leaves_test_alone(order: SplitOrder) -> None:
    plain = Splitter(test=0.2, order=order)(CLIENTS, LABELS, 5)
    tuning = Splitter(test=0.2, validation=0.2, order=order)(CLIENTS, LABELS, 5)
    assert plain.test.values.equal(tuning.test.values)
    assert tuning.validation.lengths.sum() > 0


def test_order_by_seed() -> None:
    one, same, other = (Splitter()(CLIENTS, LABELS, seed) for seed in (1, 1, 2))
    assert one.test.values.equal(same.test.values)
    assert not one.test.values.equal(other.test.values)


def test_contiguous_leaves_a_gap_at_every_cut() -> None:
    clients = Ragged.of([torch.arange(100, 200), torch.arange(300, 350)])
    train, validation, test = Splitter(test=0.5, validation=0.2, order="contiguous", gap=3)(clients, None, 0)
    assert train[0].tolist() == list(range(100, 130))
    assert validation[0].tolist() == list(range(133, 150))
    assert test[0].tolist() == list(range(153, 200))
    assert train[1].tolist() == list(range(300, 315))
    assert test[1].tolist() == list(range(328, 350))
    plain = Splitter(test=0.5, order="contiguous", gap=3)(clients, None, 0)
    assert plain.train[0].tolist() == list(range(100, 150))
    assert plain.test[0].tolist() == test[0].tolist()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.sampled_from([0.1, 0.2, 0.25, 0.3, 0.5]), st.sampled_from([0.0, 0.1, 0.2, 0.4]))
def test_sizes_of_one_cell(size: int, test: float, validation: float) -> None:
    clients = Ragged.of([torch.arange(size)])
    parts = Splitter(test=test, validation=validation, order="shuffled")(clients, None, 0)
    assert sum(len(part[0]) for part in parts) == size
    assert abs(len(parts.test[0]) - test * size) < 1
    assert abs(len(parts.validation[0]) - validation * size) < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": 1.0}, "test must be at least 0 and under 1"),
        ({"test": -0.1}, "test must be at least 0"),
        ({"validation": 0.5, "test": 0.5}, r"validation \+ test must be under 1"),
        ({"gap": 3}, "only makes sense with order='contiguous'"),
        ({"gap": -1, "order": "contiguous"}, "gap must be >= 0"),
    ],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Splitter(**options)  # type: ignore[arg-type]


def test_stratified_needs_class_labels() -> None:
    with pytest.raises(ConfigError, match="Use order='shuffled'"):
        Splitter()(Iid()(LABELS, 3, 0).clients, LABELS.float(), 0)
