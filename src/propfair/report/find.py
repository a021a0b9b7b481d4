"""Which folders are runs: a run folder itself, or any folder that has some below it."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_RUN_FILES = frozenset({"config.toml", "environment.json", "clients.json", "records.parquet", "checkpoints"})


@dataclass(frozen=True)
class Problem:
    """A folder that can't be shown, and why."""

    path: Path
    text: str

    def __str__(self) -> str:
        return self.text if str(self.path) in self.text else f"{self.path}: {self.text}"


def find_runs(places: Iterable[Path]) -> tuple[list[Path], list[Problem]]:
    """The run folders at or below each place, in order of their names, and what is wrong with the others."""
    found: dict[Path, None] = {}
    problems = []
    for place in places:
        if not place.is_dir():
            text = "there is no such folder" if not place.exists() else "this is a file; a run is a folder"
            problems.append(Problem(place, text))
            continue
        runs, broken = _below(place)
        found |= dict.fromkeys(runs)
        problems += [Problem(path, "half a run folder: it has no status.json") for path in broken]
        if not runs and not broken:
            problems.append(Problem(place, "not a run folder, and there is none below it (no status.json)"))
    return list(found), problems


def _below(place: Path) -> tuple[list[Path], list[Path]]:
    """Runs, and folders that look like the rest of one. A run has no runs below it."""
    runs, broken = [], []
    for name, folders, files in os.walk(place):
        path = Path(name)
        if "status.json" in files:
            runs.append(path)
            folders.clear()
        elif len(_RUN_FILES.intersection((*files, *folders))) > 1:
            broken.append(path)
            folders.clear()
        else:
            folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
    return runs, broken
