"""Who is served how well, against the number of local steps: the numbers and the picture of docs/local-epochs.md.

`python -m benchmarks.local_epochs` trains every rule on the words of 19 countries (data set form-fields) with one local
step in a round, five, one epoch and five epochs, and writes docs/local-epochs.json, the table of the page and its
picture. Numbers that are there are not made again, unless with `--again`; with `--draw` nothing is trained.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import propfair
from propfair.core import LocalTraining
from propfair.data import SOURCES
from propfair.federation import PARTITIONERS, Splitter, federate

DOCS = Path(__file__).parents[1] / "docs"
NUMBERS, PAGE, PICTURE = DOCS / "local-epochs.json", DOCS / "local-epochs.md", DOCS / "images" / "local-epochs.png"
BEGIN, END = "<!-- numbers of docs/local-epochs.json -->", "<!-- end of the numbers -->"

LR, BATCH_SIZE = 0.1, 64
LENGTHS: dict[str, tuple[dict[str, int], int]] = {  # name -> how long clients train in a round, and how many rounds
    "1 step": ({"steps": 1}, 1000),
    "5 steps": ({"steps": 5}, 250),
    "1 epoch": ({"epochs": 1}, 50),
    "5 epochs": ({"epochs": 5}, 25),
}
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "FedAvg": ("fedavg", {}),
    "FedAvg, each client once": ("fedavg", {"weighting": "uniform"}),
    "PropFair, as in the paper, M 5": ("propfair", {"preset": "paper"}),
    "PropFair, as in the paper, M 2": ("propfair", {"preset": "paper", "M": 2.0}),
    "PropFair on the step": ("propfair", {"placement": "step"}),
    "PropFair on the update": ("propfair", {"placement": "update"}),
    "PropFair on the server (default)": ("propfair", {}),
    "PropFair on the server, ratio 10": ("propfair", {"ratio": 10.0}),
    "AFL": ("afl", {}),
    "TERM, alpha 0.5": ("term", {}),
    "TERM, alpha 5": ("term", {"alpha": 5.0}),
    "q-FFL, q 0.1": ("q-fedavg", {}),
}
Numbers = dict[str, dict[str, list[tuple[float, float]]]]  # length -> rule -> (mean, worst client) of each seed


def train(seeds: int, numbers: Numbers) -> Numbers:
    """What is missing from the numbers, up to so many seeds; they are written after each run."""
    source = SOURCES.make("form-fields")
    protocol = source.protocol
    federation = federate(source.load(), PARTITIONERS.make(*protocol.partition), splitter=Splitter(**protocol.split))
    features = federation.examples.inputs(torch.arange(1)).shape[1]
    for length, (how, rounds) in LENGTHS.items():
        for label, (name, options) in RULES.items():
            found = numbers.setdefault(length, {}).setdefault(label, [])
            for seed in range(len(found), seeds):
                torch.manual_seed(seed)
                result = propfair.train(
                    torch.nn.Linear(features, federation.examples.num_classes), federation,
                    propfair.algorithm(name, **options),
                    local=LocalTraining(lr=LR, batch_size=BATCH_SIZE, **how),
                    rounds=rounds, eval_every=rounds, seed=seed, engine="vectorized",
                )  # fmt: skip
                accuracy = result.accuracy.tolist()
                found.append((100 * float(np.mean(accuracy)), 100 * min(accuracy)))
                print(f"{length:8}  {label:34} seed {seed}", *(f"{value:5.1f}" for value in found[-1]), flush=True)
                NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n")
    return numbers


def table(numbers: Numbers) -> str:
    """Mean / worst client, averaged over seeds, as Markdown."""
    head = ["rule", *numbers]
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * len(numbers)}"]
    for label in RULES:
        both = [np.mean(of_rules[label], axis=0) for of_rules in numbers.values()]
        lines.append(f"| {' | '.join([label, *(f'{mean:.1f} / {worst:.1f}' for mean, worst in both)])} |")
    return "\n".join(lines)


def write_page(numbers: Numbers) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(numbers)}\n\n{END}{rest.partition(END)[2]}")


def draw(numbers: Numbers) -> None:
    import matplotlib.pyplot as plt

    from propfair.report.picture import COLOURS

    figure, panels = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    markers = "osv^DPX*p<>hd"
    for number, label in enumerate(RULES):
        ours = label.startswith("PropFair on the server")
        style = {"color": COLOURS[number % len(COLOURS)], "marker": markers[number], "lw": 2.6 if ours else 1.2}
        for k, panel in enumerate(panels):
            values = [np.mean(of_rules[label], axis=0)[k] for of_rules in numbers.values()]
            panel.plot(list(numbers), values, label=label, ms=5, zorder=3 if ours else 2, **style)
    for panel, title in zip(panels, ("mean over clients", "worst client"), strict=True):
        panel.set_title(title, fontsize=10)
        panel.set_xlabel("local training in a round")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test accuracy, %")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(PICTURE, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each rule")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--again", action="store_true", help="forget the numbers that there are, and train all")
    either.add_argument("--draw", action="store_true", help="train nothing: draw the numbers that there are")
    given = parser.parse_args()
    numbers: Numbers = {} if given.again or not (given.draw or NUMBERS.exists()) else json.loads(NUMBERS.read_text())
    if not given.draw:
        numbers = train(given.seeds, numbers)
    write_page(numbers)
    draw(numbers)


if __name__ == "__main__":
    main()
