"""Three deployments on form-fields, as run folders: what the picture in docs/flower.md is a report of.

    python -m benchmarks.deployment runs
    propfair report runs/countries-fedavg runs/countries-propfair runs/countries-afl

19 countries are the clients of a Flower grid in one process; a linear model, learning rate 0.1, a local epoch a round.
"""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import ArrayRecord
from torch import nn

import propfair
from benchmarks.flower_grid import grid_of
from propfair.data import FormFields
from propfair.federation import Federation, Natural
from propfair.flower import FairStrategy


def linear(federation: Federation, seed: int) -> Callable[[], nn.Module]:
    """Makes the same linear model each time."""
    width = federation.examples.inputs(torch.tensor([0])).shape[1]

    def network() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return nn.Linear(width, federation.examples.num_classes)

    return network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    federation = propfair.federate(FormFields().load(), Natural(), seed=0)
    network = linear(federation, 0)
    for name in ("fedavg", "propfair", "afl"):
        out = arguments.folder / f"countries-{name}"
        strategy = FairStrategy(name, network(), evaluate_every=5, out=out)
        start = ArrayRecord(network().state_dict())
        strategy.start(grid=grid_of(federation, network), initial_arrays=start, num_rounds=arguments.rounds)
        print(out, flush=True)


if __name__ == "__main__":
    main()
