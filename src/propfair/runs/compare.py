"""Several algorithms on the same clients, over the same seeds."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from propfair.engines.session import Engine
from propfair.errors import ConfigError
from propfair.federation.federation import Federation
from propfair.runs.building import build_federation
from propfair.runs.config import Part, RunConfig, make_config
from propfair.runs.contestant import Contestant
from propfair.runs.disagreement import disagreement_points
from propfair.runs.grouping import Group
from propfair.runs.launch import ensure_run, has_ended, run
from propfair.runs.names import RUNS, short_hash, slug
from propfair.runs.progress import AfterRound, Progress
from propfair.runs.run import Run
from propfair.runs.standing import ALONE, is_alone
from propfair.runs.together import MOST_TOGETHER, can_run_together, run_together

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
        configs = tuple(make_config(content, {**(overrides or {}), **_until_known(one)}) for one in contestants)
        if any(_bargains(one) for one in contestants):
            _check_bargain(contestants, configs[0], tuning)
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
        if not seeds or len(set(seeds)) < len(seeds):  # one counted twice would look like no chance at all
            raise ConfigError(f"seeds must be different numbers, at least one; got seeds={list(seeds)}")
        federation = build_federation(self.configs[0])

        later = [position for position, one in enumerate(self.contestants) if _bargains(one)]
        known = [position for position in range(len(self.contestants)) if position not in later]
        done = self._train({position: {} for position in known}, seeds, federation, force, show_run)
        if later:
            alone = next(one.runs[0] for one in done.values() if is_alone(one.runs[0]))
            points = disagreement_points(alone)
            changes = {p: {"algorithm": Part(**{**self.configs[p].algorithm.model_dump(), "M": points})} for p in later}
            done |= self._train(changes, seeds, federation, force, show_run)
        return [done[position] for position in range(len(self.contestants))]

    def left(self, seeds: Sequence[int]) -> list[RunConfig]:
        """The runs that are not in the folder, or not at their end; what comes to the same counts once."""
        configs = {
            self._folder_of(one): one
            for config in self.configs
            for one in (config.changed(seed=seed) for seed in seeds)
        }
        return [config for folder, config in configs.items() if not has_ended(folder)]

    def _folder_of(self, config: RunConfig) -> Path:
        """Where the run of a config goes."""
        return self.folder / slug(f"{config.parts.algorithm.name}-seed{config.seed}-{short_hash(config.to_toml())}")

    def _train(
        self, changes: Mapping[int, Mapping[str, Any]], seeds: Sequence[int], federation: Federation, force: bool,
        show_run: ShowRun,
    ) -> dict[int, Compared]:  # fmt: skip
        """Some contestants, by position, with changes to their configs: all at once where that is faster."""

        def train_one(config: RunConfig, title: str, after_round: AfterRound, engine: Engine | None = None) -> Run:
            folder = self._folder_of(config)
            if not force:
                return ensure_run(
                    config, folder, name=title, federation=lambda: federation, engine=engine, after_round=after_round
                )
            result = run(
                config, folder, name=title, force=True, federation=federation, engine=engine, after_round=after_round
            )
            if result.state == "interrupted":
                raise KeyboardInterrupt
            return result.run

        wanted: list[str] = []
        unique: dict[str, tuple[RunConfig, str]] = {}  # two contestants may come to the same, in one folder
        for position, changed in changes.items():
            for seed in seeds:
                label = self.contestants[position].label
                title = label if len(seeds) == 1 else f"{label}, seed {seed}"
                config = self.configs[position].changed(**changed, seed=seed)
                wanted.append(config.to_toml())
                unique.setdefault(wanted[-1], (config, title))
        tasks = list(unique.values())
        found: list[Run] = []
        if all(can_run_together(config, federation) for config, _ in tasks):
            for start in range(0, len(tasks), MOST_TOGETHER):
                some = tasks[start : start + MOST_TOGETHER]
                rounds = max(config.schedule.rounds for config, _ in some)
                title = f"{len(some)} runs at once" if len(some) > 1 else some[0][1]
                with show_run(title, rounds) as after_round:
                    told = _of_the_first(after_round)
                    found += run_together(some[0][0], [partial(train_one, *task, told) for task in some])
        else:
            for config, title in tasks:
                with show_run(title, config.schedule.rounds) as after_round:
                    found.append(train_one(config, title, after_round))
        by_text = dict(zip(unique, found, strict=True))
        runs = [by_text[text] for text in wanted]
        of_one = len(seeds)
        return {
            position: Compared(self.contestants[position], tuple(runs[k * of_one : (k + 1) * of_one]))
            for k, position in enumerate(changes)
        }


def _of_the_first(after_round: AfterRound) -> AfterRound:
    """Tells of every round once, though several runs get there."""
    reached = 0

    def told(now: Progress) -> None:
        nonlocal reached
        if now.round > reached:
            reached = now.round
            after_round(now)

    return told


def _bargains(contestant: Contestant) -> bool:
    """Its M are the losses of the local-only models of the first seed."""
    return bool(contestant.settings.get("algorithm.M") == ALONE)


def _until_known(contestant: Contestant) -> Mapping[str, Any]:
    """The settings, without an M that is known only once the local-only models are trained."""
    left_out = ("algorithm.M",) if _bargains(contestant) else ()
    return {key: value for key, value in contestant.settings.items() if key not in left_out}


def _check_bargain(contestants: Sequence[Contestant], config: RunConfig, tuning: str) -> None:
    """What M=local-only needs, before anything is trained."""
    if tuning:
        raise ConfigError(f"M={ALONE} can't be tuned: leave --tune out, or give numbers for M")
    if not any(one.settings["algorithm"] == ALONE for one in contestants):
        raise ConfigError(f"M={ALONE} takes disagreement points from the local-only models: add --with-local")
    if config.data.saved is None and not config.parts.splitter.validation:
        raise ConfigError(
            f"M={ALONE} takes losses on validation data, and there are none: add data.split.validation=0.1"
        )


def _usual_folder(shared: RunConfig, tuning: str) -> Path:
    """A name that depends on what the contestants share, and neither on who they are nor on the seeds."""
    settings = shared.model_dump(mode="json", exclude={"seed", "algorithm", "engine", "device", "log"})
    text = json.dumps([settings, tuning], sort_keys=True, default=str)
    return RUNS / slug(f"{'tuned' if tuning else 'compare'}-{shared.data.name}-{short_hash(text)}")
