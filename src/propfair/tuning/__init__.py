"""Sweeps: the search space, the studies on disk, who works on what, and by which criterion."""

from propfair.tuning.criteria import CRITERIA, Criterion
from propfair.tuning.estimate import Estimate, estimate
from propfair.tuning.search import Range, Search, Sweep, SweepFile, Tunable, load_sweep, make_sweep
from propfair.tuning.studies import Home, Studies, Tested, Winner
from propfair.tuning.sweep import run_sweep
from propfair.tuning.sweep_ray import run_sweep_on_ray

__all__ = [
    "CRITERIA",
    "Criterion",
    "Estimate",
    "Home",
    "Range",
    "Search",
    "Studies",
    "Sweep",
    "SweepFile",
    "Tested",
    "Tunable",
    "Winner",
    "estimate",
    "load_sweep",
    "make_sweep",
    "run_sweep",
    "run_sweep_on_ray",
]
