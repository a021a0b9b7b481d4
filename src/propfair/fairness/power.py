"""Power means and their logarithms, exact for large and for small numbers."""

import math

import numpy as np

from propfair.fairness.arrays import FloatArray


def utility(u: FloatArray, alpha: float) -> FloatArray:
    """phi_alpha(u) = log u for alpha = 1, else u^(1-alpha) / (1-alpha): what alpha-fairness adds up (eq. 2.8)."""
    values: FloatArray = np.log(u) if alpha == 1 else u ** (1 - alpha) / (1 - alpha)
    return values


def power_mean(x: FloatArray, p: FloatArray, order: float) -> float:
    """(sum p x^order)^(1/order) of x >= 0; the geometric mean for order 0, extremes for orders +-inf.

    One formula for all finite orders: it neither overflows for large ones nor cancels near 0.
    """
    if order == math.inf:
        return float(x.max())
    if order == -math.inf or (order <= 0 and (x == 0).any()):
        return float(x.min())
    if not x.any():
        return 0.0
    return math.exp(log_power_mean(log(x), p, order))


def log_power_mean(logs: FloatArray, p: FloatArray, order: float) -> float:
    """The logarithm of the power mean of exp(logs); order 0 is the geometric mean."""
    return float(p @ logs) if order == 0 else log_mean_exp(order * logs, p) / order


def log_mean_exp(y: FloatArray, p: FloatArray) -> float:
    """The logarithm of sum p exp(y) with sum p = 1, exact for small and for large y."""
    top = float(y.max())
    return top + math.log1p(float(p @ np.expm1(y - top)))


def log(x: FloatArray) -> FloatArray:
    """The natural logarithm; -inf for 0."""
    with np.errstate(divide="ignore"):
        return np.log(x)
