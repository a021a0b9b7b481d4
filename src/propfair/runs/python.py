"""What is kept of a run from Python, so that it can go on: all settings but the model, the data and the loss."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from propfair.algorithms.base import ALGORITHMS, Algorithm, make_algorithm
from propfair.core.client import LocalTraining
from propfair.core.losses import ExampleLoss
from propfair.core.rounds import Rounds
from propfair.engines.session import ENGINES, Engine
from propfair.errors import ConfigError
from propfair.registry import fields_of
from propfair.runs.folder import RunFolder
from propfair.runs.names import short_hash
from propfair.runs.schedule import Schedule
from propfair.runs.toml import flat
from propfair.runs.training import Recipe


class PythonSettings(BaseModel):
    """The settings of a run from Python, as environment.json keeps them under "settings"."""

    model_config = ConfigDict(frozen=True)

    name: str
    seed: int
    device: str
    task: str
    lean: bool
    algorithm: dict[str, Any]
    engine: dict[str, Any]
    local: LocalTraining
    server: Rounds
    schedule: Schedule
    loss: str = ""  # what it is called; not kept by older versions
    lr_function: str = ""  # what a function for the learning rate is called; the schedule in `server` is then constant
    model: str = ""  # what the network is, so that runs of another one are no further seeds of this; not kept before

    @classmethod
    def of(cls, recipe: Recipe, module: nn.Module) -> "PythonSettings":
        """Of a training of `module` that is about to begin."""
        work, server, function = recipe.work, recipe.server, ""
        if callable(server.lr_schedule):
            server, function = replace(server, lr_schedule="constant"), said_function(server.lr_schedule)
        return cls(
            name=recipe.name, seed=work.seed, device=work.device, task=work.task.name, lean=recipe.lean,
            algorithm=_named(work.algorithm), engine=_named(recipe.engine), local=work.local, server=server,
            schedule=recipe.schedule, loss=said_function(work.loss), lr_function=function,
            model=said_model(module),
        )  # fmt: skip

    def written(self) -> dict[str, Any]:
        """As plain values for JSON; of what can't be written, such as a tensor of an own algorithm, the text."""
        return self.model_dump(mode="json", fallback=repr)

    def make_server(self, lr_schedule: Callable[[int], float] | None) -> Rounds:
        """How rounds are run; a function for the learning rate is not kept and must be given again."""
        if bool(self.lr_function) != (lr_schedule is not None):
            began = f"the function {self.lr_function}" if self.lr_function else f"{self.server.lr_schedule!r}"
            raise ConfigError(
                f"the run began with lr_schedule {began}: "
                + ("pass it to resume as lr_schedule=." if self.lr_function else "leave lr_schedule= out.")
            )
        return self.server if lr_schedule is None else replace(self.server, lr_schedule=lr_schedule)

    def check(self, now: "PythonSettings", where: Path) -> None:
        """A run goes on as it began, or not at all; engine, device and number of rounds decide no result.

        That the network is the same is seen from its parameters.
        """
        free = {"name", "engine", "device", "model"}
        then, changed = (
            flat({key: value for key, value in one.written().items() if key not in free}) for one in (self, now)
        )
        for key in ("schedule.rounds", "schedule.checkpoint_every"):
            del then[key], changed[key]
        for key in sorted(then.keys() | changed.keys()):
            if then.get(key) != changed.get(key) and not (key == "loss" and not self.loss):
                raise ConfigError(
                    f"{where} began with {key} {then.get(key)}, and can't go on with {changed.get(key)}. Take the old "
                    "value, or another folder."
                )

    def make_algorithm(self) -> Algorithm:
        """The algorithm, if it is one that has a name."""
        options = dict(self.algorithm)
        name = options.pop("name")
        if ":" not in name and name not in ALGORITHMS.names():
            raise ConfigError(f"the run was trained with {name!r}, which has no name here. Pass algorithm= to resume.")
        return make_algorithm(name, options)

    def make_engine(self) -> Engine:
        """The engine."""
        options = dict(self.engine)
        return ENGINES.make(options.pop("name"), options)


def read_settings(path: Path) -> PythonSettings:
    """The settings of a run folder that `train(out=...)` has made."""
    found = RunFolder.open(path).environment.get("settings")
    if found is None:
        raise ConfigError(
            f"{path} was not started from Python by this version. Runs of the command line go on with: "
            f"propfair resume {path}"
        )
    try:
        return PythonSettings.model_validate(found)
    except ValidationError as error:
        raise ConfigError(f"{path}: environment.json: settings: {error.errors()[0]['msg']}") from None


def said_function(function: Any) -> str:
    """What a loss or a schedule is called; criteria are told apart by all that they hold."""
    if isinstance(function, ExampleLoss):
        return said_function(function.criterion)
    if isinstance(function, partial):
        return f"{said_function(function.func)}({', '.join(f'{k}={v}' for k, v in sorted(function.keywords.items()))})"
    if isinstance(function, nn.Module):
        held = b"".join(tensor.cpu().numpy().tobytes() for _, tensor in sorted(function.state_dict().items()))
        return f"{function!r}{f' {short_hash(held.hex())}' if held else ''}"
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"


def said_model(module: nn.Module) -> str:
    """What a network is called; those of one class are told apart by their layers."""
    return f"{type(module).__qualname__} {short_hash(repr(module))}"


def _named(part: Any) -> dict[str, Any]:
    return {"name": getattr(type(part), "name", type(part).__name__), **fields_of(part)}
