"""The points of a search as Optuna knows them."""

from typing import TYPE_CHECKING, Any

from propfair.tuning.claims import Claim
from propfair.tuning.extension import all_points, reachable
from propfair.tuning.search import Range, Tunable
from propfair.tuning.studies import stored

if TYPE_CHECKING:
    import optuna


def with_distributions(contestant: Tunable, further: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """For each point that a grid may come to, `further` rates beyond its ends included: its values, and all choices."""
    import optuna

    choices = {
        key: optuna.distributions.CategoricalDistribution([stored(value) for value in values])
        for key, values in reachable(contestant, further).choices.items()
        if not isinstance(values, Range)
    }
    points = all_points(contestant, further)
    return [({key: stored(value) for key, value in point.items()}, choices) for point in points]


def suggested(claim: Claim, contestant: Tunable) -> dict[str, Any]:
    """The values of a claimed point."""
    return {key: _suggest(claim.trial, key, value) for key, value in contestant.choices.items()}


def _suggest(trial: "optuna.trial.Trial", key: str, values: tuple[Any, ...] | Range) -> Any:
    """The value of a claimed point: the one it came with, or one that the sampler chooses."""
    if isinstance(values, Range):
        return trial.suggest_float(key, values.low, values.high, log=values.log)
    chosen = trial.suggest_categorical(key, [stored(value) for value in values])
    return next(value for value in values if stored(value) == chosen)
