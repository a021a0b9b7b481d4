"""A deployment is a run: its folder is that of a simulation, and one that was cut off goes on to the same model."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")

from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from torch import nn

import propfair
from propfair.algorithms import ALGORITHMS
from propfair.algorithms.fedavg import FedAvg
from propfair.core.rounds import Rounds
from propfair.errors import ConfigError, TrainingError
from propfair.flower import FairStrategy, client_app, members
from propfair.runs.reading import read_run
from propfair.runs.run import Run
from tests.flower.grid import LOCAL, SEED, SIZES, LocalGrid, federation, network, own_data
from tests.flower.test_misbehaviour import ANSWERS, BROKEN, DIVERGED, lying
from tests.flower.test_strategy import assert_close, run


def strategy(
    name: str, out: Path, *, seed: int = SEED, rounds: Rounds | None = None, patience: float = 0.0, **options: Any
) -> FairStrategy:
    made = ALGORITHMS.make(name, options)
    return FairStrategy(made, network(), local=LOCAL, seed=seed, rounds=rounds, patience=patience, out=out)


def grid(**node_config: Any) -> LocalGrid:
    made = LocalGrid(client_app(network, own_data))
    for client, context in enumerate(made.contexts.values()):
        context.node_config |= {"name": f"clinic {'abcd'[client]}", **node_config}
    return made


def column(found: Run, split: str, metric: str) -> Any:
    series = found.series(split, metric)
    assert series is not None
    return series.values


@pytest.mark.parametrize("name", ["propfair", "ditto"])
def test_the_folder_is_that_of_a_simulation(name: str, tmp_path: Path) -> None:
    run(strategy(name, tmp_path / "flower"), grid(), 3)
    propfair.train(
        network(), federation(), name, rounds=3, local=LOCAL, seed=SEED, eval_every=1, out=tmp_path / "simulation",
        lean=False, engine="inprocess",
    )  # fmt: skip
    deployed, simulated = read_run(tmp_path / "flower"), read_run(tmp_path / "simulation")
    assert deployed.status.state == "finished"
    assert deployed.status.rounds == 3
    assert deployed.clients.names == ("clinic a", "clinic b", "clinic c", "clinic d")
    assert deployed.clients.sizes["train"] == tuple(SIZES)
    assert deployed.clients.sizes["test"] == simulated.clients.sizes["test"]
    kept = {(split, metric) for split, metric in simulated._recorded if split in ("test", "round")}
    assert {pair for pair in deployed._recorded if pair[0] in ("test", "round")} == kept
    for split, metric in kept:
        np.testing.assert_allclose(column(deployed, split, metric), column(simulated, split, metric), atol=1e-6)
    assert deployed.summary().worst10 == pytest.approx(simulated.summary().worst10)
    one, other = (propfair.load(tmp_path / kind, network()).model for kind in ("flower", "simulation"))
    assert_close(dict(one.state_dict()), dict(other.state_dict()))


class Stopped(BaseException):
    """The server is killed."""


class MortalGrid(LocalGrid):
    """A grid whose server is killed when it waits for replies the so-manieth time."""

    left = 10**9

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        self.left -= 1
        if not self.left:
            raise Stopped
        return super().send_and_receive(messages, timeout=timeout)


RULES: list[tuple[str, dict[str, Any], Rounds]] = [
    ("afl", {"average_iterates": True}, Rounds(participation=0.75)),
    ("propfair", {}, Rounds(optimizer="adam")),
    ("scaffold", {}, Rounds()),
    ("fedfv", {"tau": 2}, Rounds(participation=0.5)),
]


@pytest.mark.parametrize(("name", "options", "rounds"), RULES, ids=[rule[0] for rule in RULES])
def test_a_server_that_is_killed_goes_on_to_the_same_bits(
    name: str, options: dict[str, Any], rounds: Rounds, tmp_path: Path
) -> None:
    whole, _ = run(strategy(name, tmp_path / "whole", rounds=rounds, **options), grid(), 4)
    for kill in (6, 7):  # once asked who they are, two calls a round: in the training and in the evaluation of round 3
        broken = tmp_path / f"broken-{kill}"
        mortal = MortalGrid(client_app(network, own_data))
        mortal.left = kill
        cut = strategy(name, broken, rounds=rounds, **options)
        with pytest.raises(Stopped):
            run(cut, mortal, 4)
        assert cut._recording is not None
        cut._recording._held.close()  # the system frees the folder of a process that is dead
        again = strategy(name, broken, rounds=rounds, **options)
        found, result = run(again, LocalGrid(client_app(network, own_data)), 4)
        assert all(torch.equal(found[key], whole[key]) for key in whole)
        assert list(result.evaluate_metrics_clientapp) == [3, 4]
        one, other = read_run(broken), read_run(tmp_path / "whole")
        assert one.records.drop_columns("run").equals(other.records.drop_columns("run"))


def test_a_folder_goes_on_with_its_own_settings_only(tmp_path: Path) -> None:
    mortal = MortalGrid(client_app(network, own_data))
    mortal.left = 4
    cut = strategy("fedavg", tmp_path / "run")
    with pytest.raises(Stopped):
        run(cut, mortal, 4)
    with pytest.raises(ConfigError, match="is in use: this process"):
        strategy("fedavg", tmp_path / "run")
    assert cut._recording is not None
    cut._recording._held.close()
    with pytest.raises(ConfigError, match=r"began with other settings .*fedavg"):
        strategy("afl", tmp_path / "run")
    with pytest.raises(ConfigError, match="began with other settings"):
        strategy("fedavg", tmp_path / "run", rounds=Rounds(server_lr=0.5))
    again = strategy("fedavg", tmp_path / "run")
    private = DifferentialPrivacyServerSideFixedClipping(again, 0.0, 1.0, len(SIZES))
    with pytest.raises(ConfigError, match=r"pass initial_arrays=strategy\.arrays"):
        private.start(grid=grid(), initial_arrays=ArrayRecord(network().state_dict()), num_rounds=1)
    run(again, grid(), 2)
    with pytest.raises(ConfigError, match="is finished after round 2: choose another folder"):
        strategy("fedavg", tmp_path / "run")
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match="is no run folder"):
        strategy("fedavg", tmp_path / "other")


def test_clients_that_did_not_come_back_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    mortal = MortalGrid(client_app(network, own_data))
    mortal.left = 4
    cut = strategy("afl", tmp_path / "run")
    with pytest.raises(Stopped):
        run(cut, mortal, 4)
    assert cut._recording is not None
    cut._recording._held.close()
    fewer = grid()
    fewer.away = {2}
    again = strategy("afl", tmp_path / "run")
    run(again, fewer, 3)
    assert [outcome.dropped for outcome in again.outcomes] == [(2,), (2,)]


KINDS: dict[str, tuple[LocalGrid, str, str]] = {
    "missing": (lying(BROKEN["missing"][0]), "refused", "its reply has no array '0.bias'"),
    "huge update": (lying(BROKEN["huge update"][0]), "refused", "its update has length 6.93e+12, and the model"),
    "loss 1e308": (lying(BROKEN["loss 1e308"][0]), "refused", "it reports a loss of 1e+308"),
    "nan": (lying(DIVERGED["nan"]), "diverged", "its update, its buffers or its loss is not finite"),
    "absurd examples": (lying(ANSWERS["absurd examples"][0], asked=True), "absent", "must be a whole number from 1 to"),
    "unknown client": (lying(ANSWERS["unknown client"][0], asked=True), "absent", "number from 0 to 3; got 77"),
}


@pytest.mark.parametrize("what", KINDS)
def test_the_record_says_what_went_wrong(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "POLL_SECONDS", 0.0)
    grid, kind, reason = KINDS[what]
    run(strategy("afl", tmp_path / "run"), grid, 3)
    found = read_run(tmp_path / "run")
    assert found.status.state == "finished"
    assert found.num_dropped == 3
    happened = column(found, "round", kind)
    assert happened[:, 1].tolist() == [1, 1, 1]
    assert np.isnan(happened[:, [0, 2, 3]]).all()
    first = next(note for note in found.environment.notes if reason in note)
    assert first.endswith("(round 1)" if what == "unknown client" else "(client 1, round 1)")


def test_a_run_that_all_clients_fail_is_interrupted_and_goes_on_when_they_are_mended(tmp_path: Path) -> None:
    def spoil(reply: Message) -> None:
        if spoil.on and "arrays" in reply.content:  # type: ignore[attr-defined]
            del reply.content["arrays"]

    spoil.on = False  # type: ignore[attr-defined]
    given, clients = strategy("fedavg", tmp_path / "run"), grid()
    clients.tampered = spoil
    finished = given.aggregate_evaluate

    def then_broken(number: int, replies: Iterable[Message]) -> Any:
        spoil.on = number >= 2  # type: ignore[attr-defined]
        return finished(number, replies)

    given.aggregate_evaluate = then_broken  # type: ignore[method-assign, assignment]
    with pytest.raises(TrainingError, match=r"round 3: every client failed, client 0 refused"):
        run(given, clients, 4)
    found = read_run(tmp_path / "run")
    assert found.status.state == "interrupted"
    assert found.status.rounds == 2
    assert "every client failed" in found.status.reason
    model, _ = run(strategy("fedavg", tmp_path / "run"), grid(), 4)
    whole, _ = run(FairStrategy(FedAvg(), network(), local=LOCAL, seed=SEED), grid(), 4)
    assert all(torch.equal(model[name], whole[name]) for name in whole)


def test_a_wrapper_writes_a_run_too(tmp_path: Path) -> None:
    def plain() -> nn.Module:
        return nn.Sequential(network()[0], network()[2])  # type: ignore[index]

    given = FairStrategy("propfair", plain(), local=LOCAL, seed=SEED, out=tmp_path / "run")
    private = DifferentialPrivacyServerSideFixedClipping(given, 1.0, 0.1, len(SIZES))
    result = private.start(
        grid=LocalGrid(client_app(plain, own_data)), initial_arrays=ArrayRecord(plain().state_dict()), num_rounds=2
    )
    given.finish()
    saved = propfair.load(tmp_path / "run", plain()).model.state_dict()
    for name, value in result.arrays.to_torch_state_dict().items():
        assert torch.allclose(saved[name], value, atol=1e-6), "with the noise"


def test_commands_read_deployments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from propfair.cli import main

    for name in ("fedavg", "propfair"):
        run(strategy(name, tmp_path / f"clinics-{name}"), grid(), 2)
    monkeypatch.chdir(tmp_path)
    both = ["clinics-fedavg", "clinics-propfair"]
    for words in (["report", *both, "-o", "page.html"], ["certify", both[1], both[0]]):
        monkeypatch.setattr("sys.argv", ["propfair", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, words
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "clinic c" in page
