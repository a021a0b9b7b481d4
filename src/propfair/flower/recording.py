"""A deployment as a run: the folder that a simulation would have written, from what clients report."""

import contextlib
import dataclasses
import hashlib
import json
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from propfair.algorithms.base import Algorithm, ClientId
from propfair.core.aggregator import Aggregator, Outcome
from propfair.core.client import LocalTraining
from propfair.core.evaluation import Evaluation
from propfair.core.rounds import Rounds
from propfair.engines.session import Event
from propfair.errors import ConfigError, PropFairWarning
from propfair.flower.events import log
from propfair.flower.limits import Limits
from propfair.flower.orphans import POLL_SECONDS, end_with_flower
from propfair.registry import fields_of
from propfair.runs.checkpoints import Checkpoint
from propfair.runs.environment import describe_place, with_resume
from propfair.runs.folder import InUseError, RunFolder
from propfair.runs.loggers import About, Sinks, evaluation_values, open_sinks
from propfair.runs.measures import Measure
from propfair.runs.reading import describe
from propfair.runs.records import Records
from propfair.runs.run import PERSONAL, Clients, EndState
from propfair.runs.training import Clock

MOST_NOTES = 100
Values = Mapping[str, Mapping[ClientId, float]]  # of clients, by metric


class Recording:
    """Writes the run folder of a deployment, a checkpoint after each round; goes on with one that was cut off.

    Args:
        path: of the folder. One that is there must be of a deployment with the same settings that has not finished.
        algorithm, local, rounds, limits, seed: of the strategy.
        patience: seconds to wait until a server that still works in the folder has ended.

    Attributes:
        checkpoint: where a run goes on that was cut off; None: it begins.
        known: who the clients of that run are.
    """

    def __init__(
        self, path: Path, algorithm: Algorithm, local: LocalTraining, rounds: Rounds, limits: Limits, seed: int,
        patience: float,
    ) -> None:  # fmt: skip
        self.path, self._seed, self._algorithm = path, seed, algorithm
        parts = {"local": fields_of(local), "rounds": fields_of(rounds), "limits": dataclasses.asdict(limits)}
        self._settings = json.loads(json.dumps(parts, default=str))
        self._records, self._clock = Records(path.name), Clock(0.0)
        self._notes: list[str] = []
        self._outcome: Outcome | None = None
        self._folder: RunFolder | None = None
        self._sinks = Sinks({})
        self._held = contextlib.ExitStack()
        self.checkpoint: Checkpoint | None = None
        self.known: Clients | None = None
        end_with_flower()  # else a server that is left behind would keep the folder from the next one
        if (path / "status.json").exists():
            self._go_on(patience)
        elif path.exists():
            raise ConfigError(f"{path} exists already and is no run folder: choose another folder for out=")

    @property
    def begun(self) -> bool:
        """The folder is there."""
        return self._folder is not None

    def _go_on(self, patience: float) -> None:
        folder = RunFolder.open(self.path)
        self._hold(folder, patience)
        try:
            self._take_up(folder)
        except BaseException:
            self._held.close()
            raise

    def _hold(self, folder: RunFolder, patience: float) -> None:
        """Have the folder for this process alone, once whoever has it has ended."""
        deadline, told = time.monotonic() + patience, False
        while True:
            try:
                self._held.enter_context(folder.in_use())
                return
            except InUseError as error:
                if time.monotonic() >= deadline:
                    raise
                if not told:
                    log.warning("%s. Waiting up to %g s until it has ended.", error, patience)
                    told = True
            time.sleep(POLL_SECONDS)

    def _take_up(self, folder: RunFolder) -> None:
        _, status, environment, self.known = describe(folder)
        if status.state in ("finished", "failed"):
            raise ConfigError(
                f"{self.path} is {status.state} after round {status.rounds}: choose another folder for out="
            )
        then = folder.environment.get("deployment")
        same = (environment.algorithm, environment.seed, then) == (str(self._algorithm), self._seed, self._settings)
        if not same:
            raise ConfigError(
                f"{self.path} began with other settings ({environment.algorithm}, seed {environment.seed}, {then}) and "
                "goes on with those only. Choose another folder for out=."
            )
        self.checkpoint, damaged = folder.load_checkpoint()
        for text in damaged:
            warnings.warn(text, PropFairWarning, stacklevel=4)
        folder.save_environment(with_resume(folder.environment))
        self._notes = list(environment.notes)
        self._clock = Clock(self.checkpoint.seconds if self.checkpoint else 0.0)
        self._open(folder, self.checkpoint.round if self.checkpoint else 0)

    def add_outcome(self, outcome: Outcome) -> None:
        """What the training of a round did."""
        self._outcome = outcome
        self._records.add_outcome(outcome)

    def end_round(
        self, number: int, server: Aggregator, clients: Clients, values: Values, events: Sequence[Event]
    ) -> None:
        """Write a round: what it did, what went wrong, and what was measured on which examples of the clients."""
        if self._folder is None:
            self._begin(clients, values)
        assert self._folder is not None
        assert self.known is not None
        logged = {} if self._outcome is None else {f"round/{k}": v for k, v in self._outcome.diagnostics.items()}
        sizes = torch.tensor(self.known.sizes["train"], dtype=torch.float64)
        shares = (sizes / sizes.sum()).numpy()
        for prefix, evaluation in _evaluations(values, len(sizes)).items():
            self._records.add_evaluation(number, "test", evaluation, prefix)
            logged |= evaluation_values("test", evaluation, shares, prefix)
        for kind in dict.fromkeys(event.kind for event in events if event.clients):
            who = {client for event in events if event.kind == kind for client in event.clients}
            self._records.add_event(Event(number, kind, tuple(sorted(who)), ""))
        self._sinks.log(number, {name: value for name, value in logged.items() if math.isfinite(value)})
        self._note(events)
        seconds = self._clock.total()
        self._folder.save_checkpoint(Checkpoint(number, server.tensors(), seconds), self._records)
        self._folder.save_status("running", number, seconds=seconds)
        self._outcome = None

    def end(self, state: EndState, rounds: int, reason: str, model: Mapping[str, Tensor]) -> None:
        """Write the model and how it ended; nothing if no round was done."""
        if self._folder is None:
            return
        self._sinks.end(state)
        self._folder.save_model(model)
        self._folder.finish(state, rounds, reason, self._clock.total())
        self._held.close()
        self._folder = None

    def _begin(self, clients: Clients, values: Values) -> None:
        directions = {name: higher_is_better(name) for name in values if name != "loss" and PERSONAL not in name}
        environment = describe_place(
            seed=self._seed, engine="flower", algorithm=str(self._algorithm), task="other", metrics=directions
        )
        folder = RunFolder.create(
            self.path,
            name=self.path.name,
            environment={**environment, "deployment": self._settings},
            clients=clients.model_dump(),
        )
        self.known = clients
        self._held.enter_context(folder.in_use())
        self._open(folder, 0)

    def _open(self, folder: RunFolder, done: int) -> None:
        self._folder = folder
        self._sinks = open_sinks((), About(self.path.name, self.path, {}))
        self._sinks.begin(done)

    def _note(self, events: Sequence[Event]) -> None:
        """Keep the words of what went wrong: the records have numbers only."""
        assert self._folder is not None
        known = {line.rpartition(" (")[0] for line in self._notes}
        new: dict[str, str] = {}
        for event in events:
            text = f"{event.kind}: {event.detail}"
            who = f"client {event.clients[0]}, " if event.clients else ""
            if text not in known:
                new.setdefault(text, f"{text} ({who}round {event.round})")
        if new and len(self._notes) < MOST_NOTES:
            self._notes += list(new.values())[: MOST_NOTES - len(self._notes)]
            self._folder.save_environment({**self._folder.environment, "notes": self._notes})


