"""Which test examples a model gets right, kept among the records of a run: 52 answers in a number.

Rows of the split `answers`: the metric `test/0` has the first 52 answers of a client as the bits of a whole number, the
first answer the lowest bit; `test/1` has the next 52, and so on. They say how much two models, or two seeds of one,
agree example by example, which no table of accuracies tells.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

SPLIT = "answers"
WORD = 52  # answers in a number: a float64 has all whole numbers of so many bits


def pack(right: NDArray[np.bool_], sizes: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
    """The numbers, one word of every client that has it after the other: clients [K] and values [K].

    Args:
        right: [N], the examples of the first client first.
        sizes: [n], examples of each client.

    >>> [(clients.tolist(), values.tolist()) for clients, values in pack(np.array([1, 0, 1, 1]) > 0, np.array([3, 1]))]
    [([0, 1], [5.0, 1.0])]
    """
    owner, place = _places(sizes)
    for word in range(-(-int(sizes.max(initial=0)) // WORD)):
        here = place // WORD == word
        bits = right[here] * 2.0 ** (place[here] % WORD)
        clients = np.flatnonzero(sizes > word * WORD).astype(np.int32)
        values: NDArray[np.float64] = np.bincount(owner[here], bits, minlength=sizes.size).astype(np.float64)
        yield clients, values[clients]


def unpack(words: list[NDArray[np.float64]], sizes: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """[N], from the words [n] of the clients, nan where a client has none; None if an answer is missing or strange."""
    owner, place = _places(sizes)
    if len(words) < -(-int(sizes.max(initial=0)) // WORD):
        return None
    values = np.stack(words)[place // WORD, owner] if len(owner) else np.empty(0)
    if not ((values >= 0) & (values < 2.0**WORD) & (values == np.floor(values))).all():  # not for nan
        return None
    right: NDArray[np.bool_] = (values.astype(np.int64) >> (place % WORD)) & 1 > 0
    return right


def _places(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of every example its client, and its place among the client's."""
    owner = np.repeat(np.arange(sizes.size), sizes)
    return owner, np.arange(owner.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
