"""The library call, and what it refuses before training."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import propfair
from propfair.core.evaluation import Evaluation
from propfair.errors import PropFairError, PropFairWarning


def clients(number: int = 3, size: int = 30) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = torch.Generator().manual_seed(0)
    data = []
    for _ in range(number):
        y = torch.randint(3, (size,), generator=rng)
        data.append((torch.randn(size, 4, generator=rng) + y[:, None], y))
    return data


def test_own_model_own_clients_and_tables_of_the_result() -> None:
    result = propfair.train(nn.Linear(4, 3), clients(), "propfair", rounds=5, lr=0.5, eval_every=1)
    assert result.state == "finished"
    assert result.accuracy.shape == (3,)
    assert 0 <= result.summary().worst <= result.summary().mean <= 1
    frame = result.to_pandas()
    assert list(frame.columns) == ["run", "round", "client", "split", "metric", "value"]
    assert set(frame["round"]) == {1, 2, 3, 4, 5}
    assert result.to_polars().shape == (len(frame), 6)
    assert result.to_arrow().num_rows == len(frame)
    weights = frame[(frame.metric == "weight") & (frame["round"] == 1)]
    assert weights.value.sum() == pytest.approx(1)


def test_training_learns_and_the_model_is_the_callers_own() -> None:
    model = nn.Linear(4, 3)
    result = propfair.train(model, clients(), propfair.PropFair(M=3.0), rounds=30, lr=0.5, eval_every=30)
    assert result.model is model
    assert result.summary().mean > 0.6


def test_named_clients_torch_data_sets_and_ready_made_splits() -> None:
    data = clients()
    result = propfair.train(
        nn.Linear(4, 3),
        {"ann": TensorDataset(*data[0]), "bob": {"train": data[1], "test": data[2]}},
        "fedavg", rounds=1,
    )  # fmt: skip
    assert result.clients == ("ann", "bob")
    assert isinstance(result.evaluation("test"), Evaluation)


def test_torch_criteria_and_plain_functions_as_loss() -> None:
    first, second = (nn.Linear(4, 3) for _ in range(2))
    second.load_state_dict(first.state_dict())
    propfair.train(first, clients(), "fedavg", rounds=2)
    propfair.train(second, clients(), "fedavg", rounds=2, loss=nn.CrossEntropyLoss())
    assert torch.equal(first.weight, second.weight)


def test_regression_has_losses_and_no_accuracy() -> None:
    data = [(x, x.sum(1, keepdim=True)) for x, _ in clients()]
    result = propfair.train(nn.Linear(4, 1), data, "fedavg", rounds=20, lr=0.1, loss=nn.MSELoss())
    assert result.accuracy.isnan().all()
    assert float(result.evaluation("test").loss.mean()) < 0.5


def spoiled(change: Callable[[torch.Tensor, torch.Tensor], Any]) -> list[Any]:
    data: list[Any] = list(clients())
    data[1] = change(*data[1])
    return data


@pytest.mark.parametrize(
    ("model", "data", "options", "said"),
    [
        (nn.Linear(4, 2), clients(), {}, r"output must be \[batch, 3\] for 3 classes; got \[2, 2\]"),
        (nn.Linear(5, 3), clients(), {}, r"does not take inputs of shape \(4,\)"),
        (nn.Linear(4, 3), spoiled(lambda x, y: (x[:0], y[:0])), {}, "1"),
        (nn.Linear(4, 3), spoiled(lambda x, y: (x, y[:5])), {}, "client 1"),
        (nn.Linear(4, 3), spoiled(lambda x, y: (torch.where(x > 0, torch.nan, x), y)), {}, "nan"),
        (nn.Linear(4, 3), spoiled(lambda x, y: (x, y - 1)), {}, "label"),
        (nn.Linear(4, 3), clients(), {"num_classes": 2}, "label"),
        (nn.Linear(4, 3), [], {}, "no clients"),
        (nn.Linear(4, 3), clients(), {"rounds": 0}, "rounds must be at least 1"),
        (nn.Linear(4, 3), clients(), {"rounds": -5}, "rounds must be at least 1"),
        (nn.Linear(4, 3), clients(), {"batch_size": -1}, "batch_size must be at least 1"),
        (nn.Linear(4, 3), clients(), {"lr": float("nan")}, "lr must be"),
        (nn.Linear(4, 3), clients(), {"algorithm": "probfair"}, "Did you mean 'propfair'"),
        (nn.Linear(4, 3), clients(), {"participation": 7}, "only 3"),
        (nn.Linear(4, 3), clients(), {"device": "tpu"}, "device 'tpu' can't be used here"),
        (nn.Linear(4, 3), clients(), {"loss": lambda o, t: nn.functional.cross_entropy(o, t)}, "reduction='none'"),
        ("resnet", clients(), {}, "model must be a torch.nn.Module; got str"),
    ],
)
def test_bad_input_is_refused_before_training(model: Any, data: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PropFairError, match=said):
        propfair.train(model, data, **{"rounds": 1, **options})


def test_a_client_that_diverges_is_shown_and_recorded() -> None:
    data = clients()
    data[1] = (data[1][0] * 1e25, data[1][1])
    result = propfair.train(nn.Linear(4, 3), data, "fedavg", rounds=2, lr=0.5)
    assert result.state == "finished"
    assert result.num_dropped == 2
    frame = result.to_pandas()
    assert frame[frame.metric == "dropped"].client.tolist() == [1, 1]
    assert np.isfinite(result.model.state_dict()["weight"].numpy()).all()


def test_lean_training_gives_the_same_model_with_the_same_keys_and_shapes() -> None:
    def trained(lean: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3),
        )  # fmt: skip
        data = [(torch.cat([x] * 4, 1).view(-1, 1, 4, 4), y) for x, y in clients()]
        return propfair.train(model, data, "propfair", rounds=3, lr=0.1, lean=lean).model.state_dict()

    plain, lean = trained(False), trained(True)
    assert plain.keys() == lean.keys()
    for name, tensor in plain.items():
        torch.testing.assert_close(lean[name], tensor, rtol=1e-4, atol=1e-5)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_batchnorm_and_a_batch_of_one_example_is_found_before_training() -> None:
    x, y = torch.randn(33, 4), torch.arange(33) % 3
    data = [{"train": (x, y), "test": (x, y)}] * 2
    with pytest.raises(PropFairError, match=r"has 33 training examples.*batch_size=16 a batch has one example"):
        propfair.train(normalised(), data, rounds=1, batch_size=16)
    assert propfair.train(normalised(), data, rounds=1, batch_size=11).state == "finished"
    steps = propfair.LocalTraining(batch_size=16, steps=2)  # never reaches the third batch
    assert propfair.train(normalised(), data, rounds=1, local=steps).state == "finished"


def test_running_statistics_that_overflow_are_left_out_of_the_round() -> None:
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    model = normalised()
    data = [{"train": (x * scale, y), "test": (x, y)} for scale in (1.0, 1e25)]
    result = propfair.train(model, data, "fedavg", rounds=1, lr=1e-30, num_classes=3)
    assert result.num_dropped == 1
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


def test_a_failed_run_says_why_it_has_no_evaluation() -> None:
    x, y = torch.randn(30, 4) * 1e30, torch.arange(30) % 3
    with pytest.warns(PropFairWarning, match=r"the training failed .*: round 1: every client diverged"):
        result = propfair.train(nn.Linear(4, 3), [(x, y)], rounds=1)
    with pytest.raises(PropFairError, match=r"The run is failed: round 1: every client diverged"):
        _ = result.accuracy
