"""What looks at a training between its rounds."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import propfair
from propfair.engines.inprocess import InProcess
from propfair.errors import ConfigError
from propfair.runs.callbacks import Training
from propfair.runs.measures import Measure
from tests.builders import seeded


def clients() -> list[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(0)
    xs = [torch.randn(30, 4, generator=rng) for _ in range(3)]
    return [(x, x[:, :3].argmax(1)) for x in xs]


def train(*callbacks: propfair.Callback, rounds: int = 12, lr: float = 0.1, **options: Any) -> propfair.Result:
    model = seeded(lambda: nn.Linear(4, 3))
    return propfair.train(
        model, clients(), "fedavg", rounds=rounds, lr=lr, eval_every=1, callbacks=callbacks,
        engine=InProcess(threads=1), **options,
    )  # fmt: skip


class Recorder(propfair.Callback):
    def __init__(self, stop_after: int = 99) -> None:
        self.seen: list[str] = []
        self.stop_after = stop_after
        self.weights: list[Tensor] = []

    def before_round(self, training: Training) -> None:
        self.seen.append(f"before {training.round + 1}")

    def after_round(self, training: Training) -> None:
        self.seen.append(f"after {training.round}")
        self.weights.append(training.model()["weight"])
        if training.round == self.stop_after:
            training.stop("enough")


def test_callbacks_see_rounds_and_models_and_may_stop() -> None:
    recorder = Recorder(stop_after=2)
    result = train(recorder)
    assert recorder.seen == ["before 1", "after 1", "before 2", "after 2"]
    assert (result.state, result.rounds, result.reason) == ("finished", 2, "enough")
    assert torch.equal(recorder.weights[-1], result.model.get_parameter("weight"))
    assert not torch.equal(recorder.weights[0], recorder.weights[1])


def test_early_stopping_begins_anew_with_each_training() -> None:
    """The second training ended after no rounds, with the model of the first."""
    stopping = propfair.EarlyStopping("mean", "loss", patience=2)
    first, second = (train(stopping, server=propfair.Rounds(lr_schedule=schedule)) for _ in range(2))
    assert (first.rounds, first.reason) == (second.rounds, second.reason)
    assert torch.equal(first.model.get_parameter("weight"), second.model.get_parameter("weight"))


def schedule(round_: int) -> float:
    """Explodes in round 5."""
    return 1.0 if round_ < 5 else 300.0


def test_early_stopping_keeps_the_best_model_and_records_what_it_does() -> None:
    server = propfair.Rounds(lr_schedule=schedule)
    recorder, stopping = Recorder(), propfair.EarlyStopping("worst", "loss", patience=2)
    result = train(recorder, stopping, server=server)
    assert stopping.best_round == 4
    assert (result.state, result.rounds) == ("finished", 6)
    assert "best in round 4, whose model is kept" in result.reason
    assert torch.equal(result.model.get_parameter("weight"), recorder.weights[3])
    assert float(result.evaluation("test").loss.max()) == pytest.approx(stopping.best_value)
    last = train(propfair.EarlyStopping("mean", patience=2, restore_best=False), server=server)
    assert last.state == "finished"


def test_less_spread_is_better_and_a_choice_on_the_test_split_is_said() -> None:
    class Spreads(propfair.Callback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def after_round(self, training: Any) -> None:
            self.seen.append(training.progress.summary("test", Measure("test", "loss")).std)

    spreads, stopping = Spreads(), propfair.EarlyStopping("std", "loss", patience=2)
    result = train(spreads, stopping, server=propfair.Rounds(lr_schedule=schedule))
    assert stopping.best_value == min(spreads.seen)
    assert "chosen on the test split, so its numbers are optimistic" in result.reason


def test_early_stopping_goes_on_after_an_interruption(tmp_path: Path) -> None:
    def stop(now: Any) -> None:
        if now.round == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    server = propfair.Rounds(lr_schedule="warmup(3)")
    options: dict[str, Any] = {"lr": 3.0, "server": server}
    whole = train(propfair.EarlyStopping(patience=3), **options)
    assert train(propfair.EarlyStopping(patience=3), out=tmp_path / "a", after_round=stop, **options).rounds <= 5
    resumed = train(propfair.EarlyStopping(patience=3), out=tmp_path / "a", resume=True, **options)
    assert (resumed.rounds, resumed.reason) == (whole.rounds, whole.reason)
    assert torch.equal(resumed.model.get_parameter("weight"), whole.model.get_parameter("weight"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"metric": "auc"}, "looks at 'auc'; measured are: loss, accuracy"),
        ({"statistic": "meen"}, "unknown statistic 'meen'"),
        ({"split": "validation"}, "looks at 'validation', which is not evaluated"),
        ({"split": "dev"}, "split must be one of"),
        ({"patience": 0}, "patience must be at least 1"),
    ],
)
def test_early_stopping_that_can_not_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        train(propfair.EarlyStopping(**options), rounds=1)


def test_results_show_themselves_in_notebooks_and_personal_models_can_be_had() -> None:
    result = propfair.train(nn.Linear(4, 3), clients(), "ditto", rounds=1, eval_every=1)
    assert set(result.personal_models) == {"0", "1", "2"}
    assert result.personal_models["1"]["weight"].shape == (3, 4)
    page = result._repr_html_()
    assert "test accuracy" in page
    assert "<table>" in page
    assert len(repr(result)) < 200
