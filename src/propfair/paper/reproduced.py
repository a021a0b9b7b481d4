"""A table or figure of the paper, redone: our numbers beside the paper's."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from propfair.paper.catalogue import Preset
from propfair.runs.certificate import Certified


@dataclass(frozen=True)
class Number:
    """One number of ours beside the paper's; nan where there is none. `low` and `high` are limits of an interval."""

    row: str
    column: str
    ours: float
    ours_std: float = math.nan
    paper: float = math.nan
    paper_std: float = math.nan
    low: float = math.nan
    high: float = math.nan

    @property
    def difference(self) -> float:
        return self.ours - self.paper

    @property
    def in_stds(self) -> float:
        """The difference in units of the paper's own standard deviation over seeds; nan if it gives none."""
        return self.difference / self.paper_std if self.paper_std > 0 else math.nan

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON values; None for nan."""
        values = {**vars(self), "difference": self.difference, "in_stds": self.in_stds}
        return {key: None if isinstance(one, float) and math.isnan(one) else one for key, one in values.items()}


@dataclass(frozen=True)
class Reproduced:
    """A table or figure, redone.

    Attributes:
        name: of the preset.
        preset: with the paper's numbers.
        numbers: ours and the paper's; accuracies and relative changes in percent.
        notes: what differs from the paper, said in sentences.
        certified: for figures of relative changes.
        runs: the folders of the runs behind the numbers; none for what is computed.
        part: what this table is about, for presets with several.
        chosen: by row, the values that were chosen, as they are written for people.
        at_paper_scale: the numbers are of the paper's protocol, so that differences may be held against its spread.
    """

    name: str
    preset: Preset
    numbers: list[Number] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    certified: list[Certified] = field(default_factory=list)
    runs: list[Path] = field(default_factory=list)
    part: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)
    at_paper_scale: bool = False

    @property
    def title(self) -> str:
        """What it shows."""
        return f"{self.preset.title}: {self.part}" if self.part else self.preset.title

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON values; None for nan."""
        return {
            "name": self.name,
            "title": self.title,
            "notes": self.notes,
            "numbers": [number.as_dict() for number in self.numbers],
            "chosen": dict(self.chosen),
            "certificates": [one.as_dict() for one in self.certified],
            "runs": [str(path) for path in self.runs],
        }
