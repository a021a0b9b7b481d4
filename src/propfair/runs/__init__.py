"""A run: the training that makes one, its folder and records, and what is read from them."""
