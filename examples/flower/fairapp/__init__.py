"""A fair Flower app."""
