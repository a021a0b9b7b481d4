"""The server: weighs adapters fairly, and writes a run that `propfair report` reads."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from adapters.task import Network
from propfair.flower import FairStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, adapters = context.run_config, Network().adapters()
    strategy = FairStrategy(str(config["algorithm"]), adapters, out=str(config["run"]))
    strategy.start(grid=grid, initial_arrays=ArrayRecord(adapters), num_rounds=int(config["rounds"]))
