"""Who is ahead of whom, and who gains by joining, as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from propfair.cli.display import print_table
from propfair.fairness.joining import Joining
from propfair.report.group_table import GroupTable, group_table
from propfair.report.table_files import ENDINGS, Layout, sheets, write_tables
from propfair.runs.grouping import Comparison, Group
from propfair.runs.measures import Measure
from propfair.runs.standing import alone_among, joined

_SHOWN_PAIRS = 10


@dataclass(frozen=True, eq=False)
class Standing:
    """What groups on the same clients have over each other, and over training alone.

    Attributes:
        measure: of the clients, the most telling that there is.
        table: statistics and differences; None if nothing was measured.
        alone: the label of the local-only models; empty if there are none.
        gains: label to what its clients have over being alone.
    """

    measure: Measure
    table: GroupTable | None
    alone: str
    gains: dict[str, Joining]

    @classmethod
    def of(cls, groups: Sequence[Group]) -> "Standing":
        """By the leading measure of the first run."""
        measure = groups[0].runs[0].leading()
        known = tuple(group for group in groups if group.has(measure))
        table = group_table(Comparison(known[0].runs[0].clients, known), measure=measure) if known else None
        alone = alone_among(known)
        found = [] if alone is None else joined(known, alone, measure)
        return cls(measure, table, "" if alone is None else alone.label, {one.label: gain for one, gain in found})

    def write(self, folder: Path) -> None:
        """Write table.tex, .md, .html, .csv and .json, with the differences."""
        if self.table is not None:
            for ending in ENDINGS:
                write_tables([self.table], folder / f"table{ending}", Layout(differences=True))

    def show(self) -> None:
        """Print the differences of all pairs, if there are few enough to be read, and who is worse off than alone."""
        if self.table is not None:
            _print_differences(self.table)
        for label, gain in self.gains.items():
            print(f"{label} against {self.alone}: {gain.words}")

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "table": None if self.table is None else self.table.as_dict(),
            "joining": {label: gain.as_dict() for label, gain in self.gains.items()},
        }


def _print_differences(table: GroupTable) -> None:
    pairs = list(combinations(table.labels, 2))
    if len(pairs) > _SHOWN_PAIRS:
        print(f"who is ahead of whom, all {len(pairs)} pairs: in the report and in the tables")
    elif pairs:
        _, found = sheets(table, Layout(differences=True))
        print_table(
            "Who is ahead of whom, by how much, how surely",
            ["difference", *found.heading[1:]],
            [
                [name, *(f"{one.text}{'*' if one.marked else ''} {one.beside}".strip() for one in row)]
                for name, row in found.rows
            ],
            caption=found.note.replace("Bold:", "*:"),
        )
