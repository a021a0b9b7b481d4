"""Networks: those of the paper, small ones, and any module of yours by import path."""

from propfair.models.base import MODELS, ModelSpec, make_model
from propfair.models.lstm import Lstm
from propfair.models.resnet import ResNet10, ResNet18, ResNet20
from propfair.models.small import Cnn, Logistic, Mlp, StridedCnn

__all__ = [
    "MODELS",
    "Cnn",
    "Logistic",
    "Lstm",
    "Mlp",
    "ModelSpec",
    "ResNet10",
    "ResNet18",
    "ResNet20",
    "StridedCnn",
    "make_model",
]
