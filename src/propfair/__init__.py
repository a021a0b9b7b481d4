"""Fair federated learning in PyTorch: train it, measure it, certify it."""

__version__ = "0.1.0"
