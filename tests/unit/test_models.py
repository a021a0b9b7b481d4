"""Networks: sizes, shapes, and modules of the user."""

import pytest
import torch
from torch import nn

from propfair.errors import ConfigError
from propfair.models import MODELS, make_model


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn", "cnn-stride2"])
def test_small_models_fit_every_image_size(name: str, shape: tuple[int, ...]) -> None:
    module = MODELS.make(name).build(shape, 7)
    assert module(torch.rand(3, *shape)).shape == (3, 7)


def test_parameter_counts() -> None:
    assert count(MODELS.make("cnn").build((1, 28, 28), 62)) == 1_206_590
    assert count(MODELS.make("cnn").build((3, 32, 32), 10)) == 1_626_442
    assert count(MODELS.make("cnn-stride2").build((3, 32, 32), 10)) == 136_874
    assert count(MODELS.make("cnn-stride2").build((3, 31, 31), 10)) == 136_874, "halves are rounded up"
    assert count(MODELS.make("logistic").build((60,), 10)) == 610
    assert count(MODELS.make("mlp", {"hidden": [32, 16]}).build((60,), 10)) == 61 * 32 + 33 * 16 + 17 * 10


@pytest.mark.parametrize(
    ("name", "options", "classes", "expected"),
    [
        ("resnet18-gn", {}, 10, 11_181_642),
        ("resnet18-gn", {}, 100, 11_227_812),
        ("resnet18-gn", {}, 200, 11_279_112),
        ("resnet18-gn", {"stem": "cifar"}, 10, 11_181_642 - 3 * 64 * (49 - 9)),
        ("resnet10-gn", {}, 10, 4_910_922),
        ("resnet20-gn", {}, 10, 272_474),
    ],
)
def test_residual_networks(name: str, options: dict[str, object], classes: int, expected: int) -> None:
    module = MODELS.make(name, options).build((3, 32, 32), classes)
    assert count(module) == expected
    assert module(torch.rand(2, 3, 32, 32)).shape == (2, classes)
    assert module(torch.rand(1, 3, 64, 64)).shape == (1, classes)
    assert not list(module.buffers()), "nothing beside the parameters to average"


def test_the_stem_decides_the_size_of_the_last_maps() -> None:
    def last_map(stem: str) -> torch.Size:
        module = MODELS.make("resnet18-gn", {"stem": stem}).build((3, 32, 32), 10)
        seen: list[torch.Size] = []
        module.get_submodule("avgpool").register_forward_pre_hook(lambda _, x: seen.append(x[0].shape))
        module(torch.rand(1, 3, 32, 32))
        return seen[0]

    assert last_map("imagenet") == (1, 512, 1, 1)
    assert last_map("cifar") == (1, 512, 4, 4)


def test_residual_networks_start_as_the_authors() -> None:
    module = MODELS.make("resnet18-gn").build((3, 32, 32), 10)
    weight = module.get_parameter("layer3.0.conv1.weight").detach()
    assert float(weight.std()) == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.02), "Kaiming normal, fan out"
    assert module.get_parameter("bn1.weight").eq(1).all()
    assert module.get_parameter("layer1.0.bn2.bias").eq(0).all()


@pytest.mark.parametrize(("num_layers", "expected"), [(1, 293_584), (2, 819_920)])
def test_lstm(num_layers: int, expected: int) -> None:
    module = MODELS.make("lstm", {"num_layers": num_layers}).build((80,), 80)
    assert count(module) == expected
    symbols = torch.randint(0, 80, (3, 80), generator=torch.Generator().manual_seed(0))
    scores = module(symbols)
    assert scores.shape == (3, 80)
    changed = symbols.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 80
    assert not module(changed)[0].equal(scores[0]), "the first symbol still matters at the last step"
    assert module.get_parameter("embedding.weight")[0].eq(0).all()


def test_pooling_before_relu_is_the_same_function() -> None:
    module = MODELS.make("cnn").build((1, 8, 8), 3)
    assert isinstance(module, nn.Sequential)
    x = torch.randn(2, 1, 8, 8)
    first = module[:3](x)
    assert module[4](module[3](first)).equal(module[3](module[4](first)))


def test_weights_follow_the_seed() -> None:
    def weights(seed: int) -> torch.Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return nn.utils.parameters_to_vector(MODELS.make("cnn").build((1, 8, 8), 3).parameters())

    assert weights(0).equal(weights(0))
    assert not weights(0).equal(weights(1))


def test_module_of_the_user_by_import_path() -> None:
    linear = make_model("torch.nn:Linear", {"in_features": 4, "out_features": 3}).build((4,), 3)
    assert linear(torch.rand(2, 4)).shape == (2, 3)
    mine = make_model(f"{__name__}:Mine", {"width": 5}).build((4,), 3)
    assert mine(torch.rand(2, 4)).shape == (2, 3)


class Mine(nn.Sequential):
    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__(nn.Linear(4, width), nn.Linear(width, num_classes))


def never_called() -> nn.Module:
    raise AssertionError("called before anybody asked what it is")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("no.such.package:Net", {}, "can't be imported"),
        ("torch.nn:NoSuchNet", {}, "can't be imported"),
        (":Net", {}, "can't be imported"),
        ("torch.nn:Linear", {"wrong": 1}, "can't be called"),
        ("torch.nn:Linear", {"in_features": -1, "out_features": 3}, "can't be called with.*RuntimeError"),
        ("fractions:Fraction", {}, "must be a class derived from torch.nn.Module; it is the class Fraction"),
        ("os:system", {"command": "exit 1"}, "it is a builtin_function_or_method and was not called"),
        (f"{__name__}:never_called", {}, "it is a function and was not called"),
        ("math:pi", {}, "it is a float and was not called"),
        ("cnm", {}, "Did you mean 'cnn'"),
        ("mlp", {"hidden": []}, "hidden must hold widths"),
        ("cnn", {"channels": [0, 1]}, "must be >= 1"),
        ("cnn", {"dropout": 0.5}, "dropout must be"),
        ("cnn-stride2", {"channels": []}, "channels must be"),
        ("cnn-stride2", {"kernel": 4}, "kernel must be odd"),
        ("resnet18-gn", {"groups": 3}, "multiple of groups"),
        ("resnet18-gn", {"stem": "5x5"}, "'imagenet' | 'cifar'"),
        ("lstm", {"hidden": 0}, "hidden must be >= 1"),
    ],
)
def test_bad_models(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_model(name, options).build((4,), 3)


@pytest.mark.parametrize("name", ["cnn", "resnet18-gn"])
@pytest.mark.parametrize("shape", [(60,), (1, 4, 4)])
def test_some_need_images(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="needs images"):
        MODELS.make(name).build(shape, 3)


def test_lstm_needs_rows_of_symbols() -> None:
    with pytest.raises(ConfigError, match="needs rows of symbols"):
        MODELS.make("lstm").build((1, 8, 8), 3)


def test_dropout_is_off_when_evaluating() -> None:
    module = MODELS.make("cnn", {"dropout": 0.25}).build((1, 8, 8), 3)
    x = torch.rand(4, 1, 8, 8)
    assert not module(x).equal(module(x))
    assert module.eval()(x).equal(module(x))
