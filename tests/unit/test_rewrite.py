import copy
import itertools
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from propfair.errors import ConfigError
from propfair.models import make_model
from propfair.rewrite import Rewritten, rewrite
from propfair.rewrite.layers import FEW_PRODUCTS, ChannelsLastConv, FewProducts, LiveConv, OnePixel, PixelByPixel


def resnet(width: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return make_model("resnet18-gn", {"width": width}).build((3, 32, 32), 10)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gradients(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Output, gradient of the input and gradients of the parameters, against a fixed random direction."""
    x = x.clone().requires_grad_()
    output = module(x)
    named = dict(module.named_parameters())
    found = torch.autograd.grad(output, [x, *named.values()], noise(*output.shape, seed=1, dtype=output.dtype))
    return output.detach(), found[0], dict(zip(named, found[1:], strict=True))


def assert_equal(module: nn.Module, rewritten: Rewritten, x: Tensor, tolerance: float = 1e-10) -> None:
    output, of_input, of_params = gradients(module, x)
    found, found_input, found_params = gradients(rewritten.module, x)
    torch.testing.assert_close(found, output, rtol=0, atol=tolerance)
    torch.testing.assert_close(found_input, of_input, rtol=0, atol=tolerance)
    live = rewritten.live(of_params)
    assert list(found_params) == list(live)
    for name, gradient in found_params.items():
        torch.testing.assert_close(gradient, live[name], rtol=0, atol=tolerance)
    assert sum(g.count_nonzero() for g in of_params.values()) <= sum(g.numel() for g in live.values())


GEOMETRIES = [
    (size, kernel, stride, padding, dilation, groups)
    for size, kernel, stride, padding, dilation, groups in itertools.product(
        (1, 2, 3, 5), (1, 3, 5), (1, 2, 3), (0, 1, 2, 4), (1, 2), (1, 2)
    )
    if size + 2 * padding >= (kernel - 1) * dilation + 1
]


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_of_every_geometry_are_equal(channels_last: bool) -> None:
    for number, (size, kernel, stride, padding, dilation, groups) in enumerate(GEOMETRIES[channels_last::3]):
        conv = nn.Conv2d(
            4, 6, kernel, stride, padding, dilation, groups, bias=number % 2 == 0, dtype=torch.float64
        )  # fmt: skip
        rewritten = rewrite(conv, (4, size, size), dtype=torch.float64, channels_last=channels_last)
        assert not any("left alone" in change or "not channels" in change for change in rewritten.changes)
        assert_equal(conv, rewritten, noise(3, 4, size, size))


@pytest.mark.parametrize("padding", ["same", "valid", (2, 0)])
def test_padding_by_name_and_by_axis(padding: str | tuple[int, int]) -> None:
    conv = nn.Conv2d(3, 4, (5, 3), padding=padding, dtype=torch.float64)
    assert_equal(conv, rewrite(conv, (3, 5, 3), dtype=torch.float64), noise(2, 3, 5, 3))


def test_kinds_of_layers() -> None:
    def kind(conv: nn.Conv2d, size: int, channels_last: bool = False, batch_size: int = 1) -> type:
        shape = (conv.in_channels, size, size)
        return type(rewrite(conv, shape, channels_last=channels_last, batch_size=batch_size).module)

    wide = nn.Conv2d(128, 128, 3, padding=1)
    assert kind(wide, 1) is OnePixel
    assert kind(wide, 2) is FewProducts
    assert kind(wide, 3) is nn.Conv2d
    assert kind(wide, 3, channels_last=True) is ChannelsLastConv
    assert kind(wide, 4) is nn.Conv2d
    assert kind(wide, 4, batch_size=64) is FewProducts
    assert kind(nn.Conv2d(4, 4, 3, padding=1), 2) is nn.Conv2d
    assert kind(nn.Conv2d(4, 4, 7, padding=3), 2) is LiveConv
    assert kind(nn.Conv2d(4, 8, 1, stride=2), 4) is nn.Conv2d
    assert kind(nn.Conv2d(4, 8, 1, stride=2), 4, channels_last=True) is PixelByPixel


@pytest.mark.parametrize("size", FEW_PRODUCTS)
def test_few_products_along_one_axis(size: int) -> None:
    pixels, taps, outputs = (torch.tensor(rows, dtype=torch.float64) for rows in FEW_PRODUCTS[size])
    x, w = noise(size), noise(3, seed=1)
    expected = functional.conv1d(x[None, None], w[None, None], padding=1)[0, 0]
    torch.testing.assert_close(outputs @ ((taps @ w) * (pixels @ x)), expected, rtol=0, atol=1e-14)
    assert len(pixels) < 3 * size - 2  # the taps that meet a pixel


@pytest.mark.parametrize("size", [(2, 2), (4, 4), (2, 4)])
@pytest.mark.parametrize("bias", [False, True])
def test_few_products_are_equal(size: tuple[int, int], bias: bool) -> None:
    conv = nn.Conv2d(128, 128, 3, padding=1, bias=bias, dtype=torch.float64)
    rewritten = rewrite(conv, (128, *size), dtype=torch.float64, batch_size=32)
    assert isinstance(rewritten.module, FewProducts)
    assert_equal(conv, rewritten, noise(5, 128, *size))


def test_rounding_of_few_products() -> None:
    for size in (2, 4):
        conv = nn.Conv2d(128, 128, 3, padding=1)
        x = noise(8, 128, size, size, dtype=torch.float32)
        with torch.no_grad():
            exact = copy.deepcopy(conv).double()(x.double())
            found = rewrite(conv, (128, size, size), batch_size=32).module(x)
        assert float((found - exact).norm() / exact.norm()) < 5e-6


def test_dead_taps_are_those_without_gradient() -> None:
    """The entry of a stage: stride 2 from 2x2 to one pixel meets four of nine taps."""
    conv = nn.Conv2d(3, 5, 3, stride=2, padding=1)
    rewritten = rewrite(conv, (3, 2, 2))
    assert rewritten.num_dead == 3 * 5 * (9 - 4)
    _, _, full = gradients(conv, noise(4, 3, 2, 2, dtype=torch.float32))
    alive = full["weight"] != 0
    assert int((~alive).sum()) == rewritten.num_dead
    marked = rewritten.export({name: torch.full_like(p, 7.0) for name, p in rewritten.module.named_parameters()})
    assert torch.equal(marked["weight"] == 7.0, alive)
    assert torch.equal(marked["weight"][~alive], conv.weight[~alive])


def test_resnet_of_the_paper() -> None:
    module = resnet()
    rewritten = rewrite(module, (3, 32, 32), channels_last=True, batch_size=64)
    alive = sum(p.numel() for p in rewritten.module.parameters())
    assert sum(p.numel() for p in module.parameters()) == 11_181_642
    assert alive == 11_181_642 - rewritten.num_dead
    assert 4_230_000 < alive < 4_235_000
    assert not rewritten.exact_with_weight_decay
    assert [n for n, _ in rewritten.module.named_parameters()] == [n for n, _ in module.named_parameters()]
    exported = rewritten.export(rewritten.module.state_dict())
    assert list(exported) == list(module.state_dict())
    for name, value in module.state_dict().items():
        assert torch.equal(exported[name], value)


def losses(network: nn.Module, dtype: torch.dtype, num_steps: int) -> list[float]:
    x, y = noise(32, 3, 32, 32).to(dtype), torch.arange(32) % 10
    optimizer = torch.optim.SGD(network.parameters(), lr=0.003)
    found = []
    for step in range(num_steps):
        batch = slice(8 * (step % 4), 8 * (step % 4) + 8)
        loss = functional.cross_entropy(network(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(loss.item())
    return found


def test_same_losses_over_twenty_steps() -> None:
    """In float64, because in float32 a ReLU that flips at rounding sends even the plain network another way."""
    module = resnet(width=32).double()
    rewritten = rewrite(module, (3, 32, 32), dtype=torch.float64, channels_last=True, batch_size=64)
    before = copy.deepcopy(module.state_dict())
    plain, fast = (losses(network, torch.float64, 20) for network in (module, rewritten.module))
    assert plain[-1] < 0.8 * plain[0]
    assert fast == pytest.approx(plain, rel=0, abs=1e-9)
    exported = rewritten.export(rewritten.module.state_dict())
    for name, value in module.state_dict().items():
        torch.testing.assert_close(exported[name], value, rtol=0, atol=1e-9)
    last = "layer4.1.conv2.weight"
    same = exported[last] == before[last]
    assert torch.equal(same, module.state_dict()[last] == before[last])
    assert 8 / 9 <= float(same.double().mean()) < 1


@pytest.mark.parametrize("channels_last", [False, True])
def test_same_losses_in_float32(channels_last: bool) -> None:
    module = resnet()
    rewritten = rewrite(module, (3, 32, 32), channels_last=channels_last, batch_size=64)
    plain, fast = (losses(network, torch.float32, 4) for network in (module, rewritten.module))
    assert fast == pytest.approx(plain, rel=0, abs=1e-5)


def test_load_takes_dead_taps_too() -> None:
    rewritten = rewrite(nn.Conv2d(2, 2, 3, padding=1), (2, 1, 1))
    other = nn.Conv2d(2, 2, 3, padding=1)
    rewritten.load(other.state_dict())
    x = noise(3, 2, 1, 1, dtype=torch.float32)
    torch.testing.assert_close(rewritten.module(x), other(x))
    exported = rewritten.export(rewritten.module.state_dict())
    assert torch.equal(exported["weight"], other.weight)
    assert torch.equal(exported["bias"], other.bias)  # type: ignore[arg-type]


def test_module_and_generators_stay_untouched() -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(),
        nn.Conv2d(4, 4, 3, padding=1), nn.Flatten(),
    )  # fmt: skip
    kinds = [type(m) for m in module.modules()]
    before, rng = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    rewritten = rewrite(module, (2, 2, 2), channels_last=True)
    assert rewritten.num_dead == 4 * 4 * 8
    assert torch.equal(torch.get_rng_state(), rng)
    assert kinds == [type(m) for m in module.modules()]
    assert module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    with torch.no_grad():
        for parameter in rewritten.module.parameters():
            parameter.zero_()
    assert all(p.abs().sum() > 0 for name, p in module.named_parameters() if name == "0.weight")
    assert all(not m._forward_pre_hooks for m in module.modules())


class TwoSizes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        z: Tensor = self.conv(functional.interpolate(x, scale_factor=2))
        return y.sum() + z.sum()


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.conv.weight, padding=1)


def _circular() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"))


def _hooked() -> nn.Module:
    module = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1))
    module[0].register_forward_hook(lambda *_: None)
    return module


def _shared_weight() -> nn.Module:
    module = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1))
    module[1].weight = module[0].weight
    return module


def _shared_module() -> nn.Module:
    conv = nn.Conv2d(2, 2, 3, padding=1)
    return nn.Sequential(conv, conv)


def _parametrised() -> nn.Module:
    module = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1))
    nn.utils.parametrizations.weight_norm(module[0])
    return module


@pytest.mark.parametrize("make", [TwoSizes, Unused, _circular, _hooked, _shared_weight, _shared_module, _parametrised])
def test_left_alone(make: type[nn.Module]) -> None:
    module = make()
    rewritten = rewrite(module, (2, 1, 1))
    assert rewritten.num_dead == 0
    assert rewritten.changes == ()
    assert [type(m) for m in rewritten.module.modules()] == [type(m) for m in module.modules()]
    assert list(rewritten.export(rewritten.module.state_dict())) == list(module.state_dict())


class Views(nn.Module):
    """`view` needs contiguous tensors, and channels last breaks it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return y.view(len(x), -1)


def test_channels_last_gives_way_and_says_so() -> None:
    module = Views()
    rewritten = rewrite(module, (2, 2, 2), channels_last=True)
    assert rewritten.changes[0].startswith("not channels last: RuntimeError: view")
    assert rewritten.num_dead == 4 * 4 * (25 - 9)
    x = noise(3, 2, 2, 2, dtype=torch.float32)
    torch.testing.assert_close(rewritten.module(x), module(x))


def test_a_shape_that_does_not_fit_is_left_alone_and_says_so() -> None:
    rewritten = rewrite(nn.Sequential(nn.Conv2d(2, 2, 3)), (5, 4, 4))
    assert rewritten.changes[0].startswith("left alone: inputs [2, 5, 4, 4] do not fit")


def test_values_in_the_forward_pass_are_no_obstacle() -> None:
    class Looks(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            if float(x.sum()) > 1e9:
                return x
            y: Tensor = self[0](x)
            return y

    assert rewrite(Looks(nn.Conv2d(2, 2, 3, padding=1)), (2, 1, 1)).num_dead == 32


def test_modules_without_convolutions_are_not_run() -> None:
    module = nn.Embedding(5, 3)
    rewritten = rewrite(module, (80,))
    assert type(rewritten.module) is nn.Embedding
    assert rewritten.changes == ()


def test_another_size_is_an_error() -> None:
    rewritten = rewrite(nn.Conv2d(2, 2, 3, padding=1), (2, 1, 1))
    with pytest.raises(ConfigError, match=r"rewritten for one input size.*2x2 instead of 1x1"):
        rewritten.module(torch.zeros(1, 2, 2, 2))


def test_frozen_weights_stay_frozen() -> None:
    conv = nn.Conv2d(2, 2, 3, padding=1)
    conv.weight.requires_grad_(False)
    module = rewrite(conv, (2, 1, 1)).module
    assert {name: p.requires_grad for name, p in module.named_parameters()} == {"weight": False, "bias": True}


def test_rewritten_modules_pickle_and_vectorise() -> None:
    conv = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 3, 3, stride=2, padding=1))
    module = rewrite(conv, (64, 2, 2), channels_last=True).module
    x = noise(2, 64, 2, 2, dtype=torch.float32)
    again = pickle.loads(pickle.dumps(module))
    assert torch.equal(again(x), module(x))
    params = {name: torch.stack([p.detach(), 2 * p.detach()]) for name, p in module.named_parameters()}
    both = torch.vmap(lambda p: torch.func.functional_call(module, p, (x,)))(params)
    torch.testing.assert_close(both[0], module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inplace", [False, True])
def test_pool_before_relu_has_the_same_bits(inplace: bool) -> None:
    """Windows with ties, with zeros and with negative numbers only, and with nan."""
    module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(inplace), nn.MaxPool2d(3, 2, 1))
    rewritten = rewrite(module, (1, 9, 9))
    assert rewritten.changes == ("1: max-pool before ReLU",)
    assert [type(m) for m in rewritten.module.children()] == [nn.Conv2d, nn.MaxPool2d, nn.ReLU]
    x = noise(40, 1, 9, 9, dtype=torch.float32).round()
    x[0, 0, 0, 0] = torch.nan
    for candidate in (module, rewritten.module):
        with torch.no_grad():
            for parameter in candidate.parameters():
                parameter.copy_(torch.ones_like(parameter) if parameter.ndim > 1 else torch.tensor([0.0, -1.0]))
    plain, fast = gradients(module, x), gradients(rewritten.module, x)
    assert torch.equal(plain[0].nan_to_num(7), fast[0].nan_to_num(7))
    assert torch.equal(plain[1], fast[1])
    assert (plain[0][1:] == 0).any()


def test_pool_before_relu_needs_a_plain_pair() -> None:
    for pool in (nn.MaxPool2d(2, return_indices=True), nn.AvgPool2d(2)):
        assert rewrite(nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), pool), (1, 4, 4)).changes == ()
