"""Convolutions for one input size that hold their live taps only."""

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from propfair.errors import ConfigError

Size = tuple[int, int]  # height, width
AxisOrder = tuple[int, int, int, int]

AS_IS: AxisOrder = (0, 1, 2, 3)  # [out, in, kh, kw]
CHANNELS_LAST: AxisOrder = (0, 2, 3, 1)  # [out, kh, kw, in]
TAPS_FIRST: AxisOrder = (2, 3, 1, 0)  # [kh, kw, in, out]


class Place(NamedTuple):
    """Where the stored form of a weight sits in the full one: `stored = full[:, :, rows, cols].permute(order)`."""

    rows: slice
    cols: slice
    order: AxisOrder

    def take(self, full: Tensor) -> Tensor:
        """The stored form."""
        return full[:, :, self.rows, self.cols].permute(self.order).contiguous()

    def put(self, stored: Tensor, full: Tensor | None) -> Tensor:
        """The full form, with the dead taps of `full`; None if there are none."""
        live = stored.detach().permute([self.order.index(axis) for axis in range(4)])
        if full is None:
            return live.contiguous()
        whole = full.detach().clone()
        whole[:, :, self.rows, self.cols] = live
        return whole


class Axis(NamedTuple):
    """A convolution along one axis after its dead taps are cut off."""

    size: int
    out: int
    first: int  # the first live tap
    taps: int  # from the first to the last live one
    before: int  # padding that is left; negative: pixels to skip
    stride: int
    dilation: int

    @property
    def after(self) -> int:
        """Padding that is left behind the last pixel; negative: pixels that are not met."""
        return (self.out - 1) * self.stride + (self.taps - 1) * self.dilation + 1 - self.size - self.before

    @property
    def live(self) -> slice:
        """The live taps."""
        return slice(self.first, self.first + self.taps)

    @property
    def pixels(self) -> slice:
        """What a single tap meets, or what the taps of a single output meet."""
        return slice(-self.before, self.size + self.after, self.stride if self.taps == 1 else self.dilation)

    @property
    def within(self) -> bool:
        """Whether no output meets padding."""
        return self.before <= 0 and self.after <= 0

    @property
    def keeps_size(self) -> bool:
        """Three neighbouring taps, one pixel of padding, as many outputs as pixels."""
        return (self.out, self.taps, self.before, self.stride, self.dilation) == (self.size, 3, 1, 1, 1)

    @property
    def symmetric(self) -> bool:
        """Whether the same padding on both sides gives the same outputs."""
        span = self.size + 2 * self.before - (self.taps - 1) * self.dilation - 1
        return self.before >= 0 and span // self.stride + 1 == self.out


def axes(conv: nn.Conv2d, size: Size) -> tuple[Axis, Axis] | None:
    """Both axes of a convolution without dead taps; None if it has no live tap at all."""
    left, right, top, bottom = conv._reversed_padding_repeated_twice
    found = []
    for axis, (before, after) in enumerate(((top, bottom), (left, right))):
        kernel, stride, dilation = conv.kernel_size[axis], conv.stride[axis], conv.dilation[axis]
        out = (size[axis] + before + after - (kernel - 1) * dilation - 1) // stride + 1
        starts = [output * stride - before for output in range(out)]
        live = [k for k in range(kernel) if any(0 <= start + k * dilation < size[axis] for start in starts)]
        if not live:
            return None
        taps = live[-1] - live[0] + 1
        found.append(Axis(size[axis], out, live[0], taps, before - live[0] * dilation, stride, dilation))
    rows, cols = found
    return rows, cols


