"""Batteries: damage, hostile files, kills."""
