"""The tables and figures of the paper: presets, and how they are redone."""

from propfair.paper.catalogue import Experiment, Preset, Scale, load_experiment, load_preset, preset_names
from propfair.paper.reproduce import reproduce
from propfair.paper.reproduced import Number, Reproduced
from propfair.paper.settings import NotCompleteError, Screen, Settings
from propfair.paper.tables import write_reproduction

__all__ = [
    "Experiment",
    "NotCompleteError",
    "Number",
    "Preset",
    "Reproduced",
    "Scale",
    "Screen",
    "Settings",
    "load_experiment",
    "load_preset",
    "preset_names",
    "reproduce",
    "write_reproduction",
]
