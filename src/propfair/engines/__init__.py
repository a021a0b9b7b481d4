"""Engines map the client program over a cohort; see `session` for the contract."""

from propfair.engines.session import ENGINES, Engine, Event, Session

__all__ = ["ENGINES", "Engine", "Event", "Session"]
