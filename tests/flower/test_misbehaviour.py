"""Clients that send what is broken, hostile or a lie: refused and recorded, and the round goes on with the others."""

import io
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra: pip install 'propfair[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from propfair.algorithms.afl import AFL
from propfair.algorithms.base import Algorithm
from propfair.algorithms.fedavg import FedAvg
from propfair.algorithms.fedmgda import FedMGDAPlus
from propfair.algorithms.propfair import PropFair
from propfair.core.rounds import Rounds
from propfair.errors import ConfigError, TrainingError
from propfair.flower import FairStrategy, Limits, client_app, members
from tests.flower.grid import LOCAL, SEED, SIZES, LocalGrid, network, own_data
from tests.flower.test_strategy import run

LIAR = 1
Spoil = Callable[[Any], Any]  # changes the content of a reply


def strategy(algorithm: Algorithm, **options: Any) -> FairStrategy:
    return FairStrategy(algorithm, network(), local=LOCAL, seed=SEED, evaluate_every=0, patience=0.0, **options)


def lying(spoil: Spoil, *, asked: bool = False) -> LocalGrid:
    """A grid in which the training replies of one client are spoilt, or its answer to who it is."""
    grid = LocalGrid(client_app(network, own_data))

    def tamper(reply: Message) -> None:
        if reply.metadata.src_node_id == grid.nodes[LIAR] and ("arrays" in reply.content) != asked:
            spoil(reply.content)

    grid.tampered = tamper
    return grid


def arrays(change: Callable[[dict[str, torch.Tensor]], Any]) -> Spoil:
    def spoil(content: RecordDict) -> None:
        state = dict(content.array_records["arrays"].to_torch_state_dict())
        change(state)
        content["arrays"] = ArrayRecord(state)

    return spoil


def raw(**fields: Any) -> Spoil:
    """The first bias as an array of one's own making."""

    def spoil(content: RecordDict) -> None:
        record = content.array_records["arrays"]
        whole = {"dtype": "float32", "shape": (8,), "stype": "numpy.ndarray", "data": b"", **fields}
        record["0.bias"] = Array(**whole)

    return spoil


def said(**numbers: Any) -> Spoil:
    def spoil(content: RecordDict) -> None:
        for name, value in numbers.items():
            content.metric_records["metrics"][f"propfair.{name.replace('_', '-')}"] = value

    return spoil


