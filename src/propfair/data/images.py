"""What image data sets share: optional normalisation, and random crops and flips of training batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from propfair.data.base import ArrayExamples, Protocol, Source
from propfair.errors import ConfigError, DataError


@dataclass(frozen=True)
class CropFlip:
    """A random crop after padding, and a mirror image half of the time; all randomness from the generator.

    Args:
        padding: pixels on each side.
        fill: the value of the padding, one per channel: that of black after normalisation.
    """

    padding: int = 4
    fill: tuple[float, ...] = (0.0,)

    def __call__(self, batch: Tensor, rng: torch.Generator) -> Tensor:
        """A changed copy of `batch` [B, C, H, W]."""
        count, channels, height, width = batch.shape
        black = batch.new_tensor(self.fill).view(-1, 1, 1)
        padded = functional.pad(batch - black, [self.padding] * 4)
        shift = torch.randint(0, 2 * self.padding + 1, (2, count), generator=rng).to(batch.device)
        flip = torch.rand(count, generator=rng).to(batch.device) < 0.5
        rows = shift[0, :, None] + torch.arange(height, device=batch.device)  # [B, H]
        columns = torch.arange(width, device=batch.device).expand(count, -1)
        columns = shift[1, :, None] + torch.where(flip[:, None], width - 1 - columns, columns)  # [B, W]
        batch_index = torch.arange(count, device=batch.device).view(-1, 1, 1, 1)
        channel_index = torch.arange(channels, device=batch.device).view(1, -1, 1, 1)
        return padded[batch_index, channel_index, rows[:, None, :, None], columns[:, None, None, :]] + black


def paper_protocol(beta: float, num_clients: int) -> Protocol:
    """How the paper uses images: a Dirichlet partition, 80 % / 20 % of every class inside a client, ResNet-18."""
    dealt = ("dirichlet", {"beta": beta, "min_samples": 300})
    return Protocol(dealt, num_clients, {"test": 0.2, "order": "per-class"}, model="resnet18-gn")


def first_of_each_class(labels: Tensor, num_classes: int, per_class: int) -> Tensor:
    """The positions of the first examples of each class, in their order; every class must have so many.

    >>> first_of_each_class(torch.tensor([1, 0, 1, 1, 0]), num_classes=2, per_class=2).tolist()
    [0, 1, 2, 4]
    """
    counts = labels.bincount(minlength=num_classes)
    if int(counts.min()) < per_class:
        raise DataError(
            f"data.per_class asks for {per_class} images of each class; class {int(counts.argmin())} has "
            f"{int(counts.min())}. Ask for fewer, or for another data.part."
        )
    by_class = labels.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    return by_class[(starts[:, None] + torch.arange(per_class)).flatten()].sort().values


@dataclass(frozen=True, kw_only=True)
class ImageSource(Source):
    """Options of all image data sets; the defaults are the paper's: pixels scaled to [0, 1] and nothing else.

    Args:
        normalize: subtract the mean and divide by the standard deviation of each channel.
        augment: random crop (padding 4) and flip of training batches.
        per_class: the first so many images of each class, in the order of the files; None for all.
        first_classes: only the images of so many classes, those with the smallest labels; None for all.
    """

    normalize: bool = False
    augment: bool = False
    per_class: int | None = None
    first_classes: int | None = None

    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    def __post_init__(self) -> None:
        if self.per_class is not None and self.per_class < 1:
            raise ConfigError(f"data.per_class must be at least 1, or left out for all images; got {self.per_class}")
        if self.first_classes is not None and self.first_classes < 2:
            raise ConfigError(
                f"data.first_classes must be at least 2, or left out for all classes; got {self.first_classes}"
            )

    def _examples(
        self, x: Tensor, y: Tensor, num_classes: int, user_names: Sequence[str] = (), digest: str | None = None
    ) -> ArrayExamples:
        if self.first_classes is not None:
            if self.first_classes > num_classes:
                raise DataError(f"data.first_classes asks for {self.first_classes} classes; there are {num_classes}")
            num_classes = self.first_classes
            kept = (y < num_classes).nonzero().flatten()
            x, y = x.index_select(0, kept), y.index_select(0, kept)
            digest = None  # of other images
        if self.per_class is not None:
            kept = first_of_each_class(y, num_classes, self.per_class)
            x, y = x.index_select(0, kept), y.index_select(0, kept)
            digest = None  # of other images
        fill = tuple(-m / s for m, s in zip(self.mean, self.std, strict=True)) if self.normalize else (0.0,)
        return ArrayExamples(
            x,
            y,
            num_classes=num_classes,
            user_names=user_names,
            mean=self.mean if self.normalize else None,
            std=self.std if self.normalize else None,
            augment=CropFlip(fill=fill) if self.augment else None,
            known_digest=digest,
        )
