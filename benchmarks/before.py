"""Many short runs, or the memory of W1, now and in an older version: `python -m benchmarks.before CHECKOUT [--memory]`.

CHECKOUT is a folder with another commit of this repository (`git worktree add CHECKOUT COMMIT`). Both versions run the
same commands in turns, from an empty process to its end, in this environment.
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks import pages
from benchmarks.commands import COMMANDS, PROPFAIR, measure_checkouts
from benchmarks.harness import ROOT

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- before: written by python -m benchmarks.before -->", "<!-- end of before -->"
MEMORY_BEGIN, MEMORY_END = "<!-- memory: written by python -m benchmarks.before --memory -->", "<!-- end of memory -->"
PEAK = "from benchmarks.harness import profile; print(profile('propfair', 'W1', seconds=2).peak_bytes)"
SWEEP = "sweep of 100 logistic regressions"
COMPARISON = "comparison of seven rules, three seeds"  # the demo of version 0.1.0, for which both versions have words
BULK = {
    SWEEP: COMMANDS[SWEEP],
    COMPARISON: (
        *PROPFAIR, "compare", "-q", "--config", str(ROOT / "benchmarks" / "compare.toml"), "--seeds", "0,1,2",
        "--force", "--out", "{out}",
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.before", description=__doc__)
    parser.add_argument("checkout", type=Path, help="a folder with the older version")
    parser.add_argument("--name", default="", help="what to call it, such as its commit; default: the folder")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each")
    parser.add_argument("--memory", action="store_true", help="the peak memory of W1 instead of the time of commands")
    parser.add_argument("--dry-run", action="store_true", help="print the table, write nothing to docs")
    given = parser.parse_args()
    name, checkouts = given.name or given.checkout.name, [given.checkout.resolve(), ROOT]
    table = memory_table if given.memory else commands_table
    text = table(name, checkouts, given.repeats)
    print(text)
    if not given.dry_run:
        pages.put(PAGE, *((MEMORY_BEGIN, MEMORY_END) if given.memory else (BEGIN, END)), text)


def commands_table(name: str, checkouts: list[Path], repeats: int) -> str:
    """What many short runs take."""
    lines = [
        f"Medians of {repeats} turns; processor time is that of all processes:", "",
        f"| command | {name}: seconds | now | times as fast | {name}: processor time | now | times |",
        f"|---|{'---:|' * 6}",
    ]  # fmt: skip
    for old, new in measure_checkouts(repeats, checkouts, BULK):
        cells = (
            f"{old.seconds:.1f}", f"{new.seconds:.1f}", f"{old.seconds / new.seconds:.1f}",
            f"{old.processor:.1f}", f"{new.processor:.1f}", f"{old.processor / new.processor:.1f}",
        )  # fmt: skip
        lines.append(f"| {old.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def memory_table(name: str, checkouts: list[Path], repeats: int) -> str:
    """The peak memory of all processes of W1."""
    peaks = [[_peak_mebibytes(checkout) for checkout in checkouts] for _ in range(repeats)]
    cells = [f"{statistics.median(own):.0f} ({min(own):.0f}-{max(own):.0f})" for own in zip(*peaks, strict=True)]
    return "\n".join([
        f"Peak memory of W1 in MiB, medians of {repeats} turns, with the least and the most:", "",
        f"| {name} | now |", "|---:|---:|", f"| {' | '.join(cells)} |",
    ])  # fmt: skip


def _peak_mebibytes(checkout: Path) -> float:
    path = os.pathsep.join([str(checkout / "src"), str(checkout)])
    said = subprocess.check_output(
        [sys.executable, "-c", PEAK], cwd=checkout, env={**os.environ, "PYTHONPATH": path}, text=True
    )
    return int(said.split()[-1]) / 2**20


if __name__ == "__main__":
    main()
