"""Several algorithms on the same clients, over the same seeds."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from propfair.errors import ConfigError
from propfair.federation.federation import Federation
from propfair.runs.building import build_federation
from propfair.runs.config import RunConfig, make_config
from propfair.runs.contestant import Contestant
from propfair.runs.grouping import Group
from propfair.runs.launch import run
from propfair.runs.names import slug
from propfair.runs.result import Result
from propfair.runs.training import AfterRound

ShowRun = Callable[[str, int], AbstractContextManager[AfterRound]]  # (title, rounds) -> what is told after rounds


@dataclass(frozen=True)
class Compared:
    """The runs of one contestant, one for each seed."""

    contestant: Contestant
    config: RunConfig
    results: tuple[Result, ...]

    @property
    def group(self) -> Group:
        """The runs under the contestant's label."""
        return Group(self.contestant.label, tuple(result.run for result in self.results), {})


def compare(
    content: Mapping[str, Any],
    contestants: Sequence[Contestant],
    *,
    overrides: Mapping[str, Any] | None = None,
    seeds: Sequence[int] = (0,),
    out: Path,
    force: bool = False,
    show_run: ShowRun,
) -> tuple[list[Compared], Federation]:
    """Run every contestant with every seed on one federation. Everything is validated before the first run starts."""
    if len(contestants) < 2 or len({c.label for c in contestants}) < len(contestants):
        raise ConfigError("compare needs at least two different algorithms, such as: propfair compare fedavg propfair")
    configs = [make_config(content, {**(overrides or {}), **contestant.settings}) for contestant in contestants]
    if any(config.data != configs[0].data for config in configs):
        raise ConfigError("contestants must share the data section: clients are compared one by one")
    folders = {
        (c.label, seed): out / slug(c.label if len(seeds) == 1 else f"{c.label}-seed{seed}")
        for c in contestants
        for seed in seeds
    }
    taken = [folder for folder in folders.values() if folder.exists()]
    if taken and not force:
        raise ConfigError(f"{taken[0]} exists already. Choose another --out, or replace the runs with --force.")
    federation = build_federation(configs[0])
    compared = []
    for contestant, config in zip(contestants, configs, strict=True):
        results = []
        for seed in seeds:
            title = contestant.label if len(seeds) == 1 else f"{contestant.label}, seed {seed}"
            with show_run(title, config.schedule.rounds) as after_round:
                results.append(
                    run(
                        config.changed(seed=seed), folders[contestant.label, seed],
                        name=title, force=force, federation=federation, after_round=after_round,
                    )
                )  # fmt: skip
            if results[-1].state == "interrupted":
                raise KeyboardInterrupt
        compared.append(Compared(contestant, config, tuple(results)))
    return compared, federation
