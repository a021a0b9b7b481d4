"""What differential privacy costs, and whom: FedAvg and PropFair on form-fields behind Flower's wrapper.

    python -m benchmarks.privacy --rounds 30 --clip 0.5 --noise 0 1 5

19 countries, a linear model, one local epoch of batches of 64 a round, as in docs/results.md. Clients send updates
through real Flower messages in one process; PropFair is the one that needs sums only (placement="update"). Printed are
the test accuracies of the mean and of the worst-off client over seeds with their deviation, and the epsilon of the
client-level guarantee at delta = 1e-5, by the largest weight of each round.
"""

import argparse
import logging

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping

import propfair
from benchmarks.deployment import linear
from benchmarks.flower_grid import grid_of
from propfair.algorithms import Algorithm, FedAvg, PropFair
from propfair.data import FormFields
from propfair.federation import Federation, Natural
from propfair.flower import FairStrategy, epsilon_spent

CONTESTANTS: dict[str, Algorithm] = {
    "FedAvg": FedAvg(),
    "FedAvg, each client counts once": FedAvg(weighting="uniform"),
    "PropFair on the update": PropFair(placement="update"),
}


def private_run(
    federation: Federation, algorithm: Algorithm, seed: int, rounds: int, clip: float, noise: float, lr: float
) -> tuple[list[float], float]:
    """Test accuracies of the clients, and epsilon."""
    network = linear(federation, seed)
    count = federation.num_clients
    local = propfair.LocalTraining(lr=lr, batch_size=64)
    fair = FairStrategy(algorithm, network(), local=local, seed=seed, evaluate_every=rounds)
    np.random.seed(seed)  # noqa: NPY002 (Flower draws its noise from it)
    strategy = DifferentialPrivacyServerSideFixedClipping(fair, noise, clip, count) if clip else fair
    strategy.start(
        grid=grid_of(federation, network), initial_arrays=ArrayRecord(network().state_dict()), num_rounds=rounds
    )
    accuracy = fair.evaluations[rounds]["accuracy"]
    return [accuracy[client] for client in range(count)], epsilon_spent(fair.outcomes, noise, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=0.5, help="the length that updates are clipped to")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 1.0, 5.0], help="noise multipliers")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    federation = propfair.federate(FormFields().load(), Natural(), seed=0)
    print("| | clip | noise | epsilon | mean | worst-off client |\n|---|---:|---:|---:|---:|---:|")
    settings = [(0.0, 0.0), *((arguments.clip, noise) for noise in arguments.noise)]
    for name, algorithm in CONTESTANTS.items():
        for clip, noise in settings:
            found, epsilons = [], []
            for seed in range(arguments.seeds):
                accuracy, epsilon = private_run(
                    federation, algorithm, seed, arguments.rounds, clip, noise, arguments.lr
                )
                found.append(accuracy)
                epsilons.append(epsilon)
            table = 100 * np.array(found)
            mean, worst = table.mean(1), table.min(1)
            spread = 1 if arguments.seeds > 1 else 0
            told = f"{np.mean(epsilons):.3g}" if noise else "none"
            numbers = [f"{of.mean():.1f} ± {of.std(ddof=spread):.1f}" for of in (mean, worst)]
            print("|", " | ".join([name, str(clip or "off"), str(noise or "off"), told, *numbers]), "|", flush=True)


if __name__ == "__main__":
    main()
