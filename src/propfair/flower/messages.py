"""What travels beside the model: instructions to a client, and its report. Text and numbers only, no pickle."""

import json
import math
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from propfair.algorithms.base import ALGORITHMS, Algorithm, ClientId, Order
from propfair.core.client import LocalTraining
from propfair.core.messages import Report
from propfair.errors import ConfigError
from propfair.federation.federation import Split
from propfair.registry import fields_of, make_dataclass

FORMAT = 2  # of both; a client of another format is told to update
KEY = "propfair"  # in the config record of a message, and before the names in a metric record
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"  # the names that Flower's own strategies use
NUM_EXAMPLES = "num-examples"
NAME = f"{KEY}.name"  # of a client, in the config record of its answer
OBJECTIVE = "fair-objective"  # what was minimised, beside the metrics of the app, whose losses are the plain ones
CORRECTION = f"{KEY}.correction"  # the record with what a client adds to its gradients, [P]


@dataclass(frozen=True)
class Instruction:
    """What the strategy tells a client beside the model."""

    round: int
    client: ClientId
    seed: int
    algorithm: Algorithm
    order: Order
    local: LocalTraining
    measure: Split | None  # the examples to measure the loss of the received model on

    def text(self) -> str:
        """As JSON."""
        return json.dumps(
            {
                "format": FORMAT,
                "round": self.round,
                "client": self.client,
                "seed": self.seed,
                "algorithm": self.algorithm.name,
                "options": fields_of(self.algorithm),
                "order": self.order._asdict(),
                "local": fields_of(self.local),
                "measure": self.measure,
            }
        )

    @staticmethod
    def of(text: str) -> "Instruction":
        """The inverse of `text`."""
        content: dict[str, Any] = json.loads(text)
        return Instruction(
            round=content["round"],
            client=content["client"],
            seed=content["seed"],
            algorithm=ALGORITHMS.make(content["algorithm"], content["options"]),
            order=Order(**content["order"]),
            local=make_dataclass(LocalTraining, content["local"], "local"),
            measure=content["measure"],
        )


def correction_record(correction: Tensor) -> ArrayRecord:
    """What a client adds to its gradients [P], as a record of a message."""
    return ArrayRecord({CORRECTION: Array(correction.cpu().contiguous().numpy())})


def take_correction(message: Message) -> Tensor | None:
    """Take the record out of a message, so that an app finds the arrays it knows; None if there is none."""
    if CORRECTION not in message.content.array_records:
        return None
    correction = message.content.array_records[CORRECTION][CORRECTION].numpy().copy()
    del message.content[CORRECTION]
    return torch.from_numpy(correction)


QUESTION = json.dumps({"format": FORMAT, "who": True})  # asks a client who it is and how much data it has


def read(message: Message) -> str | None:
    """The instruction or question in a message; None if it is from another strategy."""
    for record in message.content.config_records.values():
        text = record.get(KEY)
        if isinstance(text, str):
            found = json.loads(text)["format"]
            if found != FORMAT:
                raise ConfigError(
                    f"the server speaks format {found} of propfair.flower, this client speaks {FORMAT}: "
                    "install the same version of propfair on both"
                )
            return text
    return None


def instruct(config: ConfigRecord, text: str) -> ConfigRecord:
    """The config of a strategy with an instruction."""
    return ConfigRecord({**config, KEY: text})


def answer(client: ClientId, num_clients: int, num_examples: int, name: object = None) -> RecordDict:
    """Of a client that was asked who it is: all that it says of itself."""
    numbers = MetricRecord({f"{KEY}.client": client, f"{KEY}.num-clients": num_clients, NUM_EXAMPLES: num_examples})
    content = RecordDict({METRICS: numbers})
    if name is not None:
        content[CONFIG] = ConfigRecord({NAME: str(name)})
    return content


def add_report(metrics: MetricRecord, report: Report, objective: float) -> None:
    """Put a report among the metrics of a reply. The server measures the update itself."""
    metrics[f"{KEY}.num-steps"] = report.num_steps
    metrics[f"{KEY}.first-loss"] = report.first_loss
    metrics[f"{KEY}.running-loss"] = report.running_loss
    metrics[f"{KEY}.full-loss"] = report.full_loss
    if not math.isnan(objective):
        metrics[OBJECTIVE] = objective
    for name, value in report.observed.items():
        metrics[f"{KEY}.observed.{name}"] = value
