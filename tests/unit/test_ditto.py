import pytest
import torch
from torch import nn

import propfair
from propfair.algorithms import ALGORITHMS, Cohort, Needs, Order, Personal
from propfair.algorithms.ditto import Ditto
from propfair.algorithms.propfair import PropFair
from propfair.core.client import observe, transformed
from propfair.errors import ConfigError

COHORT = Cohort.of(share=[0.5, 0.3, 0.2], loss=[0.5, 1.0, 2.0])


def test_the_global_model_is_that_of_the_algorithm_underneath() -> None:
    ditto, propfair = (
        Ditto(over="propfair", options={"preset": "paper"}),
        ALGORITHMS.make("propfair", {"preset": "paper"}),
    )
    loss = torch.tensor([0.3, 1.9])
    assert torch.equal(transformed(ditto, loss, Order()), transformed(propfair, loss, Order()))
    assert observe(ditto, loss, Order()) == observe(propfair, loss, Order())
    assert Ditto(over="term").objective is None
    assert Ditto(over="term").reduce is None
    assert Ditto(over="term").order is None
    assert Ditto(over="afl", options={"average_iterates": True}).average_iterates
    assert Ditto(over="fedfv", options={"tau": 3}).remember == 3
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
        ({"lam": (0.1, -1.0)}, "lam must be >= 0"),
        ({"lam": ()}, "lam must be >= 0"),
        ({"lr": 0.0}, "lr must be"),
        ({"over": "local-only"}, "personal models of its own"),
        ({"over": "ditto"}, "personal models of its own"),
    ],
)
def test_mistakes_are_found_at_once(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Ditto(**options)  # type: ignore[arg-type]


def regression(slope: float, scale: float = 1.0) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    x = torch.linspace(-1, 1, 12).unsqueeze(1) * scale
    return {"train": (x, x * slope), "validation": (x, x * slope), "test": (x, x * slope)}


def squared(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().sum(1)


def line() -> nn.Module:
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    return module


@pytest.mark.parametrize("engine", ["inprocess", "vectorized"])
def test_each_client_chooses_lam_on_its_validation_examples(engine: str) -> None:
    clients = [regression(1.0), regression(1.0), regression(-1.0)]
    clients[2]["validation"] = regression(1.0)["test"]  # client 2 is validated on what the others train on
    options = {"rounds": 8, "lr": 0.3, "loss": squared, "engine": engine}
    chosen = propfair.train(line(), clients, Ditto(lam=(0.0, 5.0)), **options)  # type: ignore[arg-type]
    records = chosen.to_arrow().to_pylist()
    lam = {(r["round"], r["client"]): r["value"] for r in records if r["metric"] == "lam"}
    assert lam.keys() == {(number, client) for number in range(1, 9) for client in range(3)}
    assert [lam[8, client] for client in range(3)] == [0.0, 0.0, 5.0]
    alone, near = (propfair.train(line(), clients, Ditto(lam=lam), **options) for lam in (0.0, 5.0))  # type: ignore[arg-type]
    assert chosen.evaluation("validation").loss[0] == alone.evaluation("validation").loss[0]
    assert chosen.evaluation("validation").loss[2] <= near.evaluation("validation").loss[2] + 1e-9
    assert chosen.evaluation("validation").loss[2] < alone.evaluation("validation").loss[2]


def test_lam_can_only_be_chosen_where_there_are_validation_examples() -> None:
    clients = [(torch.zeros(5, 1), torch.zeros(5, 1))] * 2
    with pytest.raises(ConfigError, match=r"client 0 \(0\) has none. Set data.split.validation"):
        propfair.train(line(), clients, Ditto(lam=(0.1, 1.0)), loss=squared, rounds=1)


def test_a_pull_that_overshoots_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lr \* lam is below 2; got lr=0.5, lam=4.0"):
        propfair.train(line(), [regression(1.0)], Ditto(lam=4.0), loss=squared, rounds=1, lr=0.5)


@pytest.mark.parametrize("engine", ["inprocess", "vectorized"])
def test_a_personal_model_that_diverges_stays_as_it_was(engine: str) -> None:
    clients = [regression(1.0), regression(1.0, scale=1e20)]
    result = propfair.train(line(), clients, Ditto(), loss=squared, rounds=3, engine=engine, lr=0.1)
    assert result.num_dropped == 3
    assert not result.personal["test"].loss.isnan().any()
    assert result.personal["test"].loss[0] < 1
