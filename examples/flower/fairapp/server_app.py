"""The server: any algorithm of propfair as the strategy."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

import propfair
from fairapp.task import network
from propfair.flower import FairStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    options = dict(option.split("=") for option in str(config["options"]).split())
    local = propfair.LocalTraining(
        lr=float(config["lr"]), batch_size=int(config["batch-size"]), epochs=int(config["epochs"])
    )
    strategy = FairStrategy(
        propfair.algorithm(str(config["algorithm"]), **options),
        network(),
        local=local,
        seed=int(config["seed"]),
        evaluate_every=int(config["evaluate-every"]),
        out=str(config["run"]) or None,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]),
    )
    for outcome in strategy.outcomes:
        print(
            f"round {outcome.round}: weights {[round(w, 4) for w in outcome.weights.tolist()]}, "
            f"dropped {list(outcome.dropped)}"
        )
    if config["out"]:
        save_file(result.arrays.to_torch_state_dict(), str(config["out"]))
