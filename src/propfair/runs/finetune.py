"""Training on from the model of another run, and the paper's question: is anybody better off?"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from propfair.errors import ConfigError
from propfair.runs.building import Federations
from propfair.runs.compare import ShowRun
from propfair.runs.config import RunConfig, make_config
from propfair.runs.contestant import Contestant
from propfair.runs.folder import RunFolder
from propfair.runs.grouping import check_same_clients
from propfair.runs.launch import ensure_run, saved_config
from propfair.runs.names import slug
from propfair.runs.reading import read_run
from propfair.runs.run import Run
from propfair.runs.toml import read_toml


@dataclass(frozen=True)
class FineTuned:
    """A run and what became of its model under another algorithm."""

    start: Run
    end: Run


def config_from(start: Path, config: Path | None, overrides: Mapping[str, Any], *, trust: bool = False) -> RunConfig:
    """The config of a run that trains on from another one: that run's own, unless a file is given, plus overrides.

    What the run or the file asks to be imported or connected is refused without `trust`.
    """
    if config is not None:
        return make_config({**read_toml(config), "start": str(start)}, overrides, origin=config, trust=trust)
    own = saved_config(RunFolder.open(start), trust=trust)
    return make_config({**tomllib.loads(own.to_toml()), "start": str(start)}, overrides)


def finetune(
    starts: Sequence[Path],
    contestants: Sequence[Contestant],
    *,
    overrides: Mapping[str, Any] | None = None,
    out: Path,
    show_run: ShowRun,
    trust: bool = False,
) -> list[FineTuned]:
    """Train on from every start with every contestant, each with the seed and settings of its start.

    Everything is validated before the first run starts; runs that are there already are not run again.
    """
    if not starts or not contestants:
        raise ConfigError("fine-tuning needs at least one run to start from and one algorithm to go on with")
    runs = {start: read_run(start) for start in starts}
    check_same_clients(list(runs.values()))
    planned = []
    for path, run in runs.items():
        if run.status.state != "finished":
            raise ConfigError(f"{path} is not finished. Go on with it first: propfair resume {path}")
        for one in contestants:
            config = config_from(path, None, {**(overrides or {}), **one.settings}, trust=trust)
            planned.append((run, config, f"{run.name} then {one.label}", out / slug(f"{path.name}-then-{one.label}")))
    if len({folder for *_, folder in planned}) < len(starts) * len(contestants):
        raise ConfigError("two of the runs to start from, or of the algorithms, have the same name")
    federations = Federations()
    tuned = []
    for run, config, title, folder in planned:
        with show_run(title, config.schedule.rounds) as after_round:
            end = ensure_run(
                config, folder, name=title, federation=partial(federations.of, config), after_round=after_round
            )
        tuned.append(FineTuned(run, end))
    return tuned