def header(claim: str) -> bytes:
    """An .npy file whose header claims something."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {claim}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def text_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(["word"] * 8))
    return file.getvalue()


def drop(name: str) -> Spoil:
    def change(state: dict[str, torch.Tensor]) -> None:
        del state[name]

    return arrays(change)


BROKEN: dict[str, tuple[Spoil, str]] = {
    "wrong shape": (arrays(lambda s: s.update({"0.bias": torch.zeros(9)})), r"must have shape \[8\]; got \[9\]"),
    "missing": (drop("0.bias"), "no array '0.bias'"),
    "extra": (arrays(lambda s: s.update(more=torch.zeros(2))), "an array 'more' that the model has not"),
    "no arrays": (lambda c: c.pop("arrays"), "0 records of arrays"),
    "two records": (lambda c: c.update(twice=c["arrays"]), "2 records of arrays"),
    "text": (raw(data=text_array()), "'0.bias' must hold numbers; got <U4"),
    "256 GB": (raw(data=header("(64000000000,)")), r"must have shape \[8\]; got \[64000000000\]"),
    "too few bytes": (raw(data=header("(8,)")), "must have 32 bytes; got 0"),
    "not an array": (raw(data=b"hello"), "can't be read"),
    "a header that is a bomb": (raw(data=header("(" * 50)), "can't be read"),
    "another format": (raw(stype="pickle", data=b"\x80\x04."), "can't be read"),
    "no metrics": (lambda c: c.pop("metrics"), "no metrics"),
    "empty metrics": (lambda c: c.update(metrics=MetricRecord()), "does not say 'propfair"),
    "steps nan": (said(num_steps=math.nan), "'propfair.num-steps' must be a whole number from 1 to 1.*; got nan"),
    "steps negative": (said(num_steps=-3), "got -3"),
    "steps infinite": (said(num_steps=math.inf), "got inf"),
    "a list": (said(full_loss=[1.0, 2.0]), "'propfair.full-loss' must be one number; got a list of 2"),
    "loss 1e308": (said(full_loss=1e308), "a loss of 1e[+]308, and more than 1e[+]12 is not plausible"),
    "loss -1e300": (said(full_loss=-1e300), "a loss of -1e[+]300"),
    "variance negative": (arrays(lambda s: s["1.running_var"].fill_(-1)), "variances in '1.running_var' are negative"),
    "count nan": (arrays(lambda s: s.update({"1.num_batches_tracked": torch.tensor(math.nan)})), "not finite"),
    "huge update": (arrays(lambda s: s["0.weight"].fill_(1e12)), "its update has length 6.9"),
}  # fmt: skip
DIVERGED: dict[str, Spoil] = {
    "nan": arrays(lambda s: s["0.weight"].fill_(math.nan)),
    "infinite": arrays(lambda s: s["0.weight"].fill_(math.inf)),
    "its square overflows": arrays(lambda s: s["0.weight"].fill_(1e30)),
    "nan in buffers": arrays(lambda s: s["1.running_mean"].fill_(math.nan)),
    "loss nan": said(full_loss=math.nan),
}


@pytest.mark.parametrize("algorithm", [AFL(), FedMGDAPlus()], ids=str)
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_reply_is_refused_and_the_round_goes_on(what: str, algorithm: Algorithm) -> None:
    spoil, reason = BROKEN[what]
    if what.startswith("loss") and isinstance(algorithm, FedMGDAPlus):
        pytest.skip("it is not asked for")
    given = strategy(algorithm)
    found, _ = run(given, lying(spoil))
    assert [outcome.dropped for outcome in given.outcomes] == [(LIAR,), (LIAR,)]
    assert [(event.round, event.kind, event.clients) for event in given.events] == [
        (1, "refused", (LIAR,)),
        (2, "refused", (LIAR,)),
    ]
    assert re.search(reason, given.events[0].detail), given.events[0].detail
    assert all(value.double().isfinite().all() for value in found.values())
    assert float(given.outcomes[0].weights.sum()) > 0.5


@pytest.mark.parametrize("what", DIVERGED)
def test_a_reply_that_is_not_finite_counts_as_diverged(what: str) -> None:
    given = strategy(AFL())
    found, _ = run(given, lying(DIVERGED[what]))
    assert [outcome.dropped for outcome in given.outcomes] == [(LIAR,), (LIAR,)]
    assert {event.kind for event in given.events} == {"diverged"}
    assert all(value.double().isfinite().all() for value in found.values())


ANSWERS: dict[str, tuple[Spoil, str]] = {
    "negative examples": (lambda c: c["metrics"].update({"num-examples": -7}), "from 1 to 100000000; got -7"),
    "absurd examples": (lambda c: c["metrics"].update({"num-examples": 10**9}), "got 1e[+]09"),
    "examples nan": (lambda c: c["metrics"].update({"num-examples": math.nan}), "got nan"),
    "no examples": (lambda c: c["metrics"].pop("num-examples"), "does not say 'num-examples'"),
    "unknown client": (said(client=77), "'propfair.client' must be a whole number from 0 to 3; got 77"),
    "negative client": (said(client=-1), "got -1"),
    "client nan": (said(client=math.nan), "got nan"),
    "no metrics": (lambda c: c.pop("metrics"), "no metrics"),
}  # fmt: skip


@pytest.mark.parametrize(
    "algorithm", [FedAvg(), AFL(), FedMGDAPlus(), PropFair(), PropFair(placement="update")], ids=str
)
@pytest.mark.parametrize("what", ANSWERS)
def test_a_client_that_lies_about_itself_takes_no_part(
    what: str, algorithm: Algorithm, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "POLL_SECONDS", 0.0)
    spoil, reason = ANSWERS[what]
    given = strategy(algorithm)
    found, _ = run(given, lying(spoil, asked=True))
    assert [outcome.dropped for outcome in given.outcomes] == [(LIAR,), (LIAR,)]
    assert float(given.outcomes[1].weights[LIAR]) == 0
    lines = [line for line in caplog.messages if "refused when it was asked who it is" in line]
    assert len(lines) == 1
    assert re.search(reason, lines[0])
    assert all(value.double().isfinite().all() for value in found.values())


def test_a_client_that_lies_when_it_comes_back_keeps_its_size_or_is_left_out() -> None:
    grid = LocalGrid(client_app(network, own_data))
    given = strategy(FedAvg())
    state = ArrayRecord(network().state_dict())
    list(given.configure_train(1, state, ConfigRecord(), grid))
    old, grid.nodes[LIAR] = grid.nodes[LIAR], 5
    grid.contexts[5] = grid.contexts.pop(old)

    def more(reply: Message) -> None:
        if "num-examples" in reply.content.metric_records["metrics"]:
            reply.content.metric_records["metrics"]["num-examples"] = 10**6

    grid.tampered = more
    sent = list(given.configure_train(2, state, ConfigRecord(), grid))
    assert len(sent) == 4
    assert given._members.sizes == SIZES

    grid.contexts[5].node_config["num-partitions"] = 9
    grid.nodes[LIAR] = 6
    grid.contexts[6] = grid.contexts.pop(5)
    sent = list(given.configure_train(3, state, ConfigRecord(), grid))
    assert [grid.nodes.index(message.metadata.dst_node_id) for message in sent] == [0, 2, 3]


def test_the_same_error_is_logged_once_and_recorded_each_time(caplog: pytest.LogCaptureFixture) -> None:
    given = strategy(AFL())
    run(given, lying(BROKEN["missing"][0]), 5)
    assert len([line for line in caplog.messages if "refused" in line]) == 1
    assert [event.round for event in given.events] == [1, 2, 3, 4, 5]


def test_nobody_evaluating_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    whole = client_app(network, own_data)
    app = ClientApp()
    app._registered_funcs = {key: f for key, f in whole._registered_funcs.items() if "train" in str(key)}
    app._mods = whole._mods
    given = FairStrategy(FedAvg(), network(), local=LOCAL, seed=SEED)
    run(given, LocalGrid(app), 3)
    assert len(given.outcomes) == 3
    assert not given.evaluations
    assert len([line for line in caplog.messages if "evaluate" in line and "failed" in line]) == 1


def test_a_lie_in_an_evaluation_is_left_out() -> None:
    grid = LocalGrid(client_app(network, own_data))

    def tamper(reply: Message) -> None:
        metrics = reply.content.metric_records["metrics"]
        if "accuracy" in metrics and reply.metadata.src_node_id == grid.nodes[LIAR]:
            metrics["num-examples"] = -5
        elif "accuracy" in metrics and reply.metadata.src_node_id == grid.nodes[2]:
            metrics["loss"] = math.inf

    grid.tampered = tamper
    given = FairStrategy(FedAvg(), network(), local=LOCAL, seed=SEED)
    _, result = run(given, grid, 1)
    assert list(given.evaluations[1]["loss"]) == [0, 3]
    assert list(given.evaluations[1]["accuracy"]) == [0, 2, 3]
    assert 0 < result.evaluate_metrics_clientapp[1]["loss"] < 10  # type: ignore[operator]


def test_a_strict_run_ends_at_the_first_refusal() -> None:
    with pytest.raises(TrainingError, match=r"round 1: client 1 refused: its reply has no array '0.bias'"):
        run(strategy(FedAvg(), rounds=Rounds(strict=True)), lying(BROKEN["missing"][0]))


def test_a_reply_of_a_stranger_and_a_second_reply_are_not_used() -> None:
    grid = LocalGrid(client_app(network, own_data))
    given = strategy(FedAvg())
    messages = given.configure_train(1, ArrayRecord(network().state_dict()), ConfigRecord(), grid)
    replies = list(grid.send_and_receive(messages))
    again = [reply for reply in replies if reply.metadata.src_node_id == grid.nodes[0]]
    del grid.nodes[:]
    given._members._clients.pop(replies[1].metadata.src_node_id)
    given.aggregate_train(1, [*replies, *again])
    assert len(given.outcomes[0].dropped) == 1


def test_a_run_that_nobody_answers_is_an_error_and_not_an_empty_model() -> None:
    grid = LocalGrid(client_app(network, own_data))
    asked = grid.send_and_receive

    def deaf(messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        return asked(messages) if any("who" in str(message.content) for message in messages) else []

    grid.send_and_receive = deaf  # type: ignore[method-assign]
    given = strategy(FedAvg())
    with pytest.raises(TrainingError, match="no client answered in any of the 2 rounds"):
        run(given, grid)
    assert {event.kind for event in given.events} == {"absent"}


def test_a_node_that_flower_says_is_lost_counts_as_absent() -> None:
    grid = LocalGrid(client_app(network, own_data))
    given = strategy(FedAvg())
    messages = list(given.configure_train(1, ArrayRecord(network().state_dict()), ConfigRecord(), grid))
    lost = [
        Message(Error(ErrorCode.NODE_UNAVAILABLE, "node gone"), reply_to=reply)
        for reply in grid.send_and_receive(messages)
    ]
    assert given.aggregate_train(1, lost) == (None, None)
    assert {event.kind for event in given.events} == {"absent"}


# What may be cut.


def test_updates_are_shortened_where_that_is_asked_for() -> None:
    given = strategy(FedAvg(), limits=Limits(clip_norm=0.01))
    start = torch.cat([value.flatten() for value in network().parameters()])
    found, _ = run(given, LocalGrid(client_app(network, own_data)), 1)
    moved = torch.cat([found[name].flatten() for name, _ in network().named_parameters()]) - start.detach()
    assert 0 < float(moved.norm()) < 0.0101
    assert {event.kind for event in given.events} == {"clipped"}


def test_losses_are_capped_where_that_is_asked_for() -> None:
    lie = said(full_loss=1e6)
    free, capped = strategy(PropFair(beta=0.0)), strategy(PropFair(beta=0.0), limits=Limits(loss_cap=2.0))
    run(free, lying(lie), 1)
    run(capped, lying(lie), 1)
    assert float(free.outcomes[0].loss[LIAR]) == 1e6
    assert float(capped.outcomes[0].loss[LIAR]) == 2.0


@pytest.mark.parametrize(
    ("sizes", "cap", "expected"),
    [
        ([10, 20, 30], None, [10, 20, 30]),
        ([10, 20, 30], 0.5, [10, 20, 30]),
        ([10, 20, 10**6], 0.5, [10, 20, 30]),
        ([10, 10**5, 10**6, 10], 0.4, [10, 40, 40, 10]),
        ([0, 10, 1000], 0.5, [0, 10, 10]),
    ],
)
def test_shares_are_capped_where_that_is_asked_for(sizes: list[int], cap: float | None, expected: list[int]) -> None:
    assert Limits(share_cap=cap).cut_sizes(sizes) == expected


def test_limits_that_make_no_sense_are_named() -> None:
    with pytest.raises(ConfigError, match=r"share_cap=0.2 is below what 3 clients hold"):
        Limits(share_cap=0.2).cut_sizes([1, 2, 3])
    with pytest.raises(ConfigError, match="clip_norm must be a positive number; got clip_norm=-1"):
        Limits(clip_norm=-1)
    with pytest.raises(ConfigError, match="at most 1"):
        Limits(share_cap=2)
