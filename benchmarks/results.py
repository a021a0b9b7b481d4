"""The tables of docs/results.md whose runs are on record in results/: `python -m benchmarks.results` writes them again.

A table stands between two comments that name the command of which it is the output:

    <!-- propfair table results/NAME.parquet --statistics mean,worst10 -->
    <!-- end of the table -->
"""

import re
import tempfile
from pathlib import Path

from propfair.report.group_table import group_table
from propfair.report.table_files import write_tables
from propfair.runs.grouping import by_clients
from propfair.runs.reading import read_runs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results.md"
_TABLE = re.compile(
    r"(<!-- propfair table (?P<file>\S+) --statistics (?P<statistics>\S+) -->\n).*?(<!-- end of the table -->)",
    re.DOTALL,
)


def rebuilt(text: str) -> str:
    """A page with its tables made anew from the records."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{table(ROOT / found['file'], found['statistics'])}\n{found[4]}", text)


def table(path: Path, statistics: str) -> str:
    """The Markdown of a table."""
    runs, problems = read_runs([path])
    if problems:
        raise SystemExit(str(problems[0]))
    tables = [group_table(comparison, statistics.split(",")) for comparison in by_clients(runs)]
    with tempfile.TemporaryDirectory() as folder:
        write_tables(tables, Path(folder) / "table.md")
        return (Path(folder) / "table.md").read_text(encoding="utf-8")


if __name__ == "__main__":
    PAGE.write_text(rebuilt(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
