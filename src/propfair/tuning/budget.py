"""The same number of trials for every contestant of a comparison: what is tried, and a sweep that tries it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from propfair.errors import ConfigError
from propfair.runs.config import make_config
from propfair.runs.contestant import Contestant
from propfair.tuning.criteria import Criterion
from propfair.tuning.search import Search, Sweep, Tunable, Value, make_content, with_validation

LEAST, MOST = 0.3, 30.0  # learning rates to try, as multiples of the one in the settings


def budget_sweep(
    content: Mapping[str, Any],
    contestants: Sequence[Contestant],
    *,
    overrides: Mapping[str, Any],
    seeds: Sequence[int],
    trials: int,
    criterion: str,
    trial_rounds: int | None = None,
) -> Sweep:
    """Choose a learning rate, and the main hyper-parameter where there is one, for each contestant.

    Each gets `trials` points: combinations of the values that its algorithm names in `Algorithm.tried` with as many
    learning rates as that leaves room for, or that many learning rates where it names none. What a contestant's own
    settings fix is not searched. Clients are stacked where the model allows it, since trials are many and short.
    Trials have `trial_rounds`, or as many as the final runs.
    """
    shared = make_content({"engine": "vectorized", **content}, overrides)
    return Sweep(
        name="compare",
        run=with_validation(shared, "validation"),
        contestants=tuple(_tunable(content, one, overrides, trials) for one in contestants),
        criterion=Criterion.parse(criterion),
        selection="validation",
        seeds=tuple(seeds),
        search=Search(rounds=trial_rounds),
    )


def _tunable(content: Mapping[str, Any], contestant: Contestant, overrides: Mapping[str, Any], trials: int) -> Tunable:
    config = make_config(content, {**overrides, **contestant.settings})
    free = {
        f"algorithm.{name}": tuple(values)
        for name, values in config.parts.algorithm.tried.items()
        if f"algorithm.{name}" not in contestant.settings
    }
    main: dict[str, tuple[Value, ...]] = dict(list(free.items())[:1])
    count = len(next(iter(main.values()), (0,)))
    rates: dict[str, tuple[Value, ...]] = {}
    if "local.lr" not in contestant.settings:
        if trials % count:
            raise ConfigError(
                f"{contestant.label} tries {count} values of {next(iter(main))} with each learning rate, so --trials "
                f"must be a multiple of {count}; got {trials}. Try {count * max(1, round(trials / count))}."
            )
        rates["local.lr"] = learning_rates(config.local.lr, trials // count)
    return Tunable(
        label=contestant.label, settings=contestant.settings, written=contestant.written, choices={**rates, **main}
    )


def learning_rates(usual: float, count: int) -> tuple[float, ...]:
    """`count` rates from LEAST to MOST times the usual one, evenly spaced on a logarithmic scale.

    >>> learning_rates(0.1, 4)
    (0.03, 0.139, 0.646, 3.0)
    """
    if count == 1:
        return (usual,)
    return tuple(float(f"{usual * factor:.3g}") for factor in np.geomspace(LEAST, MOST, count))
