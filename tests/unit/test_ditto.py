import pytest
import torch

from propfair.algorithms import Cohort, Needs, Order, Personal
from propfair.algorithms.ditto import Ditto
from propfair.algorithms.propfair import PropFair
from propfair.errors import ConfigError

COHORT = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])


def test_the_global_model_is_that_of_the_algorithm_underneath() -> None:
    ditto, propfair = Ditto(over="propfair", options={"M": 2.0}), PropFair(M=2.0)
    loss = torch.tensor([0.3, 1.9])
    assert torch.equal(ditto.objective(loss, Order()), propfair.objective(loss, Order()))
    assert ditto.observe(loss, Order()) == propfair.observe(loss, Order())
    assert ditto.needs == Needs.NOTHING
    assert Ditto(over="afl").init(COHORT.share).keys() == {"lambda"}
    assert Ditto(over="afl").needs == Needs.LOSS


def test_personal_models() -> None:
    assert Ditto(lam=0.3, lr=0.01).personal == Personal(lam=0.3, lr=0.01)


def test_presets_of_the_algorithm_underneath() -> None:
    inner = Ditto(over="propfair", options={"preset": "original"}).inner
    assert isinstance(inner, PropFair)
    assert inner.variant == "huber"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"over": "propfiar"}, "Did you mean 'propfair'"),
        ({"over": "propfair", "options": {"m": 2}}, "unknown option"),
        ({"over": "propfair", "options": {"M": -1.0}}, "M must be"),
        ({"lam": -0.1}, "lam must be >= 0"),
        ({"lr": 0.0}, "lr must be"),
        ({"over": "local-only"}, "personal models of its own"),
        ({"over": "ditto"}, "personal models of its own"),
    ],
)
def test_mistakes_are_found_at_once(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Ditto(**options)  # type: ignore[arg-type]