def clients_of(names: Sequence[str], sizes: Sequence[int], tested: Mapping[ClientId, int]) -> Clients:
    """Who takes part. Nothing is known of their data but how much there is: that is the fingerprint."""
    held = json.dumps([list(names), list(sizes)]).encode()
    count = len(names)
    return Clients(
        fingerprint=f"flower-{hashlib.sha256(held).hexdigest()[:16]}",
        note="clients of a Flower deployment",
        names=tuple(names),
        sizes={
            "train": tuple(sizes),
            "validation": (0,) * count,
            "test": tuple(tested.get(client, 0) for client in range(count)),
        },
    )


def higher_is_better(metric: str) -> bool:
    """The direction of a metric that clients report, by its name."""
    name = metric.removeprefix(PERSONAL)
    return Measure("test", name).higher_is_better and not name.endswith(("loss", "error"))


def _evaluations(values: Values, count: int) -> dict[str, Evaluation]:
    """The evaluations of the global model and of personal ones, by prefix, from what clients reported."""
    found = {}
    for prefix in ("", PERSONAL):
        columns = {
            name.removeprefix(prefix): _column(of_clients, count)
            for name, of_clients in values.items()
            if name.startswith(PERSONAL) == bool(prefix)
        }
        if columns:
            nothing = torch.full((count,), torch.nan, dtype=torch.float64)
            loss, accuracy = columns.pop("loss", nothing), columns.pop("accuracy", nothing)
            found[prefix] = Evaluation(loss, accuracy, torch.zeros(count), columns)
    return found


def _column(of_clients: Mapping[ClientId, float], count: int) -> Tensor:
    column = torch.full((count,), torch.nan, dtype=torch.float64)
    for client, value in of_clients.items():
        column[client] = value
    return column
