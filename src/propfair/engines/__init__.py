"""Where clients train: in this process, in workers, stacked, or on a Ray cluster. `Engine` is the contract."""

from propfair.engines.auto import Auto
from propfair.engines.inprocess import InProcess
from propfair.engines.processes import Processes
from propfair.engines.ray import Ray
from propfair.engines.session import ENGINES, Engine, Event, Session
from propfair.engines.vectorized import Vectorized

__all__ = [
    "ENGINES",
    "Auto",
    "Engine",
    "Event",
    "InProcess",
    "Processes",
    "Ray",
    "Session",
    "Vectorized",
]