class FixedSize(nn.Module):
    """A convolution for one input size. Its weight keeps its name, and its bias is the original one."""

    order: AxisOrder = AS_IS

    def __init__(self, conv: nn.Conv2d, rows: Axis, cols: Axis) -> None:
        super().__init__()
        self.rows, self.cols = rows, cols
        self.place = Place(rows.live, cols.live, self.order)
        self.weight = nn.Parameter(self.place.take(conv.weight.detach()), conv.weight.requires_grad)
        self.bias = conv.bias

    def forward(self, x: Tensor) -> Tensor:
        """[B, in, H, W] -> [B, out, H', W']."""
        if x.shape[2:] != (self.rows.size, self.cols.size):
            raise ConfigError(
                "this network was rewritten for one input size, and a layer of it meets "
                f"{x.shape[2]}x{x.shape[3]} instead of {self.rows.size}x{self.cols.size}. Give it inputs of one size, "
                "or switch the rewriting off."
            )
        return self.compute(x)

    @abstractmethod
    def compute(self, x: Tensor) -> Tensor:
        """The layer itself."""

    def extra_repr(self) -> str:
        """Shown by print(module)."""
        sizes = f"{self.rows.size}x{self.cols.size} -> {self.rows.out}x{self.cols.out}"
        return f"{list(self.weight.shape)}, {sizes}, bias={self.bias is not None}"


class OnePixel(FixedSize):
    """A convolution whose output is one pixel: a linear layer on the pixels it meets."""

    def compute(self, x: Tensor) -> Tensor:
        """One matrix product."""
        pixels = x[:, :, self.rows.pixels, self.cols.pixels].flatten(1)
        return functional.linear(pixels, self.weight.flatten(1), self.bias)[:, :, None, None]


class PixelByPixel(FixedSize):
    """A convolution with one live tap that never meets padding: a linear layer on each pixel."""

    def compute(self, x: Tensor) -> Tensor:
        """One matrix product; the result is laid out channels last."""
        pixels = x[:, :, self.rows.pixels, self.cols.pixels].permute(0, 2, 3, 1)
        return functional.linear(pixels, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


# Three taps with padding on two and on four pixels, as few products: y = outputs @ ((taps @ w) * (pixels @ x)).
# Two: with m0 = w1 (x0 + x1), m1 = (w2 - w1) x1, m2 = (w0 - w1) x0 it is y0 = m0 + m1, y1 = m0 + m2 (Karatsuba).
# Four: Toom-Cook on the points 0, 1, -1, 1/2, -2 and infinity: Winograd's F(4, 3) without the columns of padding.
FEW_PRODUCTS: dict[int, tuple[list[list[float]], list[list[float]], list[list[float]]]] = {
    2: (
        [[1, 1], [0, 1], [1, 0]],
        [[0, 1, 0], [0, -1, 1], [1, -1, 0]],
        [[1, 1, 0], [1, 0, 1]],
    ),
    4: (
        [[-3, -4, 3, 2], [-2, 1, 5, 2], [-2, 5, -1, -2], [2, 1, -2, -1], [1, -2, -1, 2], [2, -3, -4, 3]],
        [
            [1 / 2, 0, 0], [1 / 6, 1 / 6, 1 / 6], [1 / 6, -1 / 6, 1 / 6], [16 / 15, 8 / 15, 4 / 15],
            [1 / 30, -1 / 15, 2 / 15], [0, 0, 1 / 2],
        ],
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 1 / 2, -2, 0], [0, 1, 1, 1 / 4, 4, 0], [0, 1, -1, 1 / 8, -8, 1]],
    ),
}  # fmt: skip


