"""`python -m benchmarks`: measure, then write docs/performance.md, its figure and the numbers as JSON."""

import argparse
import datetime
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks import commands, growth, harness, machine
from benchmarks.report import BASE, Results, draw, markdown, write_page
from benchmarks.workloads import WORKLOADS

DOCS = harness.ROOT / "docs"
PEERS = {"flower": "flwr", "pfl": "pfl"}  # contestant -> the package it needs


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="comma-separated; default: all")
    parser.add_argument("--contestants", default=f"{BASE},propfair,propfair:bf16", help="e.g. bare,propfair:inprocess")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME[=PYTHON]",
        help=f"also measure {', '.join(PEERS)}; PYTHON is the interpreter of the environment that has it",
    )  # fmt: skip
    parser.add_argument("--repeats", type=int, default=5, help="turns of each contestant")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn, about")
    parser.add_argument("--no-memory", action="store_true", help="leave out memory and start-up")
    parser.add_argument("--no-growth", action="store_true", help="leave out the growth curves")
    parser.add_argument("--no-commands", action="store_true", help="leave out what whole commands take")
    parser.add_argument("--no-overhead", action="store_true", help="leave out the share of the framework")
    parser.add_argument("--out", type=Path, default=DOCS, help="the folder of performance.md; default: docs")
    parser.add_argument("--add", action="store_true", help="keep what is in --out of other workloads and measures")
    parser.add_argument("--dry-run", action="store_true", help="print the tables, write nothing")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # contestants that stand still are not left behind
    contestants = dict.fromkeys(given.contestants.split(","), sys.executable)
    described = machine.describe()
    for peer in given.peer:
        name, _, python = peer.partition("=")
        if name not in PEERS:
            sys.exit(f"unknown peer {name!r}. Known: {', '.join(PEERS)}")
        contestants[name] = python or sys.executable
        version = machine.version_elsewhere(contestants[name], PEERS[name])
        if not version:
            sys.exit(f"{contestants[name]} has no {PEERS[name]}. Install it there, with propfair, or name another.")
        described[PEERS[name]] = version
    results = Results(f"{datetime.date.today():%Y-%m-%d}", described, given.repeats, given.seconds)
    others = Results.load(given.out / "performance.json") if given.add else None
    if others is not None:
        results.check_addable_to(others)  # before minutes of measuring are spent
    for workload in given.workloads.split(","):
        found = harness.compare(
            workload, contestants, repeats=given.repeats, seconds=given.seconds, with_memory=not given.no_memory
        )
        results.measured += found
        for m in found:
            print(f"{m.workload:8} {m.contestant:20} {m.speed:12,.0f} examples/s {m.error[-300:]}", flush=True)
    if not given.no_overhead:
        for examples in (128, 1024):
            asked = [sys.executable, "-m", "benchmarks.overhead", f"W1@examples={examples}"]
            results.overhead[examples] = float(subprocess.check_output(asked, cwd=harness.ROOT, text=True).split()[-1])
    if not given.no_commands:
        results.commands = commands.measure(given.repeats)
    if not given.no_growth:
        results.growth = growth.measure("propfair", min(given.seconds, 1.0))
    if others is not None:
        results = results.added_to(others)
    print(markdown(results))
    if not given.dry_run:
        results.save(given.out / "performance.json")
        draw(results, given.out / "performance.svg")
        write_page(results, given.out / "performance.md", given.out / "performance.svg")


if __name__ == "__main__":
    main()
