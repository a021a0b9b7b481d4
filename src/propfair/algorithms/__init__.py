"""One file per algorithm. Each registers itself; adding one is adding a file."""

from propfair.algorithms.base import (
    ALGORITHMS,
    Algorithm,
    ClientId,
    Cohort,
    Needs,
    Order,
    Personal,
    Privacy,
    State,
    register,
)

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "ClientId",
    "Cohort",
    "Needs",
    "Order",
    "Personal",
    "Privacy",
    "State",
    "register",
]
