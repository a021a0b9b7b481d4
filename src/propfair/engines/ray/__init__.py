"""Clients in the workers of a Ray cluster."""

from propfair.engines.ray.engine import Ray

__all__ = ["Ray"]
