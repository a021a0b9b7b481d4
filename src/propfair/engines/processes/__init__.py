"""Clients in worker processes."""

from propfair.engines.processes.engine import Processes

__all__ = ["Processes"]
