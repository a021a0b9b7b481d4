"""Synthetic(alpha, beta): clients that differ in their data and in their true models."""

import functools
import math
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from propfair.data.base import SOURCES, ArrayExamples, Examples, Protocol, Source
from propfair.errors import ConfigError

NUM_FEATURES = 60
NUM_CLASSES = 10
USERS_PER_BLOCK = 256  # bounds the memory that their models take
MAX_STORED_BYTES = 1 << 28


@SOURCES.register("synthetic")
@dataclass(frozen=True)
class Synthetic(Source):
    r"""Logistic models on Gaussian features, 60 -> 10, one client per user.

    $$y = \arg\max(W_k^\top x + b_k),\quad x \sim N(v_k, \Sigma),\ \Sigma_{jj} = j^{-1.2}$$
    $$W_k, b_k \sim N(u_k, 1),\ u_k \sim N(0, \alpha),\quad v_k \sim N(B_k, 1),\ B_k \sim N(0, \beta)$$

    alpha and beta are standard deviations, as in the code of the q-FFL paper. Every number is a hash of
    (seed, user, place), so a user's data does not depend on how many users there are.

    Args:
        alpha: how far the true models are apart.
        beta: how far the features are apart.
        num_users: how many natural clients.
        samples_per_user: the same for all; 0: 50 + lognormal(4, 2), as in the q-FFL paper.
        seed: decides the data.

    References:
        T. Li, M. Sanjabi, A. Beirami, V. Smith, Fair Resource Allocation in Federated Learning, ICLR 2020.
    """

    alpha: float = 1.0
    beta: float = 1.0
    num_users: int = 100
    samples_per_user: int = 0
    seed: int = 0

    home = "generated"

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ConfigError(f"{name} must be >= 0 and finite; got {name}={value}. 0 makes all clients alike.")
        if self.num_users < 1:
            raise ConfigError(f"num_users must be >= 1; got num_users={self.num_users}")
        if self.samples_per_user < 0:
            raise ConfigError(
                f"samples_per_user must be >= 0; got samples_per_user={self.samples_per_user}. 0 draws lognormal sizes."
            )

    @property
    def protocol(self) -> Protocol:
        return Protocol(("natural", {}), None, {"test": 0.2, "order": "contiguous"}, model="logistic")

    def load(self, folder: Path | None = None) -> Examples:
        """Make the examples; features over 256 MB are not kept but made again, the same, for each batch."""
        sizes = self._sizes()
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        user = torch.repeat_interleave(torch.arange(self.num_users, dtype=torch.int32), sizes)
        y = torch.empty(len(user), dtype=torch.uint8)
        centre = torch.empty(self.num_users, NUM_FEATURES)
        made = SyntheticExamples(user=user, offsets=offsets, centre=centre, y=y, seed=self.seed)
        keep = len(user) * NUM_FEATURES * 4 <= MAX_STORED_BYTES
        x = torch.empty(len(user) if keep else 0, NUM_FEATURES)
        for first in range(0, self.num_users, USERS_PER_BLOCK):
            users = torch.arange(first, min(first + USERS_PER_BLOCK, self.num_users))
            prior = _normals(_key(self.seed, Stream.PRIOR, users), 2)
            centre[users] = self.beta * prior[:, :1] + _normals(_key(self.seed, Stream.CENTRE, users), NUM_FEATURES)
            models = self.alpha * prior[:, 1:] + _normals(
                _key(self.seed, Stream.MODEL, users), (NUM_FEATURES + 1) * NUM_CLASSES
            )  # W and b of each user in one row
            begin, end = int(offsets[first]), int(offsets[int(users[-1]) + 1])
            features = made.inputs(torch.arange(begin, end))
            if keep:
                x[begin:end] = features
            y[begin:end] = _labels(features, models, sizes[users])
        if not keep:
            return made
        return ArrayExamples(x, y.long(), num_classes=NUM_CLASSES, user=user)

    def _sizes(self) -> Tensor:
        if self.samples_per_user:
            return torch.full((self.num_users,), self.samples_per_user)
        draws = np.random.default_rng([self.seed, 1]).lognormal(4, 2, self.num_users)
        return torch.from_numpy(draws.astype(np.int64) + 50)


