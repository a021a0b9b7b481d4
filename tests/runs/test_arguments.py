"""Wrong arguments from Python: refused by their names, before anything is read or trained."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import propfair
from propfair import EarlyStopping, FedAvg, LocalTraining, Metric, PropFair, PropFairLoss, Rounds
from propfair.errors import ConfigError


def clients() -> dict[str, tuple[Tensor, Tensor]]:
    return {name: (torch.randn(20, 4), torch.arange(20) % 3) for name in ("ann", "bob")}


def train(algorithm: Any = "fedavg", **options: Any) -> propfair.Result:
    return propfair.train(nn.Linear(4, 3), clients(), algorithm, **{"rounds": 1, **options})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": 2.5}, "rounds must be int; got rounds=2.5"),
        ({"rounds": "3"}, "rounds must be int; got rounds='3'"),
        ({"lr": "0.1"}, "lr must be float; got lr='0.1'"),
        ({"batch_size": 2.5}, "batch_size must be int; got batch_size=2.5"),
        ({"participation": "0.5"}, "participation must be float; got participation='0.5'"),
        ({"seed": -1}, "seed must be a whole number of at least 0; got seed=-1"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0; got seed=1.5"),
        ({"data_seed": "a"}, "data_seed must be a whole number of at least 0; got data_seed='a'"),
        ({"engine": None}, "engine must be a name"),
        ({"local": {"lr": 0.1}}, "local must be a LocalTraining; got dict"),
        ({"server": {"participation": 0.1}}, "server must be a Rounds; got dict"),
        ({"metrics": "f1"}, r"metrics must be a list; got 'f1'. Try metrics=\['f1'\]"),
        ({"metrics": [Metric("two\nlines", print)]}, "the name of a metric must be a text in one line"),
        ({"loss": "mse"}, "loss must be a function of .*got 'mse'. Try torch.nn.CrossEntropyLoss"),
        ({"loss": nn.CrossEntropyLoss}, r"loss must be a function of .*Write CrossEntropyLoss\(\)"),
        ({"callbacks": EarlyStopping()}, "callbacks must be a list; got EarlyStopping"),
        ({"callbacks": [print]}, "callbacks must be derived from propfair.Callback.*after_round="),
    ],
)
def test_wrong_arguments_of_train_are_told_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train(**options)


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (PropFair, "algorithm must be a name, or an object such as PropFair.*got the class PropFair"),
        (None, "algorithm must be a name, or an object.*got None"),
        (FedAvg(weighting="sample"), "unknown weighting 'sample'. Did you mean 'samples'"),  # type: ignore[arg-type]
        (PropFair(M="atuo"), "M must be .*got M='atuo'"),  # type: ignore[arg-type]
    ],
)
def test_wrong_algorithms_are_not_trained(algorithm: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train(algorithm)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Rounds(optimizer="Adam"), "unknown optimizer 'Adam'. Did you mean 'adam'"),  # type: ignore[arg-type]
        (lambda: Rounds(sampling="size"), "unknown sampling 'size'"),  # type: ignore[arg-type]
        (lambda: Rounds(loss_source="val"), "unknown loss_source 'val'"),  # type: ignore[arg-type]
        (lambda: Rounds(lr_schedule=3), "lr_schedule must be .*got lr_schedule=3"),  # type: ignore[arg-type]
        (lambda: LocalTraining(optimizer=torch.optim.Adam), "optimizer must be str"),  # type: ignore[arg-type]
        (lambda: LocalTraining(precision="bf15"), "unknown precision 'bf15'"),  # type: ignore[arg-type]
    ],
)
def test_a_name_that_is_no_choice_is_not_taken_for_another(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_numbers_of_numpy_and_devices_of_torch_are_taken() -> None:
    result = train(rounds=np.int64(1), lr=np.float32(0.1), seed=np.int64(3), device=torch.device("cpu"))
    assert result.state == "finished"


def test_the_one_line_loss_says_what_it_takes() -> None:
    with pytest.raises(ConfigError, match=r"write CrossEntropyLoss\(\), not CrossEntropyLoss"):
        PropFairLoss(nn.CrossEntropyLoss)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"M must be a positive number.*got M=auto"):
        PropFairLoss(nn.CrossEntropyLoss(), M="auto")  # type: ignore[arg-type]
