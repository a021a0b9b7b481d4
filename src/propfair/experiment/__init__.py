"""Experiments: config, runner, checkpoints, records, comparisons."""