class FewProducts(FixedSize):
    """A 3x3 convolution on a small map as few matrix products.

    On a 2x2 map nine, where 36 taps meet 16 pixels; on a 4x4 map 36, where 144 taps meet 100. Rounding is that of a
    plain sum on 2x2 maps and about four times that on 4x4 maps.
    """

    order = TAPS_FIRST

    def __init__(self, conv: nn.Conv2d, rows: Axis, cols: Axis) -> None:
        super().__init__(conv, rows, cols)
        on_rows, on_cols = (
            [torch.tensor(matrix, dtype=torch.float64) for matrix in FEW_PRODUCTS[axis.size]] for axis in (rows, cols)
        )
        on_both = (torch.kron(r, c).to(conv.weight.dtype) for r, c in zip(on_rows, on_cols, strict=True))
        self.sums = tuple(on_both)  # of pixels, of taps, to outputs; R products

    def compute(self, x: Tensor) -> Tensor:
        """R matrix products; the result is laid out channels last.

        Between the first and the last sum, pixels come before examples: every factor of every product is then one
        block of memory, in the backward pass too.
        """
        of_pixels, of_taps, to_outputs = (m.to(x) for m in self.sums)
        batch, channels_in, height, width = x.shape
        channels_out = self.weight.shape[3]
        pixels = x.permute(2, 3, 0, 1).reshape(height * width, -1)
        summed = (of_pixels @ pixels).view(-1, batch, channels_in)  # [R, B, in]
        taps = (of_taps @ self.weight.view(9, -1)).view(-1, channels_in, channels_out)  # [R, in, out]
        products = torch.bmm(summed, taps)  # [R, B, out]
        outputs = (to_outputs @ products.flatten(1)).view(height, width, batch, channels_out)
        outputs = outputs.permute(2, 0, 1, 3).contiguous()
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.permute(0, 3, 1, 2)

    @staticmethod
    def pays(conv: nn.Conv2d, rows: Axis, cols: Axis, batch_size: int) -> bool:
        """Whether it is possible, and faster than a convolution."""
        if conv.groups != 1 or not (rows.keeps_size and cols.keeps_size):
            return False
        channels = conv.in_channels * conv.out_channels
        if (rows.size, cols.size) == (2, 2):
            return channels >= 64 * 64
        return {rows.size, cols.size} <= {2, 4} and channels >= 128 * 128 and batch_size >= 32


class LiveConv(FixedSize):
    """A convolution without its dead taps."""

    def __init__(self, conv: nn.Conv2d, rows: Axis, cols: Axis) -> None:
        super().__init__(conv, rows, cols)
        self.stride, self.dilation, self.groups = conv.stride, conv.dilation, conv.groups

    def compute(self, x: Tensor) -> Tensor:
        """The convolution; padding that differs between two sides is put on first."""
        return self._convolve(x, self.weight)

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        rows, cols = self.rows, self.cols
        padding = (rows.before, cols.before)
        if not (rows.symmetric and cols.symmetric):
            x = functional.pad(x, (cols.before, cols.after, rows.before, rows.after))
            padding = (0, 0)
        return functional.conv2d(x, weight, self.bias, self.stride, padding, self.dilation, self.groups)


class ChannelsLastConv(LiveConv):
    """A convolution without its dead taps, laid out channels last."""

    order = CHANNELS_LAST

    def compute(self, x: Tensor) -> Tensor:
        """The weight's view is channels last in memory, so that no call has to copy it."""
        return self._convolve(x.contiguous(memory_format=torch.channels_last), self.weight.permute(0, 3, 1, 2))


def replacement(conv: nn.Conv2d, size: Size, channels_last: bool, batch_size: int) -> FixedSize | None:
    """The equal of a convolution for one input size; None where there is nothing to gain."""
    found = axes(conv, size)
    if found is None:
        return None
    rows, cols = found
    one_group = conv.groups == 1
    if one_group and (rows.out, cols.out) == (1, 1):
        return OnePixel(conv, rows, cols)
    if FewProducts.pays(conv, rows, cols, batch_size):
        return FewProducts(conv, rows, cols)
    if channels_last:
        single = (rows.taps, cols.taps) == (1, 1) and rows.within and cols.within
        return PixelByPixel(conv, rows, cols) if one_group and single else ChannelsLastConv(conv, rows, cols)
    return LiveConv(conv, rows, cols) if (rows.taps, cols.taps) != conv.kernel_size else None
