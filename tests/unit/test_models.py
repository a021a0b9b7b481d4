"""Networks: sizes, shapes, and modules of the user."""

import pytest
import torch
from torch import nn

from propfair.errors import ConfigError
from propfair.models import MODELS, make_model


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("name", ["logistic", "mlp", "cnn"])
def test_small_models_fit_every_image_size(name: str, shape: tuple[int, ...]) -> None:
    module = MODELS.make(name).build(shape, 7)
    assert module(torch.rand(3, *shape)).shape == (3, 7)


def test_parameter_counts() -> None:
    assert count(MODELS.make("cnn").build((1, 28, 28), 62)) == 1_206_590
    assert count(MODELS.make("cnn").build((3, 32, 32), 10)) == 1_626_442
    assert count(MODELS.make("logistic").build((60,), 10)) == 610
    assert count(MODELS.make("mlp", {"hidden": [32, 16]}).build((60,), 10)) == 61 * 32 + 33 * 16 + 17 * 10


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


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("no.such.package:Net", {}, "can't be imported"),
        ("torch.nn:NoSuchNet", {}, "can't be imported"),
        (":Net", {}, "can't be imported"),
        ("torch.nn:Linear", {"wrong": 1}, "can't be called"),
        ("fractions:Fraction", {}, "must give a torch.nn.Module; got Fraction"),
        ("cnm", {}, "Did you mean 'cnn'"),
        ("mlp", {"hidden": []}, "hidden must hold widths"),
        ("cnn", {"channels": [0, 1]}, "must be >= 1"),
        ("cnn", {"dropout": 0.5}, "dropout must be"),
    ],
)
def test_bad_models(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_model(name, options).build((4,), 3)


@pytest.mark.parametrize("shape", [(60,), (1, 4, 4)])
def test_cnn_needs_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="needs images"):
        MODELS.make("cnn").build(shape, 3)
