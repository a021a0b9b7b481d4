"""How time and memory of propfair grow with clients, with the cohort and with parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.harness import profile

AXES: dict[str, dict[int, str]] = {
    "clients": {n: f"W3@examples=10,cohort=10,num_clients={n}" for n in (10, 100, 1_000, 10_000, 100_000)},
    "cohort": {n: f"W3@num_clients=1000,cohort={n}" for n in (10, 30, 100, 300, 1_000)},
    # 60 inputs, 10 classes: 71 weights and biases for each hidden unit, and 10 more
    "parameters": {71 * h + 10: f"W3@examples=10,cohort=10,hidden={h}" for h in (14, 141, 1_408, 14_084, 140_845)},
}


@dataclass(frozen=True)
class Point:
    """One measurement."""

    axis: str
    value: int
    round_seconds: float
    startup: float
    peak_bytes: int


def measure(contestant: str, seconds: float, axes: dict[str, dict[int, str]] = AXES) -> list[Point]:
    """Every point in a process of its own."""
    points = []
    for axis, workloads in axes.items():
        for value, workload in workloads.items():
            alone = profile(contestant, workload, seconds=seconds)
            points.append(Point(axis, value, alone.round_seconds, alone.startup, alone.peak_bytes))
    return points


def exponent(values: Sequence[float], measured: Sequence[float]) -> float:
    """The slope b of the line through log(value), log(measured): measured ~ value^b."""
    slope, _ = np.polyfit(np.log(values), np.log(measured), 1)
    return float(slope)
