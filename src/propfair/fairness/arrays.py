"""Array-likes from users to checked float64 arrays. Every function of the theory starts here."""

from typing import Literal

import numpy as np
import numpy.typing as npt

from propfair.errors import ConfigError, DataError

FloatArray = npt.NDArray[np.float64]
Shares = npt.ArrayLike | Literal["uniform"]


def vector(name: str, values: npt.ArrayLike, length: int | None = None) -> FloatArray:
    """One finite number per client."""
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0:
        raise DataError(f"{name} must be a list with one number per client; got shape {x.shape}.")
    if length is not None and x.size != length:
        raise DataError(f"{name} must have one number for each of {length} clients; got {x.size}.")
    bad = np.flatnonzero(~np.isfinite(x))
    if bad.size:
        raise DataError(
            f"{name} must be finite; got {x[bad[0]]} for client {bad[0]}. Leave that client out of the call."
        )
    return x


def matrix(name: str, values: npt.ArrayLike, columns: int | None = None) -> FloatArray:
    """Finite, one row per model and one column per client; one list counts as one row."""
    x = np.atleast_2d(np.asarray(values, dtype=np.float64))
    if x.ndim != 2 or x.size == 0:
        raise DataError(f"{name} must have one row per model and one column per client; got shape {x.shape}.")
    if columns is not None and x.shape[1] != columns:
        raise DataError(f"{name} must have one column for each of {columns} clients; got {x.shape[1]}.")
    bad = np.argwhere(~np.isfinite(x))
    if len(bad):
        row, client = bad[0].tolist()
        raise DataError(f"{name} must be finite; got {x[row, client]} for client {client} in row {row}.")
    return x


def normalized_shares(shares: Shares, length: int) -> FloatArray:
    """Positive weights p that sum to 1: data sizes or shares, or "uniform" for one client, one vote."""
    if isinstance(shares, str):
        if shares != "uniform":
            raise ConfigError(f'shares must be one positive number per client or "uniform"; got {shares!r}.')
        return np.full(length, 1 / length)
    p = vector("shares", shares, length)
    if (p <= 0).any():
        client = int(np.flatnonzero(p <= 0)[0])
        raise DataError(f"shares must be > 0; got {p[client]} for client {client}. Leave clients without data out.")
    normalized: FloatArray = p / p.sum()
    return normalized
