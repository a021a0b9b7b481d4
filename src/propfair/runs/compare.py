"""Several algorithms on the same clients, over the same seeds."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from propfair.errors import ConfigError
from propfair.fairness.arrays import FloatArray
from propfair.fairness.statistics import MeanStd, summarize_seeds
from propfair.federation.federation import Federation, Split
from propfair.runs.config import RunConfig, make_config
from propfair.runs.names import slug
from propfair.runs.result import Result
from propfair.runs.run import Watch, build_federation, run


@dataclass(frozen=True)
class Contestant:
    """One line of a comparison: an algorithm with its settings.

    Written `NAME` or `NAME:KEY=VALUE,...`; a key without a dot is a hyper-parameter of the algorithm, a key with one is
    any other setting: `propfair:M=5,local.lr=0.5`.
    """

    label: str  # the name, with the settings where the name alone would not tell contestants apart
    settings: str
    overrides: tuple[str, ...]

    @classmethod
    def parse_all(cls, texts: Sequence[str]) -> list["Contestant"]:
        """Read the written forms."""
        names = [text.partition(":")[0] for text in texts]
        parsed = []
        for text, name in zip(texts, names, strict=True):
            settings = text.partition(":")[2]
            pairs = [pair for pair in settings.split(",") if pair]
            keyed = (pair if "." in pair.partition("=")[0] else f"algorithm.{pair}" for pair in pairs)
            label = name if names.count(name) == 1 else text
            parsed.append(cls(label, ", ".join(pairs), (f"algorithm={name}", *keyed)))
        return parsed


@dataclass(frozen=True)
class Compared:
    """The runs of one contestant, one for each seed."""

    contestant: Contestant
    config: RunConfig
    results: tuple[Result, ...]

    def statistics(self, split: Split = "test") -> dict[str, MeanStd]:
        """Mean and population standard deviation over seeds of every statistic over clients."""
        return summarize_seeds([result.summary(split) for result in self.results])

    def accuracies(self, split: Split = "test") -> FloatArray:
        """Accuracy of each client in each seed, [seeds, n]."""
        return np.stack([result.evaluation(split).accuracy.numpy() for result in self.results])


def compare(
    content: dict[str, object],
    contestants: Sequence[Contestant],
    *,
    overrides: Iterable[str] = (),
    seeds: Sequence[int] = (0,),
    out: Path,
    force: bool = False,
    watcher: Callable[[str, int], AbstractContextManager[Watch]],
) -> tuple[list[Compared], Federation]:
    """Run every contestant with every seed on one federation. Everything is validated before the first run starts."""
    if len(contestants) < 2 or len({c.label for c in contestants}) < len(contestants):
        raise ConfigError("compare needs at least two different algorithms, such as: propfair compare fedavg propfair")
    shared = tuple(overrides)
    configs = [make_config(content, [*shared, *contestant.overrides]) for contestant in contestants]
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
            with watcher(title, config.schedule.rounds) as watch:
                results.append(
                    run(
                        config.model_copy(update={"seed": seed}), folders[contestant.label, seed],
                        name=title, force=force, federation=federation, watch=watch,
                    )
                )  # fmt: skip
            if results[-1].state == "interrupted":
                raise KeyboardInterrupt
        compared.append(Compared(contestant, config, tuple(results)))
    return compared, federation
