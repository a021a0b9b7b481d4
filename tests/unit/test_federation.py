"""Federations: from a data set, and from a user's own clients."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from propfair.data import ArrayExamples
from propfair.errors import DataError
from propfair.federation.federation import Federation, Ragged, federate
from propfair.federation.own import from_arrays, from_datasets
from propfair.federation.partition import Dirichlet, Natural
from propfair.federation.split import Splitter

X = torch.rand(200, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(200) % 4


def test_federate_deals_everything_and_notes_how() -> None:
    federation = federate(from_arrays(X, Y), Dirichlet(beta=1.0, min_samples=20), 5, Splitter(validation=0.1), seed=3)
    assert federation.num_clients == 5
    used = torch.cat([federation.split(split).values for split in ("train", "validation", "test")])
    assert used.sort().values.equal(torch.arange(200))
    assert "beta=1.0" in federation.note
    assert "seed" in federation.note
    assert float(federation.share.sum()) == pytest.approx(1)


def test_natural_users_keep_their_names() -> None:
    examples = from_arrays(X, Y, user=Y, user_names=["ann", "bob", "cid", "dee"])
    assert federate(examples, Natural()).names == ("ann", "bob", "cid", "dee")


def test_fingerprint_tells_data_and_partition_apart() -> None:
    def fingerprint(x: torch.Tensor, seed: int) -> str:
        return federate(from_arrays(x, Y), Dirichlet(), 3, seed=seed).fingerprint

    assert fingerprint(X, 0) == fingerprint(X.clone(), 0)
    assert len({fingerprint(X, 0), fingerprint(X, 1), fingerprint(X + 1, 0)}) == 3


def test_ragged() -> None:
    lists = Ragged.of([torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64), torch.tensor([5])])
    assert [lists[k].tolist() for k in range(len(lists))] == [[1, 2], [], [5]]
    assert lists[-1].tolist() == [5]
    with pytest.raises(IndexError, match="there are 3 lists"):
        lists[3]
    assert len(Ragged.of([])) == 0


class Rows(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return X[index], int(Y[index])


Ready = namedtuple("Ready", ["train", "test"])  # noqa: PYI024


@pytest.mark.parametrize(
    "client",
    [
        (X[:20], Y[:20]),
        (X[:20].numpy(), Y[:20].numpy()),
        [X[:20].tolist(), Y[:20].tolist()],
        TensorDataset(X[:20], Y[:20]),
        Rows(),
        {"train": (X[:16], Y[:16]), "test": TensorDataset(X[16:20], Y[16:20])},
        Ready((X[:16], Y[:16]), (X[16:20], Y[16:20])),
    ],
)
def test_every_form_of_a_client_gives_the_same_examples(client: object) -> None:
    federation = from_datasets([client, (X[20:60], Y[20:60])])
    assert federation.train.lengths.tolist() == [16, 32]
    assert federation.test.lengths.tolist() == [4, 8]
    index = torch.cat([federation.train[0], federation.test[0]]).sort().values
    assert federation.examples.inputs(index).equal(X[:20])
    assert federation.examples.targets(index).equal(Y[:20])
    assert federation.examples.num_classes == (0 if isinstance(client, Rows) else 4)  # 0: not known before reading


def test_clients_by_name() -> None:
    assert from_datasets({"ann": (X, Y), "bob": (X, Y)}).names == ("ann", "bob")


def test_real_valued_targets_and_pixels() -> None:
    federation = from_datasets([(X, X[:, 0])])
    assert federation.examples.num_classes == 0
    pixels = from_arrays(np.full((4, 1, 2, 2), 255, dtype=np.uint8), [0, 1, 0, 1])
    assert pixels.inputs(torch.arange(2)).max() == 1


BAD = X.clone()
BAD[7, 2] = float("nan")


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([], "there are no clients"),
        ([(X, Y), (X[:0], Y[:0])], "client 1 is empty"),
        ([(X, Y[:5])], "same length; got shapes"),
        ([(BAD, Y)], "client 0: inputs must be finite; row 7"),
        ([(X, torch.full((200,), float("inf")))], "targets must be finite"),
        ([(X, Y - 1)], "labels must be between 0 and"),
        ([(X, Y + 9)], "found 12"),
        ([(X, Y), (X[:, :3], Y)], r"same kind of examples: client 0 .*\[4\].*client 1 .*\[3\]"),
        ([{"test": (X, Y)}], "train must be there"),
        ([{"train": (X, Y), "dev": (X, Y)}], "got train, dev"),
        ([3], "expected .* got int"),
        ([(np.array(["a", "b"]), [0, 1])], "must be numbers"),
        ([([[1.0], [1.0, 2.0]], [0, 1])], "one rectangular array"),
        ([(X[:1], Y[:1])], "no training examples"),
    ],
)
def test_bad_clients_say_what_is_wrong(clients: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_datasets(clients, num_classes=10)


def test_bad_users() -> None:
    with pytest.raises(DataError, match="one per example"):
        from_arrays(X, Y, user=[0, 1])


def test_names_must_fit() -> None:
    part = Ragged.of([torch.tensor([0])])
    with pytest.raises(DataError, match="1 clients, but there are 2 names"):
        Federation(ArrayExamples(X, Y, num_classes=4), ("a", "b"), part, part, part)
