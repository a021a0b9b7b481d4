"""Writes the tables of docs/which-algorithm.md from the classes: `python scripts/write_algorithm_tables.py`."""

from pathlib import Path

from propfair.algorithms import guide
from propfair.files import write_text

PAGE = Path(__file__).parents[1] / "docs" / "which-algorithm.md"


def with_tables(page: str) -> str:
    """The page with tables as the classes are now."""
    found = guide.entries()
    tables = {
        "rules": guide.markdown([entry for entry in found if not entry.wrapper]),
        "wrappers": guide.markdown([entry for entry in found if entry.wrapper]),
    }
    for name, table in tables.items():
        begin, end = f"<!-- {name}: written by scripts/write_algorithm_tables.py -->", "<!-- end -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{table}\n{end}{rest.split(end, 1)[1]}"
    return page


if __name__ == "__main__":
    write_text(PAGE, with_tables(PAGE.read_text(encoding="utf-8")))
