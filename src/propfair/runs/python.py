"""What is kept of a run from Python, so that it can go on: all settings but the model, the data and the loss."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from propfair.algorithms.base import ALGORITHMS, Algorithm
from propfair.core.client import LocalTraining
from propfair.core.rounds import Rounds
from propfair.engines.session import ENGINES, Engine
from propfair.errors import ConfigError
from propfair.registry import fields_of
from propfair.runs.folder import RunFolder
from propfair.runs.schedule import Schedule
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

    @classmethod
    def of(cls, recipe: Recipe) -> "PythonSettings":
        """Of a training that is about to begin."""
        work = recipe.work
        return cls(
            name=recipe.name, seed=work.seed, device=work.device, task=work.task.name, lean=recipe.lean,
            algorithm=_named(work.algorithm), engine=_named(recipe.engine), local=work.local, server=recipe.server,
            schedule=recipe.schedule,
        )  # fmt: skip

    def make_algorithm(self) -> Algorithm:
        """The algorithm, if it is one that has a name."""
        options = dict(self.algorithm)
        name = options.pop("name")
        if name not in ALGORITHMS.names():
            raise ConfigError(f"the run was trained with {name!r}, which has no name here. Pass algorithm= to resume.")
        return ALGORITHMS.make(name, options)

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


def _named(part: Any) -> dict[str, Any]:
    return {"name": getattr(type(part), "name", type(part).__name__), **fields_of(part)}
