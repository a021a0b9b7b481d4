"""Training on from the model of another run, and the paper's question: is anybody better off?"""

import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from propfair.errors import ConfigError
from propfair.runs.certify import check_same_clients
from propfair.runs.compare import Contestant
from propfair.runs.config import RunConfig, make_config, read_toml
from propfair.runs.folder import RunFolder
from propfair.runs.names import slug
from propfair.runs.run import Watch, saved_config
from propfair.runs.saved import Federations, SavedRun, ensure_run


@dataclass(frozen=True)
class FineTuned:
    """A run and what became of its model under another algorithm."""

    start: SavedRun
    end: SavedRun


def config_from(start: Path, config: Path | None, overrides: Iterable[str]) -> RunConfig:
    """The config of a run that trains on from another one: that run's own, unless a file is given, plus overrides."""
    return make_config({**_base(start, config), "start": str(start)}, overrides)


def finetune(
    starts: Sequence[Path],
    contestants: Sequence[Contestant],
    *,
    overrides: Iterable[str] = (),
    out: Path,
    watcher: Callable[[str, int], AbstractContextManager[Watch]],
) -> list[FineTuned]:
    """Train on from every start with every contestant, each with the seed and settings of its start.

    Everything is validated before the first run starts; runs that are there already are not run again.
    """
    if not starts or not contestants:
        raise ConfigError("fine-tuning needs at least one run to start from and one algorithm to go on with")
    shared, saved_starts = tuple(overrides), [SavedRun.read(start) for start in starts]
    check_same_clients(saved_starts)
    plan = []
    for saved in saved_starts:
        if saved.status["state"] != "finished":
            raise ConfigError(f"{saved.path} is not finished. Go on with it first: propfair resume {saved.path}")
        plan += [(saved, one, config_from(saved.path, None, [*shared, *one.overrides])) for one in contestants]
    folders = {id(config): out / slug(f"{saved.path.name}-then-{one.label}") for saved, one, config in plan}
    if len(set(folders.values())) < len(plan):
        raise ConfigError("two of the runs to start from, or of the algorithms, have the same name")
    federations = Federations()
    tuned = []
    for saved, one, config in plan:
        title = f"{saved.name} then {one.label}"
        with watcher(title, config.schedule.rounds) as watch:
            end = ensure_run(
                config, folders[id(config)], name=title, watch=watch, federation=partial(federations.of, config)
            )
        tuned.append(FineTuned(saved, end))
    return tuned


def _base(start: Path, config: Path | None) -> dict[str, Any]:
    return read_toml(config) if config else tomllib.loads(saved_config(RunFolder.open(start)).to_toml())
