"""The theory of fair federated learning as functions of numbers: no models, no training, numpy only."""

from propfair.fairness.statistics import (
    ClientStatistics,
    MeanStd,
    best_fraction,
    over_seeds,
    summarize,
    summarize_seeds,
    worst_fraction,
)

__all__ = [
    "ClientStatistics",
    "MeanStd",
    "best_fraction",
    "over_seeds",
    "summarize",
    "summarize_seeds",
    "worst_fraction",
]
