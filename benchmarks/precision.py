"""Does bf16 train as well as float32? The same runs in both, seed by seed; differences with their intervals.

`python -m benchmarks.precision` needs CIFAR-10 (PROPFAIR_DATA). Runs are kept in --out: stopped, it goes on. Where the
processor can't multiply bf16, numbers are rounded to it, which takes longer.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import pages
from benchmarks.harness import ROOT
from propfair.fairness.differences import compare_statistic
from propfair.runs.building import Federations
from propfair.runs.config import RunConfig, make_config
from propfair.runs.launch import ensure_run

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- precision: written by python -m benchmarks.precision -->", "<!-- end of precision -->"
PRECISIONS = ("float32", "bf16")
STATISTICS = ("mean", "worst10")
SETUPS = {
    "form-fields": ("data=form-fields", "model=mlp", "local.lr=0.3", "schedule.rounds=30"),
    "CIFAR-10, small": (
        "data=cifar10", "data.part=test", "data.normalize=true", "model=resnet10-gn", "model.width=16",
        "local.batch_size=32", "local.lr=0.05", "schedule.rounds=10",
    ),
}  # fmt: skip


def config(setup: str, precision: str, seed: int, more: Sequence[str] = ()) -> RunConfig:
    """One run, client by client on one thread, evaluated at its end."""
    how = ("engine=inprocess", "engine.threads=1", "schedule.eval_every=1000000")
    return make_config({}, [*SETUPS[setup], *how, f"local.precision={precision}", f"seed={seed}", *more])


def compare(setup: str, seeds: Sequence[int], out: Path, level: float, more: Sequence[str] = ()) -> list[str]:
    """The rows of the table of one set-up: test accuracies over clients in percent, bf16 minus float32."""
    federations = Federations()
    tables: dict[str, dict[int, list[float]]] = {precision: {} for precision in PRECISIONS}
    for seed in seeds:
        for precision in PRECISIONS:
            one = config(setup, precision, seed, more)
            folder = out / f"{setup.partition(',')[0].lower()}-{precision}-seed{seed}"
            run = ensure_run(one, folder, name=precision, federation=partial(federations.of, one))
            tables[precision][seed] = (100 * run.values()).tolist()
            print(f"{setup}, {precision}, seed {seed}: mean {100 * run.summary().mean:.2f}", flush=True)
    rows = []
    for statistic in STATISTICS:
        found = compare_statistic(tables, statistic, level=level)
        a, b = found.names.index("bf16"), found.names.index("float32")
        gap, low, high = (table[a, b] for table in (found.differences, found.low, found.high))
        inside = "yes" if low <= 0 <= high else "no"
        rows.append(
            f"| {setup} | {statistic} | {found.values[b]:.2f} | {found.values[a]:.2f} | {gap:+.2f} | "
            f"{low:+.2f} to {high:+.2f} | {inside} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("--setups", default=";".join(SETUPS), help="separated by semicolons; default: all")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="the smallest of them")
    parser.add_argument("--out", type=Path, default=Path("runs/precision"), help="the folder of the runs")
    parser.add_argument("--dry-run", action="store_true", help="print the table, write nothing to docs")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of all runs")
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    setups = given.setups.split(";")
    level = 1 - 0.05 / (len(setups) * len(STATISTICS))  # so that all rows hold at once
    rows = [row for setup in setups for row in compare(setup, seeds, given.out, level, given.overrides)]
    lines = [
        f"Test accuracy over clients in percent, seeds {seeds[0]} to {seeds[-1]}, the default algorithm; intervals "
        "that hold all at once at 95 %:", "",
        "| data | statistic | float32 | bf16 | difference | interval | holds 0 |", "|---|---|---:|---:|---:|---:|---|",
        *rows,
    ]  # fmt: skip
    print("\n".join(lines))
    if not given.dry_run:
        pages.put(PAGE, BEGIN, END, "\n".join(lines))


if __name__ == "__main__":
    main()
