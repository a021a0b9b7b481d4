"""Asks a rule for its weights, and says whose fault it is if they can't be used."""

from typing import NoReturn

from torch import Tensor

from propfair.algorithms.base import Algorithm, Cohort, Needs, State
from propfair.errors import ConfigError, PropFairError, TrainingError

_ASKED = {Needs.GRAM: "gram", Needs.NORMS: "norm2"}  # what is None in a cohort unless a rule asks for it


def weigh(algorithm: Algorithm, cohort: Cohort, state: State) -> tuple[Tensor, State]:
    """The weights of a rule, [K + R], all finite, and its next state."""
    try:
        weights, state = algorithm.weigh(cohort, state)
    except PropFairError:
        raise
    except Exception as error:  # the rule may be the user's own
        missing = [need for need, name in _ASKED.items() if getattr(cohort, name) is None]
        hint = f" If it looks at {_said(missing)}, let `needs` include {_named(missing)}." if missing else ""
        raise ConfigError(
            f"{algorithm.name}.weigh failed in round {cohort.round}: {type(error).__name__}: {error}.{hint}"
        ) from error
    rows = len(cohort) + len(cohort.past)
    if not isinstance(weights, Tensor) or weights.shape != (rows,):
        got = list(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ConfigError(
            f"{algorithm.name}.weigh must give a tensor of {rows} weights, one for each client of the round"
            f"{' and each past row' if len(cohort.past) else ''}; in round {cohort.round} it gave {got}."
        )
    if not weights.isfinite().all():
        _refuse(algorithm, cohort, weights)
    return weights, state


def _refuse(algorithm: Algorithm, cohort: Cohort, weights: Tensor) -> NoReturn:
    place = int((~weights.isfinite()).nonzero()[0])
    whose = f"client {cohort.clients[place]}" if place < len(cohort) else "an update of an earlier round"
    said = f"round {cohort.round}: {algorithm.name} gave the weight {float(weights[place]):g} to {whose}"
    if bool(weights[place].isnan()) and not algorithm.needs & Needs.ANY_LOSS:
        raise ConfigError(
            f"{said}. It did not ask for losses, which are nan then: if it looks at cohort.loss, let `needs` include "
            "Needs.LOSS."
        )
    loss = f" Its loss was {float(cohort.loss[place]):g}." if place < len(cohort) else ""
    raise TrainingError(
        f"{said}.{loss} The model of round {cohort.round - 1} is kept. Choose hyper-parameters of {algorithm.name} "
        "that are less extreme; a rule of your own must give finite weights."
    )


def _said(missing: list[Needs]) -> str:
    return " or ".join(f"cohort.{_ASKED[need]}" for need in missing)


def _named(missing: list[Needs]) -> str:
    return " or ".join(f"Needs.{need.name}" for need in missing)
