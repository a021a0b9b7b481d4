"""Networks: those of the paper, small ones, and any module of yours by import path."""

from propfair.models.base import MODELS, ModelSpec, make_model

__all__ = ["MODELS", "ModelSpec", "make_model"]
