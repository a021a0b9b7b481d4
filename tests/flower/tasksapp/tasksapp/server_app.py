"""Trains every task with every rule that the run config names, and saves the models."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from propfair import LocalTraining
from propfair.flower import FairStrategy
from tests.flower.tasksapp.tasksapp.client_app import TASK
from tests.tasks.scenes import SCENES

LOCAL, SEED = LocalTraining(lr=0.05, batch_size=8), 4
app = ServerApp()


class Labelled:
    """A grid that says in every message which task it is for."""

    def __init__(self, grid: Grid, name: str) -> None:
        self._grid, self._name = grid, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        labelled = list(messages)
        for message in labelled:
            message.content[TASK] = ConfigRecord({TASK: self._name})
        return self._grid.send_and_receive(labelled, timeout=timeout)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """`pairs` are the names of a task and a rule, as in "regression: afl"; `out` is the folder for the models."""
    for pair in str(context.run_config["pairs"]).split("; "):
        name, rule = pair.split(": ")
        scene = SCENES[name]
        strategy = FairStrategy(rule, scene.module(), local=LOCAL, seed=SEED)
        start = ArrayRecord(scene.module().state_dict())
        result = strategy.start(grid=Labelled(grid, name), initial_arrays=start, num_rounds=2)  # type: ignore[arg-type]
        save_file(
            result.arrays.to_torch_state_dict(), Path(str(context.run_config["out"])) / f"{name}-{rule}.safetensors"
        )
