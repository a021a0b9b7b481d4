"""Fourteen runs of the paper authors' public classes on a tiny logistic regression, repeated by the real engine.

reference_runs.json holds their inputs and results, to six decimals. Each client holds one batch, so that no shuffling
enters. All algorithms run with `preset="paper"`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from propfair.algorithms import ALGORITHMS
from propfair.core.client import LocalTraining, Workload
from propfair.core.params import FlatModel
from propfair.core.rounds import Rounds
from propfair.engines.inprocess import InProcess
from propfair.engines.server import Server
from tests.builders import federation_of

REFERENCE = json.loads(Path(__file__).with_name("reference_runs.json").read_text())
NAMES = {
    "FedAvg": "fedavg",
    "AFL": "afl",
    "PropFair": "propfair",
    "qFedAvg": "q-fedavg",
    "TERM": "term",
    "FedMGDA": "fedmgda+",
    "GiFair": "gifair",
}
TOLERANCE = 1e-5


def workload(name: str, options: dict[str, Any]) -> Workload:
    clients = REFERENCE["clients"]
    x = torch.cat([torch.tensor(client["x"]) for client in clients])
    y = torch.cat([torch.tensor(client["y"]) for client in clients])
    federation = federation_of(x, y, [len(client["y"]) for client in clients], num_classes=REFERENCE["classes"])
    local = LocalTraining(lr=REFERENCE["learning_rate"], batch_size=len(y), epochs=REFERENCE["local_steps"])
    if "paper" in ALGORITHMS.get(name).presets:
        options = {"preset": "paper", **options}
    return Workload(federation, ALGORITHMS.make(name, options), local)


def start(work: Workload) -> Server:
    module = nn.Linear(REFERENCE["features"], REFERENCE["classes"])
    with torch.no_grad():
        module.weight.copy_(torch.tensor(REFERENCE["initial_weight"]))
        module.bias.copy_(torch.tensor(REFERENCE["initial_bias"]))
    model = FlatModel(module)
    return Server(InProcess().start(model, work), Rounds(), model.params, model.buffers)


def options_of(run: dict[str, Any]) -> dict[str, Any]:
    options = dict(run["hyperparameters"])
    if "huber" in options:
        options["variant"] = "huber" if options.pop("huber") else "practical"
    return options


@pytest.mark.parametrize("run", REFERENCE["results"], ids=lambda run: f"{run['algorithm']}-{run['hyperparameters']}")
def test_reference_run(run: dict[str, Any]) -> None:
    server = start(workload(NAMES[run["algorithm"]], options_of(run)))
    everyone = range(len(REFERENCE["clients"]))
    for expected in run["client_losses_after_each_round"]:
        server.run_round()
        losses = server.session.evaluate(server.released, server.buffers, "train", everyone).loss
        assert losses.tolist() == pytest.approx(expected, abs=TOLERANCE)
    final = torch.tensor(run["final_weight"]).flatten().tolist() + run["final_bias"]
    assert server.released.tolist() == pytest.approx(final, abs=TOLERANCE)
    if "final_lambda" in run:
        assert server.state["lambda"].tolist() == pytest.approx(run["final_lambda"], abs=TOLERANCE)


def test_all_fourteen_are_here() -> None:
    assert len(REFERENCE["results"]) == 14
    assert REFERENCE["rounds"] == 4
