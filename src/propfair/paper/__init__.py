"""The tables and figures of the paper: presets, and how they are redone."""
