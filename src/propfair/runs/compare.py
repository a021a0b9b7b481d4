"""Several algorithms on the same clients, over the same seeds."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from propfair.errors import ConfigError
from propfair.runs.building import build_federation
from propfair.runs.config import RunConfig, make_config
from propfair.runs.contestant import Contestant
from propfair.runs.grouping import Group
from propfair.runs.launch import ensure_run, run
from propfair.runs.names import RUNS, short_hash, slug
from propfair.runs.progress import AfterRound
from propfair.runs.run import Run

ShowRun = Callable[[str, int], AbstractContextManager[AfterRound]]  # (title, rounds) -> what is told after rounds


@dataclass(frozen=True)
class Compared:
    """The runs of one contestant, one for each seed."""

    contestant: Contestant
    runs: tuple[Run, ...]

    @property
    def group(self) -> Group:
        """The runs under the contestant's label."""
        return Group(self.contestant.label, self.runs, {})


@dataclass(frozen=True)
class Contest:
    """What is to be compared, checked.

    Attributes:
        contestants: the algorithms; where their learning rates differ, the labels say so.
        configs: of each contestant; seeds are put in later.
        folder: where the runs go. The same settings give the same folder, so that the same command goes on.
    """

    contestants: tuple[Contestant, ...]
    configs: tuple[RunConfig, ...]
    folder: Path

    @classmethod
    def of(
        cls,
        content: Mapping[str, Any],
        contestants: Sequence[Contestant],
        *,
        overrides: Mapping[str, Any] | None = None,
        out: Path | None = None,
        tuning: str = "",
    ) -> "Contest":
        """Validate everything before the first run starts.

        Args:
            content: the settings of a config file, as nested values.
            contestants: the algorithms, with settings of their own.
            overrides: settings for all, by dotted keys; they win over `content`.
            out: the folder; None: one below runs/ that the shared settings decide.
            tuning: how values are to be chosen, in a word that tells ways apart; "": they are taken as they are.
        """
        if len(contestants) < 2 or len({c.label for c in contestants}) < len(contestants):
            raise ConfigError(
                "compare needs at least two different algorithms, such as: propfair compare fedavg propfair"
            )
        configs = tuple(make_config(content, {**(overrides or {}), **one.settings}) for one in contestants)
        if any(config.data != configs[0].data for config in configs):
            raise ConfigError("contestants must share the data section: clients are compared one by one")
        rates = [config.local.lr for config in configs]
        if not tuning and len(set(rates)) > 1:
            contestants = [
                dataclasses.replace(one, label=f"{one.label} [lr {rate:g}]")
                for one, rate in zip(contestants, rates, strict=True)
            ]
        shared = make_config(content, overrides or {})
        return cls(tuple(contestants), configs, out or _usual_folder(shared, tuning))

    @property
    def same_rate(self) -> bool:
        """All contestants have one learning rate."""
        return len({config.local.lr for config in self.configs}) == 1

    def train(self, seeds: Sequence[int], *, force: bool = False, show_run: ShowRun) -> list[Compared]:
        """Every contestant with every seed on one federation.

        Runs that are in the folder are read, or gone on with if they were cut off; with `force` they are run again.
        """
        federation = build_federation(self.configs[0])
        compared = []
        for contestant, config in zip(self.contestants, self.configs, strict=True):
            runs = []
            for seed in seeds:
                one = config.changed(seed=seed)
                title = contestant.label if len(seeds) == 1 else f"{contestant.label}, seed {seed}"
                folder = self.folder / slug(f"{one.parts.algorithm.name}-seed{seed}-{short_hash(one.to_toml())}")
                with show_run(title, one.schedule.rounds) as after_round:
                    if force:
                        result = run(
                            one, folder, name=title, force=True, federation=federation, after_round=after_round
                        )
                        if result.state == "interrupted":
                            raise KeyboardInterrupt
                        runs.append(result.run)
                    else:
                        runs.append(
                            ensure_run(one, folder, name=title, federation=lambda: federation, after_round=after_round)
                        )
            compared.append(Compared(contestant, tuple(runs)))
        return compared


def _usual_folder(shared: RunConfig, tuning: str) -> Path:
    """A name that depends on what the contestants share, and neither on who they are nor on the seeds."""
    settings = shared.model_dump(mode="json", exclude={"seed", "algorithm", "engine", "device", "log"})
    text = json.dumps([settings, tuning], sort_keys=True, default=str)
    return RUNS / slug(f"{'tuned' if tuning else 'compare'}-{shared.data.name}-{short_hash(text)}")