def _labels(features: Tensor, models: Tensor, sizes: Tensor) -> Tensor:
    """The class that each user's own model gives to its rows of `features`; b and W of a user are a row of `models`."""
    b, W = models[:, None, :NUM_CLASSES], models[:, NUM_CLASSES:].view(-1, NUM_FEATURES, NUM_CLASSES)
    if bool((sizes == sizes[0]).all()):
        return torch.baddbmm(b, features.view(len(sizes), -1, NUM_FEATURES), W).argmax(2).flatten()
    rows = torch.split(features, sizes.tolist())
    return torch.cat([torch.addmm(b[k], rows[k], W[k]).argmax(1) for k in range(len(sizes))])


class SyntheticExamples(Examples):
    """Features made batch by batch, for more users than memory holds."""

    num_classes = NUM_CLASSES

    def __init__(self, *, user: Tensor, offsets: Tensor, centre: Tensor, y: Tensor, seed: int) -> None:
        self.user: Tensor = user
        self.offsets, self.centre, self.y, self.seed = offsets, centre, y, seed

    def __len__(self) -> int:
        return len(self.y)

    def inputs(self, index: Tensor) -> Tensor:
        user = self.user[index].long()
        key = _key(self.seed, Stream.FEATURES, user)
        key = _mix(key + (index - self.offsets[user]))
        scale = torch.arange(1, NUM_FEATURES + 1, device=index.device).pow(-0.6)  # the square root of j^-1.2
        return torch.addcmul(self.centre[user], _normals(key, NUM_FEATURES), scale)

    def targets(self, index: Tensor) -> Tensor:
        return self.y[index].long()

    def tensors(self) -> dict[str, Tensor]:
        return {"user": self.user, "offsets": self.offsets, "centre": self.centre, "y": self.y}

    def with_tensors(self, tensors: dict[str, Tensor]) -> "SyntheticExamples":
        return SyntheticExamples(**tensors, seed=self.seed)


class Stream(IntEnum):
    """Which numbers of a user a hash is for."""

    PRIOR = 1
    CENTRE = 2
    MODEL = 3
    FEATURES = 4


def _key(seed: int, stream: Stream, user: Tensor) -> Tensor:
    start = torch.tensor([seed], dtype=torch.int64, device=user.device)
    return _mix(_mix(_mix(start) + int(stream)) + user)


def _normals(key: Tensor, width: int) -> Tensor:
    """Standard normal numbers [len(key), width]: four of a table of 65,536 quantiles for each word of 64 bits.

    Integers and a table give the same numbers on every machine, which sines and logarithms do not.
    """
    steps = torch.arange(1, (width + 3) // 4 + 1, device=key.device) * _GOLDEN
    words = _mix(key[:, None] + steps)  # [rows, width / 4]
    index = words.view(torch.int16)[:, :width].to(torch.int32) + (1 << 15)
    return _quantiles().to(key.device).index_select(0, index.flatten()).view(index.shape)


@functools.cache
def _quantiles() -> Tensor:
    count = 1 << 16
    middle = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    table: Tensor = torch.special.ndtri(middle)
    return table.to(torch.float32)


def _mix(bits: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, 2014); int64 arithmetic wraps."""
    bits = (bits ^ (bits >> 30).bitwise_and_((1 << 34) - 1)).mul_(-0x40A7B892E31B1A47)
    bits = bits.bitwise_xor_((bits >> 27).bitwise_and_((1 << 37) - 1)).mul_(-0x6B2FB644ECCEEE15)
    return bits.bitwise_xor_((bits >> 31).bitwise_and_((1 << 33) - 1))


_GOLDEN = -0x61C8864680B583EB
