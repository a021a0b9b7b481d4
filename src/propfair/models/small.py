"""Small networks for small data."""

import math
from dataclasses import dataclass

from torch import nn

from propfair.errors import ConfigError
from propfair.models.base import ModelSpec, Shape, register


@register("logistic")
@dataclass(frozen=True)
class Logistic(ModelSpec):
    """Multinomial logistic regression: one linear layer on the flattened input."""

    def build(self, input_shape: Shape, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes))


@register("mlp")
@dataclass(frozen=True)
class Mlp(ModelSpec):
    """Fully connected layers with ReLU between them.

    Args:
        hidden: the widths of the hidden layers.
    """

    hidden: tuple[int, ...] = (128,)

    def __post_init__(self) -> None:
        if not self.hidden or min(self.hidden) < 1:
            raise ConfigError(f"hidden must hold widths >= 1; got hidden={self.hidden}. Use model 'logistic' for none.")

    def build(self, input_shape: Shape, num_classes: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        width = math.prod(input_shape)
        for units in self.hidden:
            layers += [nn.Linear(width, units), nn.ReLU()]
            width = units
        return nn.Sequential(*layers, nn.Linear(width, num_classes))


@register("cnn")
@dataclass(frozen=True)
class Cnn(ModelSpec):
    """Two 3x3 convolutions, one max-pool, one dense layer: from 8x8 digits to 28x28 and 32x32 images.

    For 28x28 grey images and 62 classes it has 1,206,590 parameters. Pooling before ReLU is the same function for
    a quarter of the ReLUs.

    Args:
        channels: of the two convolutions.
        hidden: the width of the dense layer.
        dropout: before the dense layer and, doubled, after it; 0 for none.
    """

    channels: tuple[int, int] = (32, 64)
    hidden: int = 128
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if min(*self.channels, self.hidden) < 1:
            raise ConfigError(f"channels and hidden must be >= 1; got channels={self.channels}, hidden={self.hidden}")
        if not 0 <= self.dropout < 0.5:
            raise ConfigError(f"dropout must be at least 0 and under 0.5; got dropout={self.dropout}")

    def build(self, input_shape: Shape, num_classes: int) -> nn.Module:
        depth, height, width = image_shape(self.name, input_shape, smallest=6)
        first, second = self.channels
        flat = second * ((height - 4) // 2) * ((width - 4) // 2)
        drop = self.dropout > 0
        return nn.Sequential(
            nn.Conv2d(depth, first, 3),
            nn.ReLU(),
            nn.Conv2d(first, second, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            *([nn.Dropout(self.dropout)] if drop else []),
            nn.Linear(flat, self.hidden),
            nn.ReLU(),
            *([nn.Dropout(2 * self.dropout)] if drop else []),
            nn.Linear(self.hidden, num_classes),
        )


@register("cnn-stride2")
@dataclass(frozen=True)
class StridedCnn(ModelSpec):
    """Convolutions of stride 2, one dense layer: sees images as images at a third of the time of a narrow ResNet.

    Args:
        channels: of the convolutions; each halves height and width.
        kernel: their height and width, odd.
        hidden: the width of the dense layer.
    """

    channels: tuple[int, ...] = (16, 32)
    kernel: int = 3
    hidden: int = 64

    def __post_init__(self) -> None:
        if not self.channels or min(*self.channels, self.hidden) < 1:
            raise ConfigError(
                f"channels must be one number >= 1 or more, and hidden >= 1; got channels={self.channels}, "
                f"hidden={self.hidden}"
            )
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ConfigError(f"kernel must be odd and at least 1; got kernel={self.kernel}")

    def build(self, input_shape: Shape, num_classes: int) -> nn.Module:
        depth, height, width = image_shape(self.name, input_shape, smallest=2)
        layers: list[nn.Module] = []
        for channels in self.channels:
            layers += [nn.Conv2d(depth, channels, self.kernel, stride=2, padding=self.kernel // 2), nn.ReLU()]
            depth, height, width = channels, (height + 1) // 2, (width + 1) // 2
        dense = nn.Linear(depth * height * width, self.hidden)
        return nn.Sequential(*layers, nn.Flatten(), dense, nn.ReLU(), nn.Linear(self.hidden, num_classes))


def image_shape(name: str, shape: Shape, smallest: int) -> tuple[int, int, int]:
    """The channels, height and width of an image; any other shape is an error."""
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ConfigError(
            f"model {name!r} needs images [channels, height, width] of at least {smallest}x{smallest}; "
            f"got shape {list(shape)}. Use 'logistic' or 'mlp' for flat features."
        )
    channels, height, width = shape
    return channels, height, width
