"""Sweeps: the search space, the studies on disk, who works on what, and by which criterion."""
