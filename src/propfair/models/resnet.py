"""Residual networks with group normalisation: no running statistics that clients would have to average."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from propfair.errors import ConfigError
from propfair.models.base import ModelSpec, Shape, register
from propfair.models.small import image_shape

Stem = Literal["imagenet", "cifar"]


@dataclass(frozen=True)
class _ResNet(ModelSpec):
    blocks: ClassVar[tuple[int, ...]]

    width: int
    groups: int
    stem: Stem

    def __post_init__(self) -> None:
        if self.groups < 1 or self.width < 1 or self.width % self.groups:
            raise ConfigError(
                f"width must be a multiple of groups, both >= 1; got width={self.width}, groups={self.groups}"
            )

    def build(self, input_shape: Shape, num_classes: int) -> nn.Module:
        channels, _, _ = image_shape(self.name, input_shape, smallest=8)
        return ResNet(channels, num_classes, self.blocks, self.width, self.groups, self.stem)


@register("resnet18-gn")
@dataclass(frozen=True)
class ResNet18(_ResNet):
    """ResNet-18 (He et al., 2016) with GroupNorm, as in the paper: 11,181,642 parameters for 10 classes.

    Args:
        width: channels of the first stage.
        groups: of every GroupNorm.
        stem: "imagenet", the paper's: 7x7 with stride 2 and a max-pool, which leaves 1x1 maps of a 32x32 image at the
            end; "cifar": 3x3 with stride 1 and no pool, better on small images and not comparable with the paper.
    """

    blocks = (2, 2, 2, 2)

    width: int = 64
    groups: int = 2
    stem: Stem = "imagenet"


@register("resnet10-gn")
@dataclass(frozen=True)
class ResNet10(ResNet18):
    """The paper's network with one block per stage: 4,910,922 parameters for 10 classes.

    Args:
        width: channels of the first stage.
        groups: of every GroupNorm.
        stem: "imagenet" or "cifar", as in resnet18-gn.
    """

    blocks = (1, 1, 1, 1)


@register("resnet20-gn")
@dataclass(frozen=True)
class ResNet20(_ResNet):
    """The narrow ResNet-20 made for 32x32 images (He et al., 2016) with GroupNorm: 0.27 M parameters.

    Args:
        width: channels of the first stage.
        groups: of every GroupNorm.
        stem: "cifar" or "imagenet", as in resnet18-gn.
    """

    blocks = (3, 3, 3)

    width: int = 16
    groups: int = 2
    stem: Stem = "cifar"


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        # The shortcut is made first, as in torchvision, so that a seed gives the same weights there and here.
        downsample = None
        if stride != 1 or before != after:
            downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(groups, after))
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.GroupNorm(groups, after)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.GroupNorm(groups, after)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """[B, before, H, W] -> [B, after, H / stride, W / stride]."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return torch.relu_(out + shortcut)


class ResNet(nn.Module):
    """The network; its modules are named as in torchvision."""

    def __init__(
        self, channels: int, num_classes: int, blocks: tuple[int, ...], width: int, groups: int, stem: Stem
    ) -> None:
        super().__init__()
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.GroupNorm(groups, width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        before = width
        stages: list[str] = []
        for stage, depth in enumerate(blocks):
            after = width * 2**stage
            made = [ResidualBlock(before, after, 1 if stage == 0 else 2, groups)]
            made += [ResidualBlock(after, after, 1, groups) for _ in range(depth - 1)]
            stages.append(f"layer{stage + 1}")
            self.add_module(stages[-1], nn.Sequential(*made))
            before = after
        self.stages = tuple(stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, classes]."""
        x = self.relu(self.maxpool(self.bn1(self.conv1(x))))  # they commute, gradients too, and pooling leaves less
        for stage in self.stages:
            x = getattr(self, stage)(x)
        scores: Tensor = self.fc(self.avgpool(x).flatten(1))
        return scores
