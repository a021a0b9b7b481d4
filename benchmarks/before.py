"""Many short runs, now and in an older version: `python -m benchmarks.before CHECKOUT`.

CHECKOUT is a folder with another commit of this repository (`git worktree add CHECKOUT COMMIT`). Both versions run the
same commands in turns, from an empty process to its end, in this environment.
"""

import argparse
from pathlib import Path

from benchmarks import pages
from benchmarks.commands import COMMANDS, PROPFAIR, measure_checkouts
from benchmarks.harness import ROOT

PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- before: written by python -m benchmarks.before -->", "<!-- end of before -->"
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
    parser.add_argument("--dry-run", action="store_true", help="print the table, write nothing to docs")
    given = parser.parse_args()
    name = given.name or given.checkout.name
    lines = [
        f"Medians of {given.repeats} turns; processor time is that of all processes:", "",
        f"| command | {name}: seconds | now | times as fast | {name}: processor time | now | times |",
        f"|---|{'---:|' * 6}",
    ]  # fmt: skip
    for old, new in measure_checkouts(given.repeats, [given.checkout.resolve(), ROOT], BULK):
        cells = (
            f"{old.seconds:.1f}", f"{new.seconds:.1f}", f"{old.seconds / new.seconds:.1f}",
            f"{old.processor:.1f}", f"{new.processor:.1f}", f"{old.processor / new.processor:.1f}",
        )  # fmt: skip
        lines.append(f"| {old.name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if not given.dry_run:
        pages.put(PAGE, BEGIN, END, "\n".join(lines))


if __name__ == "__main__":
    main()
