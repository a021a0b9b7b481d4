"""Contestants: one file each, with `compete(workload, after_round)`.

It sets up, then trains round after round for ever and calls `after_round(examples)` after each. That call blocks while
others have their turn, and ends the process when all is over.
"""
