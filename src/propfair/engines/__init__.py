"""Engines: one file each. They map the client program over a cohort; see `base` for the contract."""

from propfair.engines.base import BLOCK, ENGINES, Block, Engine, Event, Job, Session

__all__ = ["BLOCK", "ENGINES", "Block", "Engine", "Event", "Job", "Session"]
